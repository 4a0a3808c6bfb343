//! The server on real sockets.

use super::service::{Answer, Payload, Toy, ToyError, call};
use crate::{Connection, ConnectionOptions, Server, ServerOptions};
use dunlin_thrift_core::{CallError, Wire};
use pilota::thrift::ApplicationExceptionKind;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn serve(options: ServerOptions) -> (Arc<Toy>, Server<Toy>) {
    let toy = Toy::new();
    let server = Server::bind("127.0.0.1:0", Arc::clone(&toy), options).unwrap();
    (toy, server)
}

fn one_thread() -> ServerOptions {
    ServerOptions { threads: 1, ..ServerOptions::default() }
}

fn client(address: SocketAddr, wire: Wire) -> Connection {
    let options = ConnectionOptions { wire, ..ConnectionOptions::default() };
    Connection::connect(&address.to_string(), options).unwrap()
}

fn echo(client: &mut Connection, payload: &[u8]) -> Result<Vec<u8>, ToyError> {
    client.call::<_, Answer, ToyError>("echo", &Payload(payload))
}

fn socket(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    // Bounds the time of a test whose awaited bytes never arrive.
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

/// Returns whether the server has closed the connection. With unread bytes it resets it.
fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(received) => received == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Reads one answer from a framed connection.
fn read_frame(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

#[test]
fn every_wire_is_served_on_one_address() {
    let (_toy, server) = serve(ServerOptions::default());
    for wire in Wire::ALL {
        let mut client = client(server.address(), wire);
        for length in [0, 1, 100, 70_000, 3_000_000, 5] {
            let payload = vec![length as u8; length];
            assert!(echo(&mut client, &payload).unwrap() == payload, "{wire:?} {length}");
        }
        let refused = client.call::<_, Answer, ToyError>("refuse", &Payload(b"no")).unwrap_err();
        assert!(matches!(refused, ToyError::Refused(why) if why == b"no"));
        let unknown = client.call::<_, Answer, ToyError>("nothing", &Payload(b"")).unwrap_err();
        let ToyError::Call(CallError::Application(unknown)) = unknown else { panic!("{unknown}") };
        assert_eq!(unknown.kind(), ApplicationExceptionKind::UNKNOWN_METHOD);
        client.oneway("tell", &Payload(b"abc")).unwrap();
        assert!(!client.call::<_, Answer, ToyError>("told", &Payload(b"")).unwrap().is_empty());
    }
}

#[test]
fn a_handler_that_panics_fails_its_call_and_nothing_else() {
    let (_toy, server) = serve(one_thread());
    let mut other = client(server.address(), Wire::FRAMED_BINARY);
    for wire in Wire::ALL {
        let mut client = client(server.address(), wire);
        let error = client.call::<_, Answer, ToyError>("panic", &Payload(b"")).unwrap_err();
        let ToyError::Call(CallError::Application(error)) = error else { panic!("{error}") };
        assert_eq!(error.kind(), ApplicationExceptionKind::INTERNAL_ERROR);
        assert_eq!(echo(&mut client, b"still").unwrap(), b"still");
        assert_eq!(echo(&mut other, b"here").unwrap(), b"here");
    }
}

#[test]
fn connections_over_the_limit_are_closed_at_once_and_have_room_later() {
    let (_toy, server) = serve(ServerOptions { max_connections: 3, threads: 2, ..ServerOptions::default() });
    let mut clients: Vec<_> = (0..3).map(|_| client(server.address(), Wire::FRAMED_BINARY)).collect();
    for client in &mut clients {
        echo(client, b"in").unwrap();
    }
    for _ in 0..200 {
        assert!(is_closed(&socket(server.address())));
    }
    for client in &mut clients {
        echo(client, b"in").unwrap();
    }
    clients.pop();
    let mut late = client(server.address(), Wire::FRAMED_BINARY);
    // A connection may be refused until the server has noticed that another one was closed.
    while echo(&mut late, b"late").is_err() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn calls_that_are_sent_without_waiting_are_answered_in_order() {
    let (toy, server) = serve(ServerOptions::default());
    for wire in [Wire::FRAMED_BINARY, Wire::UNFRAMED_COMPACT] {
        let stream = socket(server.address());
        let count = 5000;
        let calls: Vec<u8> = (0..count).flat_map(|n| call(wire, "echo", n, &[1; 50])).collect();
        let writer = {
            let stream = stream.try_clone().unwrap();
            thread::spawn(move || {
                // Pieces that end at arbitrary positions.
                calls.chunks(1777).for_each(|piece| (&stream).write_all(piece).unwrap());
                stream.shutdown(Shutdown::Write).unwrap();
            })
        };
        let mut answers = Vec::new();
        (&stream).read_to_end(&mut answers).unwrap();
        writer.join().unwrap();
        let mut splitter = crate::split::Splitter::new(wire, 1 << 20);
        let mut rest = answers.as_slice();
        for number in 0..count {
            let Ok(crate::split::Next::Message(range)) = splitter.next(rest) else { panic!("{number}") };
            let (head, _) = crate::head::Head::read(wire.encoding, &rest[range.clone()]).unwrap().unwrap();
            assert_eq!(head.sequence, number);
            rest = &rest[range.end..];
        }
        assert!(rest.is_empty());
    }
    assert_eq!(toy.executed(), 10_000);
}

#[test]
fn a_client_that_does_not_read_is_not_served_on_and_keeps_nobody_waiting() {
    let (toy, server) = serve(one_thread());
    let stream = socket(server.address());
    let calls: Vec<u8> = (0..1000).flat_map(|n| call(Wire::FRAMED_BINARY, "many", n, b"1000000")).collect();
    (&stream).write_all(&calls).unwrap();
    let mut other = client(server.address(), Wire::FRAMED_BINARY);
    for _ in 0..100 {
        echo(&mut other, b"as ever").unwrap();
    }
    // A megabyte is pending in the server, and some in each socket.
    let executed = toy.executed() - 100;
    assert!(executed < 100, "{executed} answers of a megabyte wait");
    for number in 0..1000u32 {
        let frame = read_frame(&stream).unwrap();
        assert_eq!((frame.len() > 1_000_000, &frame[12..16]), (true, &number.to_be_bytes()[..]));
    }
}

#[test]
fn a_client_that_sends_drop_by_drop_is_given_up() {
    let options = ServerOptions { stall_timeout: Duration::from_millis(100), ..one_thread() };
    let (_toy, server) = serve(options);
    let mut other = client(server.address(), Wire::FRAMED_BINARY);
    for wire in Wire::ALL {
        let stream = socket(server.address());
        let message = call(wire, "echo", 1, &[0; 60_000]);
        let gave_up = message.iter().any(|byte| {
            thread::sleep(Duration::from_millis(2));
            (&stream).write_all(&[*byte]).is_err()
        });
        assert!(gave_up, "{wire:?}");
        echo(&mut other, b"as ever").unwrap();
    }
}

#[test]
fn a_client_that_says_nothing_is_given_up_and_one_that_takes_no_answer_too() {
    let options = ServerOptions {
        idle_timeout: Duration::from_millis(100),
        stall_timeout: Duration::from_millis(100),
        ..one_thread()
    };
    let (_toy, server) = serve(options);
    assert!(is_closed(&socket(server.address())));
    let stream = socket(server.address());
    (&stream).write_all(&call(Wire::FRAMED_BINARY, "many", 1, b"60000000")).unwrap();
    while server.connections() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn hostile_bytes_end_their_connection_and_nothing_else() {
    let (toy, server) = serve(ServerOptions::default());
    toy.release();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..300 {
        let mut bytes: Vec<u8> =
            (0..20).flat_map(|n| call(Wire::ALL[number % 4], "echo", n, &[1; 30])).collect();
        for _ in 0..number % 7 + 1 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (random >> 33) as usize % bytes.len();
            bytes[place] = (random >> 20) as u8;
        }
        let stream = socket(server.address());
        // The server may close the connection before everything is written.
        let _ = (&stream).write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let _ = (&stream).read_to_end(&mut Vec::new());
    }
    let mut client = client(server.address(), Wire::FRAMED_COMPACT);
    assert_eq!(echo(&mut client, b"still here").unwrap(), b"still here");
}

#[test]
fn a_frame_that_is_announced_takes_no_memory_before_it_comes() {
    let resident = || -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let (_toy, server) = serve(one_thread());
    let before = resident();
    let streams: Vec<_> = (0..200).map(|_| socket(server.address())).collect();
    for stream in &streams {
        let mut stream = stream;
        stream.write_all(b"\x04\x00\x00\x00\x80\x01\x00\x01\x00\x00\x00\x04echo\x00\x00\x00\x01").unwrap();
    }
    echo(&mut client(server.address(), Wire::FRAMED_BINARY), b"after all of them").unwrap();
    let more = resident().saturating_sub(before);
    assert!(more < 1 << 30, "200 frames of 64 MiB are announced, and {more} bytes taken");
}

#[test]
fn ending_gently_answers_what_has_come() {
    let (toy, server) = serve(one_thread());
    let stream = socket(server.address());
    let held: Vec<u8> = [
        call(Wire::FRAMED_BINARY, "hold", 0, b""),
        (1..=500).flat_map(|n| call(Wire::FRAMED_BINARY, "echo", n, b"x")).collect(),
    ]
    .concat();
    (&stream).write_all(&held).unwrap();
    toy.wait_until_held();
    let ending = thread::spawn(move || server.shutdown(LONG));
    toy.release();
    for number in 0..=500u32 {
        let frame = read_frame(&stream).unwrap();
        assert_eq!(&frame[12..16], number.to_be_bytes());
    }
    assert!(is_closed(&stream));
    assert!(ending.join().unwrap());
    assert_eq!(toy.executed(), 501);
}

#[test]
fn ending_under_load_answers_all_that_was_executed() {
    let (toy, server) = serve(ServerOptions { threads: 2, ..ServerOptions::default() });
    let address = server.address();
    let answered = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..6)
        .map(|number| {
            let answered = Arc::clone(&answered);
            thread::spawn(move || {
                let mut client = client(address, Wire::ALL[number % 4]);
                while echo(&mut client, &[number as u8; 1000]).is_ok() {
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    while answered.load(Ordering::SeqCst) < 1000 {
        thread::yield_now();
    }
    assert!(server.shutdown(LONG));
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(answered.load(Ordering::SeqCst), toy.executed());
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
}

#[test]
fn ending_has_a_bound_even_if_a_handler_does_not_return() {
    let (toy, server) = serve(one_thread());
    let address = server.address();
    let stream = socket(address);
    (&stream).write_all(&call(Wire::FRAMED_BINARY, "hold", 0, b"")).unwrap();
    toy.wait_until_held();
    assert!(!server.shutdown(Duration::from_millis(10)));
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
    toy.release();
    // The thread ends when the handler returns.
    let mut rest = Vec::new();
    let _ = (&stream).read_to_end(&mut rest);
    drop(stream);
}

#[test]
fn dropping_the_server_ends_it() {
    let (_toy, server) = serve(ServerOptions::default());
    let mut client = client(server.address(), Wire::FRAMED_BINARY);
    echo(&mut client, b"there").unwrap();
    let address = server.address();
    drop(server);
    assert!(echo(&mut client, b"gone").is_err());
    assert!(TcpStream::connect(address).is_err());
}
