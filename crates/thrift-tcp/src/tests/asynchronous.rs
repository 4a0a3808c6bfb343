//! The asynchronous client on real sockets.

use super::service::{Answer, Payload, Toy, ToyError};
use crate::{AsyncConnection, ConnectionOptions, Server, ServerOptions, TcpCall};
use dunlin_rpc::{Cause, Certainty};
use dunlin_thrift_core::{CallError, TcpError, Wire};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Parks between polls, so that a missing wake-up makes the test hang.
fn block_on<T>(mut future: impl Future<Output = T> + Unpin) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn is_ready<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn serve() -> (Arc<Toy>, Server<Toy>) {
    let toy = Toy::new();
    // Handlers that hold block their threads.
    let options = ServerOptions { threads: 4, ..ServerOptions::default() };
    let server = Server::bind("127.0.0.1:0", Arc::clone(&toy), options).unwrap();
    (toy, server)
}

fn client(address: SocketAddr, options: ConnectionOptions) -> AsyncConnection {
    AsyncConnection::connect(&address.to_string(), options).unwrap()
}

fn call(client: &AsyncConnection, name: &'static str, payload: &[u8]) -> TcpCall<Answer, ToyError> {
    client.call(name, &Payload(payload))
}

fn tcp_error(result: Result<Vec<u8>, ToyError>) -> TcpError {
    match result {
        Err(ToyError::Call(CallError::Tcp(error))) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_of_many_tasks_are_answered_each_with_its_own() {
    let (toy, server) = serve();
    for wire in Wire::ALL {
        let options = ConnectionOptions { wire, connections: 3, window: 10, ..ConnectionOptions::default() };
        let client = client(server.address(), options);
        let payload = |n: usize| vec![n as u8; n * n * n];
        let calls: Vec<_> = (0..60).map(|n| (n, call(&client, "echo", &payload(n)))).collect();
        // Calls beyond the window wait for room, and the last calls are polled first.
        let threads = calls.into_iter().rev().map(|(n, call)| (n, thread::spawn(move || block_on(call))));
        for (n, thread) in threads.collect::<Vec<_>>() {
            assert!(thread.join().unwrap().unwrap() == payload(n), "{wire:?} {n}");
        }
        assert!(server.connections() <= 3 + 3, "of two clients at most");
        assert!(
            matches!(block_on(call(&client, "refuse", b"no")), Err(ToyError::Refused(why)) if why == b"no")
        );
        assert!(matches!(
            block_on(call(&client, "nothing", b"")),
            Err(ToyError::Call(CallError::Application(_)))
        ));
        assert!(matches!(
            block_on(call(&client, "panic", b"")),
            Err(ToyError::Call(CallError::Application(_)))
        ));
        assert!(block_on(call(&client, "echo", &[5; 5_000_000])).unwrap() == [5; 5_000_000]);
    }
    assert!(toy.executed() >= 4 * 60);
}

#[test]
fn oneway_calls_arrive_or_are_refused() {
    let (_toy, server) = serve();
    let options = ConnectionOptions { connections: 1, window: 5, ..ConnectionOptions::default() };
    let client = client(server.address(), options);
    let (mut sent, mut refused) = (0, 0);
    for _ in 0..10_000 {
        match client.oneway("tell", &Payload(b"x")) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error.certainty(), Certainty::NotExecuted, "{error}");
                refused += 1;
            }
        }
    }
    assert!(sent >= 5 && refused > 0, "{sent} sent, {refused} refused");
    // With a single connection, this call comes last.
    assert_eq!(block_on(call(&client, "told", b"")).unwrap(), sent.to_string().into_bytes());
}

/// A call that holds occupies one connection while other calls proceed; an overdue call returns an error.
#[test]
fn a_call_that_takes_long_holds_up_no_other() {
    let (toy, server) = serve();
    let options =
        ConnectionOptions { call_timeout: Some(LONG), connections: 2, ..ConnectionOptions::default() };
    let client = client(server.address(), options);
    let held = call(&client, "hold", b"");
    toy.wait_until_held();
    for _ in 0..100 {
        block_on(call(&client, "echo", b"quick")).unwrap();
    }
    toy.release();
    block_on(held).unwrap();
}

#[test]
fn a_deadline_ends_a_call_and_what_waits_behind_it() {
    let (toy, server) = serve();
    let options = ConnectionOptions {
        call_timeout: Some(SHORT),
        connections: 1,
        window: 2,
        ..ConnectionOptions::default()
    };
    let client = client(server.address(), options);
    let under_way = call(&client, "hold", b"");
    toy.wait_until_held();
    let (queued, without_room) = (call(&client, "echo", b"a"), call(&client, "echo", b"b"));
    let behind = [queued, without_room].map(|call| thread::spawn(move || block_on(call)));
    let late = dunlin_rpc::CallError::MaybeExecuted(Cause::DeadlineExceeded);
    match block_on(under_way).unwrap_err() {
        ToyError::Call(CallError::Transport(error)) => assert_eq!(error, late),
        other => panic!("{other}"),
    }
    // The queued calls may get a connection at the last moment, or fail with a timeout.
    for thread in behind {
        match thread.join().unwrap() {
            Ok(_) => {}
            Err(ToyError::Call(CallError::Transport(error))) => {
                assert_eq!(error.cause(), Some(Cause::DeadlineExceeded))
            }
            other => panic!("{other:?}"),
        }
    }
    toy.release();
    let connected = |_: &u32| block_on(call(&client, "echo", b"again")).is_ok();
    assert!((0..1000).any(|n| connected(&n)), "the client goes on");
}

#[test]
fn a_call_that_is_dropped_leaves_room() {
    let (toy, server) = serve();
    let options = ConnectionOptions {
        call_timeout: Some(LONG),
        connections: 1,
        window: 2,
        ..ConnectionOptions::default()
    };
    let client = client(server.address(), options);
    let held = call(&client, "hold", b"");
    toy.wait_until_held();
    let queued = call(&client, "echo", b"never sent");
    let (mut first, mut second) = (call(&client, "echo", b"first"), call(&client, "echo", b"second"));
    assert!(!is_ready(&mut first) && !is_ready(&mut second));
    // The room belongs to the first waiting call, which is dropped, so the second one gets it.
    drop(queued);
    drop(first);
    let second = thread::spawn(move || block_on(second));
    drop(held);
    toy.release();
    assert_eq!(second.join().unwrap().unwrap(), b"second");
    assert_eq!(toy.executed(), 2, "what was dropped in the queue was not sent");
}

#[test]
fn a_dead_server_is_an_error_and_one_that_comes_back_is_found() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let options = ConnectionOptions { call_timeout: Some(LONG), ..ConnectionOptions::default() };
    let client = client(address, options);
    let (stream, _) = listener.accept().unwrap();
    let reading = |mut stream: &TcpStream| {
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).unwrap();
    };
    // The server closes the connection during a call.
    let under_way = call(&client, "echo", b"x");
    reading(&stream);
    drop(stream);
    // The client looks a second time at a server that has said nothing.
    drop(listener.accept().unwrap());
    let error = tcp_error(block_on(under_way));
    assert!(matches!(error, TcpError::Broken { .. }), "{error}");
    assert_eq!(error.certainty(), Certainty::MaybeExecuted);
    // The server sends an invalid answer.
    let under_way = call(&client, "echo", b"x");
    let (mut stream, _) = listener.accept().unwrap();
    reading(&stream);
    stream.write_all(b"\x00\x00\x00\x04what").unwrap();
    let error = tcp_error(block_on(under_way));
    assert!(matches!(error, TcpError::Answer { .. }), "{error}");
    // The server does not listen.
    drop((stream, listener));
    for _ in 0..20 {
        let error = tcp_error(block_on(call(&client, "echo", b"x")));
        assert!(matches!(error, TcpError::Connect { .. }), "{error}");
        assert_eq!(error.certainty(), Certainty::NotExecuted);
    }
    assert!(AsyncConnection::connect(&address.to_string(), ConnectionOptions::default()).is_err());
    // A server listens again.
    let toy = Toy::new();
    let _server = Server::bind(&address.to_string(), Arc::clone(&toy), ServerOptions::default()).unwrap();
    assert_eq!(block_on(call(&client, "echo", b"back")).unwrap(), b"back");
}

/// The last handle of the client may be dropped by a waker on the client's own thread.
#[test]
fn the_client_may_end_on_its_own_thread() {
    /// Holds a call and its client, and drops them when it is woken.
    struct Last(Mutex<Option<(TcpCall<Answer, ToyError>, AsyncConnection)>>);

    impl Wake for Last {
        fn wake(self: Arc<Self>) {
            let last = self.0.lock().unwrap().take();
            drop(last);
        }
    }

    let (toy, server) = serve();
    let client = client(server.address(), ConnectionOptions::default());
    let held = call(&client, "hold", b"");
    let last = Arc::new(Last(Mutex::new(Some((held, client)))));
    if let Some((held, _)) = &mut *last.0.lock().unwrap() {
        let waker = Waker::from(Arc::clone(&last));
        assert!(Pin::new(held).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    toy.wait_until_held();
    toy.release();
    while server.connections() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
}
