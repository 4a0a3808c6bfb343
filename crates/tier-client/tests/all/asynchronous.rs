//! Futures of operations of a process.

use crate::common::{HANG, attach, config, serve, tag};
use dunlin_tier_client::{
    AccessError, AsyncConfig, Operation, OperationError, OwnedOperations, Rights, Spec,
};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(operation: Operation<T>) -> T {
    let (mut operation, begin) = (pin!(operation), Instant::now());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(ended) = Future::poll(operation.as_mut(), &mut Context::from_waker(&waker)) {
            return ended;
        }
        assert!(begin.elapsed() < HANG, "the operation does not end");
        std::thread::park_timeout(HANG);
    }
}

#[test]
fn operations_of_a_process_are_futures() {
    let tag = tag("futures");
    let nodes = ["one", "two"].map(|name| serve(config(&tag, &["one", "two"], name), &tag, |_| {}));
    let app = attach(&nodes[0].address);
    // More threads than the node serves requests of a process at the same time.
    let operations = app.asynchronous(AsyncConfig { threads: 7, ..AsyncConfig::default() }).unwrap();
    for store in ["one", "two"] {
        let region = Arc::new(app.malloc(300_000, Spec::on(store).named("f")).unwrap());
        let writes: Vec<_> =
            (0..30u8).map(|at| operations.write(&region, 10_000 * u64::from(at), vec![at; 10_000])).collect();
        for (at, write) in (0..).zip(writes) {
            assert!(matches!(wait(write), (buffer, Ok(())) if buffer == [at; 10_000]));
        }
        // Several requests for one operation.
        let (bytes, read) = wait(operations.read(&region, 0, vec![0; 300_000]));
        read.unwrap();
        assert!(bytes.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / 10_000));
        // A list of several requests, and buffers that the node reads and writes in place.
        let list = (0..3).fold(OwnedOperations::new(), |list, at| {
            list.read(&region, 100_000 * at, vec![0; 100_000]).fetch_add(&region, 16, 0)
        });
        let (buffers, outcomes) = wait(operations.run(list));
        assert!(buffers.concat() == bytes && outcomes.unwrap().iter().all(Result::is_ok));
        let own = Arc::new(app.malloc(300, Spec::on(store)).unwrap());
        let list = OwnedOperations::new().memset(&own, 0, 100, 6).memcpy((&own, 150), (&own, 50), 100);
        assert!(wait(operations.run(list)).1.unwrap().iter().all(Result::is_ok));
        let mut bytes = vec![0; 300];
        own.read(0, &mut bytes).unwrap();
        let is_set = |at: usize| at < 100 || (150..200).contains(&at);
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if is_set(at) { 6 } else { 0 }));
        let mut buffer = app.buffer(2000).unwrap();
        buffer.copy_in(0, &[93; 2000]).unwrap();
        let (buffer, written) = wait(operations.write_from(&region, 50_000, buffer, 100..1100));
        written.unwrap();
        let (buffer, read) = wait(operations.read_into(&region, 49_000, buffer, 0..2000));
        read.unwrap();
        let mut found = [0; 2000];
        buffer.copy_out(0, &mut found).unwrap();
        assert!(found[..1000] == [4; 1000] && found[1000..] == [93; 1000]);
        wait(operations.memset(&region, 0, 100, 0)).unwrap();
        let adds: Vec<_> = (0..30).map(|_| operations.fetch_add(&region, 0, 2)).collect();
        let mut old: Vec<u64> = adds.into_iter().map(|add| wait(add).unwrap()).collect();
        old.sort_unstable();
        assert!(old.into_iter().eq((0..30).map(|at| 2 * at)));
        assert!(wait(operations.test_set(&region, 8)).unwrap());
        assert!(!wait(operations.test_set(&region, 8)).unwrap() && !region.test_set(8).unwrap());
        assert_eq!(wait(operations.compare_swap(&region, 8, 1, 7)).unwrap(), 1);
        wait(operations.memcpy((&region, 200_000), (&region, 0), 16)).unwrap();
        let (bytes, read) = wait(operations.read(&region, 200_000, vec![0; 16]));
        read.unwrap();
        assert_eq!(bytes, [60u64.to_le_bytes(), 7u64.to_le_bytes()].concat());

        let (bytes, notified) = wait(operations.write_notify(&region, 1000, vec![8; 100], 2000, 9));
        assert!(notified.is_ok() && bytes == [8; 100]);
        let write = operations.write(&region, 1100, vec![8; 100]);
        wait(operations.fence());
        let (bytes, read) = wait(operations.read(&region, 1000, vec![0; 1008]));
        assert!(read.is_ok() && bytes[..200] == [8; 200] && bytes[1000..] == 9u64.to_le_bytes());
        assert!(wait(write).1.is_ok());

        let weak = Arc::new(app.map("f", Rights::READ).unwrap());
        let (buffer, refused) = wait(operations.write(&weak, 0, vec![1; 9]));
        let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
        assert!(matches!(refused, Err(OperationError::Access(error)) if error == denied), "{refused:?}");
        assert_eq!(buffer, [1; 9]);
        Arc::into_inner(region).unwrap().free().unwrap();
        let (_, gone) = wait(operations.read(&weak, 0, vec![0; 9]));
        assert!(matches!(gone, Err(OperationError::Access(AccessError::Gone))), "{gone:?}");
    }
}
