use super::*;
use crate::error::RequestError;
use dunlin_fabric::RealHost;
use dunlin_tier::Rights;
use std::sync::Condvar;
use std::task::Wake;

/// No test takes so long: it hangs.
const HANG: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Counts {
    begun: usize,
    ended: usize,
    is_open: bool,
}

/// A region whose operations wait until a gate is open.
#[derive(Debug, Default)]
struct Gate(Mutex<Counts>, Condvar);

impl Gate {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap()
    }

    fn wait(&self, is: impl Fn(&Counts) -> bool) -> (usize, usize) {
        let (counts, timeout) = self.1.wait_timeout_while(self.counts(), HANG, |counts| !is(counts)).unwrap();
        assert!(!timeout.timed_out(), "{counts:?}");
        (counts.begun, counts.ended)
    }

    fn open(&self) {
        self.counts().is_open = true;
        self.1.notify_all();
    }
}

/// The methods that nothing here uses.
impl AnyLmr for Gate {
    fn len(&self) -> u64 {
        0
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), OperationError> {
        Err(OperationError::Busy)
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), OperationError> {
        Err(OperationError::Busy)
    }
    fn fetch_add(&self, _: u64, _: u64) -> Result<u64, OperationError> {
        Err(OperationError::Busy)
    }
    fn compare_swap(&self, _: u64, _: u64, _: u64) -> Result<u64, OperationError> {
        Err(OperationError::Busy)
    }
    fn memset(&self, _: u64, _: u64, _: u8) -> Result<(), OperationError> {
        Err(OperationError::Busy)
    }
    fn grant_anyone(&self, _: Rights) -> Result<(), RequestError> {
        Err(RequestError::Busy)
    }
    fn free(self) -> Result<(), RequestError> {
        Err(RequestError::Busy)
    }
}

impl TimedLmr for Gate {
    fn run_list(_: Option<Duration>, _: Vec<AnyOperation<'_, Self>>) -> Result<Outcomes, ListError> {
        Err(ListError::NotBegun(OperationError::Busy))
    }

    fn run_within(&self, time: Duration, operation: TimedOperation<'_, Self>) -> Result<u64, OperationError> {
        assert!(!time.is_zero() && time <= HANG);
        self.counts().begun += 1;
        self.1.notify_all();
        self.wait(|counts| counts.is_open);
        if let TimedOperation::Read { into, .. } = operation {
            // The buffer exists until here, whatever became of the future.
            into.fill(7);
        }
        self.counts().ended += 1;
        self.1.notify_all();
        Ok(5)
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(operation: Operation<T>) -> T {
    let (mut operation, begin) = (std::pin::pin!(operation), std::time::Instant::now());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(ended) = operation.as_mut().poll(&mut Context::from_waker(&waker)) {
            return ended;
        }
        assert!(begin.elapsed() < HANG, "the operation does not end");
        std::thread::park_timeout(HANG);
    }
}

fn start(threads: u16, queue: usize) -> (Asynchronous<Gate, RealHost>, Arc<Gate>) {
    let config = AsyncConfig { threads, queue, timeout: None };
    (Asynchronous::start(&RealHost, config, HANG).unwrap(), Arc::default())
}

#[test]
fn operations_run_at_the_same_time_and_wait_in_a_bounded_queue() {
    let (operations, gate) = start(2, 3);
    let running: Vec<_> = (0..2).map(|_| operations.read(&gate, 0, vec![0; 4])).collect();
    gate.wait(|counts| counts.begun == 2);
    let waiting: Vec<_> = (0..3).map(|_| operations.fetch_add(&gate, 0, 1)).collect();
    let (buffer, refused) = wait(operations.write(&gate, 0, vec![9; 3]));
    assert!(matches!(refused, Err(OperationError::QueueFull { limit: 3 })), "{refused:?}");
    assert!(!refused.unwrap_err().may_have_executed());
    assert_eq!(buffer, [9; 3], "the buffer comes back");
    assert_eq!(gate.counts().begun, 2);
    gate.open();
    for operation in running {
        assert!(matches!(wait(operation), (buffer, Ok(())) if buffer == [7; 4]));
    }
    for operation in waiting {
        assert_eq!(wait(operation).unwrap(), 5);
    }
    assert_eq!(gate.wait(|counts| counts.ended == 5), (5, 5));
}

#[test]
fn a_dropped_future_gives_its_operation_up_unless_it_has_begun() {
    let (operations, gate) = start(1, 9);
    let begun = operations.read(&gate, 0, vec![0; 4]);
    gate.wait(|counts| counts.begun == 1);
    drop(operations.read(&gate, 0, vec![0; 4]));
    let last = operations.test_set(&gate, 0);
    drop(begun);
    gate.open();
    assert!(!wait(last).unwrap(), "the old value was 5");
    assert_eq!(gate.wait(|counts| counts.ended == 2), (2, 2), "the second one was not begun");
}

#[test]
fn an_operation_whose_time_ends_before_a_thread_takes_it_is_not_executed() {
    let (operations, gate) = start(1, 9);
    let begun = operations.fetch_add(&gate, 0, 1);
    gate.wait(|counts| counts.begun == 1);
    let soon = operations.within(Duration::from_millis(1));
    // The thread stays in use: the clock ends the operation.
    let (buffer, late) = wait(soon.write(&gate, 0, vec![3; 2]));
    assert!(matches!(late, Err(OperationError::Deadline { node: None, may_have_executed: false })));
    assert_eq!(buffer, [3; 2]);
    let never = wait(operations.within(Duration::ZERO).fetch_add(&gate, 0, 1));
    assert!(matches!(never, Err(OperationError::Deadline { may_have_executed: false, .. })));
    gate.open();
    assert_eq!(wait(begun).unwrap(), 5);
    assert_eq!(gate.wait(|counts| counts.ended == 1), (1, 1));
}

#[test]
fn the_end_waits_for_operations_that_have_begun_and_ends_the_others() {
    let (operations, gate) = start(1, 9);
    let begun = operations.fetch_add(&gate, 0, 1);
    gate.wait(|counts| counts.begun == 1);
    let waiting = operations.memset(&gate, 0, 1, 1);
    let ending = std::thread::spawn(move || drop(operations));
    assert!(matches!(wait(waiting), Err(OperationError::Ended)));
    gate.open();
    ending.join().unwrap();
    assert_eq!(wait(begun).unwrap(), 5);
}

/// Returns whether an operation has ended.
fn is_ready<T>(operation: &mut Operation<T>) -> bool {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    Pin::new(operation).poll(&mut Context::from_waker(&waker)).is_ready()
}

#[test]
fn a_fence_waits_for_all_operations_before_it_and_for_no_later_one() {
    let (operations, gate) = start(1, 9);
    wait(operations.fence());
    let begun = operations.fetch_add(&gate, 0, 1);
    let waiting = operations.clone().write(&gate, 0, vec![0; 4]);
    let given_up = operations.memset(&gate, 0, 1, 1);
    let mut fences = [operations.fence(), operations.within(HANG).fence()];
    drop((given_up, operations.fence()));
    gate.wait(|counts| counts.begun == 1);
    assert!(!fences.iter_mut().any(is_ready));
    gate.open();
    fences.into_iter().for_each(wait);
    assert_eq!(gate.counts().ended, 2);
    assert_eq!(wait(begun).unwrap(), 5);
    assert!(wait(waiting).1.is_ok());

    // The operation after the fence waits at the gate.
    let (operations, gate) = start(2, 9);
    let first = operations.fetch_add(&gate, 0, 1);
    let mut fence = operations.fence();
    gate.wait(|counts| counts.begun == 1);
    let later = operations.fetch_add(&gate, 0, 1);
    gate.wait(|counts| counts.begun == 2);
    assert!(!is_ready(&mut fence));
    gate.open();
    wait(fence);
    assert_eq!((wait(first).unwrap(), wait(later).unwrap()), (5, 5));

    // Operations that end without a thread pass it, too.
    let (operations, gate) = start(1, 9);
    let begun = operations.fetch_add(&gate, 0, 1);
    gate.wait(|counts| counts.begun == 1);
    let refused = operations.within(Duration::ZERO).fetch_add(&gate, 0, 1);
    let ended = operations.fetch_add(&gate, 0, 1);
    let fence = operations.fence();
    let ending = std::thread::spawn(move || drop(operations));
    assert!(matches!(wait(ended), Err(OperationError::Ended)));
    assert!(wait(refused).is_err());
    gate.open();
    wait(fence);
    ending.join().unwrap();
    assert_eq!(wait(begun).unwrap(), 5);
}

#[test]
fn settings_without_a_meaning_are_refused() {
    for threads in [0, 65] {
        let config = AsyncConfig { threads, ..AsyncConfig::default() };
        let refused = Asynchronous::<Gate, _>::start(&RealHost, config, HANG).unwrap_err();
        assert!(refused.to_string().contains("1 to 64 threads"), "{refused}");
    }
}
