//! The client with misbehaving servers.

use super::service::{Answer, Payload, Toy, ToyError, message};
use crate::head::{Head, REPLY, sequence};
use crate::{Connection, ConnectionOptions, Server, ServerOptions};
use dunlin_rpc::{Cause, Certainty};
use dunlin_thrift_core::{CallError, TcpError, Wire};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

fn options(wire: Wire) -> ConnectionOptions {
    ConnectionOptions { wire, message_limit: 1 << 20, ..ConnectionOptions::default() }
}

/// A server that reads part of each call and then runs the given act, one per connection.
fn server(acts: Vec<Box<dyn FnOnce(TcpStream) + Send>>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        for act in acts {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            act(stream);
        }
    });
    (address, thread)
}

/// Returns an answer to the client's call of this number.
fn answer(wire: Wire, name: &'static str, kind: u8, number: u64) -> Vec<u8> {
    // An exception has the same encoding as the arguments.
    message(wire, Head { name: name.as_bytes(), kind, sequence: sequence(number), old: false }, b"refused")
}

fn echo(client: &mut Connection) -> Result<Vec<u8>, ToyError> {
    client.call::<_, Answer, ToyError>("echo", &Payload(b"x"))
}

#[test]
fn what_a_handler_keeps_stays_as_it_was() {
    let toy = Toy::new();
    let server = Server::bind("127.0.0.1:0", Arc::clone(&toy), ServerOptions::default()).unwrap();
    for wire in Wire::ALL {
        let mut client = Connection::connect(&server.address().to_string(), options(wire)).unwrap();
        let payloads: Vec<Vec<u8>> = (1..5).map(|fill| vec![fill; 100_000 * usize::from(fill)]).collect();
        for payload in &payloads {
            assert_eq!(client.call::<_, Answer, ToyError>("echo", &Payload(payload)).unwrap(), *payload);
        }
        assert_eq!(std::mem::take(&mut *toy.kept.lock().unwrap()), payloads, "{wire:?}");
    }
}

#[test]
fn a_server_that_dies_during_a_call_is_an_error_and_the_next_call_connects_again() {
    for wire in Wire::ALL {
        let whole = answer(wire, "echo", REPLY, 3);
        let half = answer(wire, "echo", REPLY, 2)[..9].to_vec();
        let (address, thread) = server(vec![
            Box::new(drop),
            // The client looks a second time at a server that has said nothing.
            Box::new(drop),
            Box::new(move |mut stream| stream.write_all(&half).unwrap()),
            Box::new(move |mut stream| stream.write_all(&whole).unwrap()),
        ]);
        let mut client = Connection::connect(&address.to_string(), options(wire)).unwrap();
        for _ in 0..2 {
            let error = echo(&mut client).unwrap_err();
            assert!(matches!(error, ToyError::Call(CallError::Tcp(TcpError::Broken { .. }))), "{error}");
            assert_eq!(error.certainty(), Certainty::MaybeExecuted);
        }
        let refused = echo(&mut client).unwrap_err();
        assert!(matches!(refused, ToyError::Refused(why) if why == b"refused"));
        thread.join().unwrap();
        // The server has closed the connection and no longer listens.
        thread::sleep(Duration::from_millis(20));
        let error = echo(&mut client).unwrap_err();
        assert!(matches!(error, ToyError::Call(CallError::Tcp(TcpError::Connect { .. }))), "{error}");
        assert_eq!(error.certainty(), Certainty::NotExecuted);
    }
}

#[test]
fn answers_that_are_none_are_errors() {
    let wire = Wire::FRAMED_BINARY;
    let cases: [(&str, Vec<u8>); 8] = [
        ("sequence number", answer(wire, "echo", REPLY, 7)),
        ("of 'other'", answer(wire, "other", REPLY, 1)),
        ("type is 1", answer(wire, "echo", 1, 1)),
        ("frame", vec![0x7f, 0xff, 0xff, 0xff]),
        ("frame", vec![0, 0, 0, 0]),
        ("frame", (1u32 << 20 | 1).to_be_bytes().to_vec()),
        ("version", b"\x00\x00\x00\x0a\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00".to_vec()),
        ("ends within its head", b"\x00\x00\x00\x04\x80\x01\x00\x02".to_vec()),
    ];
    for (expected, bytes) in cases {
        let (address, thread) = server(vec![Box::new(move |mut stream| stream.write_all(&bytes).unwrap())]);
        let mut client = Connection::connect(&address.to_string(), options(wire)).unwrap();
        let error = echo(&mut client).unwrap_err();
        assert!(
            matches!(&error, ToyError::Call(CallError::Tcp(TcpError::Answer { why, .. })) if why.contains(expected)),
            "{error}"
        );
        assert_eq!(error.certainty(), Certainty::MaybeExecuted);
        thread.join().unwrap();
    }
    // An undecodable result fails its call only; the connection remains usable.
    let mut unreadable = answer(wire, "echo", REPLY, 1);
    let end = unreadable.len();
    unreadable[end - 12..end - 8].copy_from_slice(&[0x7f; 4]);
    let (address, thread) = server(vec![Box::new(move |mut stream| {
        stream.write_all(&unreadable).unwrap();
        let _ = stream.read(&mut [0; 1024]).unwrap();
        stream.write_all(&answer(wire, "echo", REPLY, 2)).unwrap();
    })]);
    let mut client = Connection::connect(&address.to_string(), options(wire)).unwrap();
    assert!(matches!(echo(&mut client), Err(ToyError::Call(CallError::Decode(_)))));
    assert!(matches!(echo(&mut client), Err(ToyError::Refused(_))));
    thread.join().unwrap();
}

#[test]
fn a_call_has_its_time_and_no_more() {
    for wire in Wire::ALL {
        let drops = answer(wire, "echo", REPLY, 2);
        let (address, thread) = server(vec![
            // Sends nothing until the client has disconnected.
            Box::new(|mut stream| drop(stream.read(&mut [0; 1]))),
            // Sends so slowly that each byte arrives in time, but the answer does not.
            Box::new(move |mut stream| {
                let gone = drops.iter().any(|byte| {
                    thread::sleep(Duration::from_millis(10));
                    stream.write_all(&[*byte]).is_err()
                });
                assert!(gone || stream.read(&mut [0; 1]).is_ok_and(|read| read == 0));
            }),
        ]);
        let options = ConnectionOptions { call_timeout: Some(Duration::from_millis(50)), ..options(wire) };
        let mut client = Connection::connect(&address.to_string(), options).unwrap();
        for _ in 0..2 {
            let error = echo(&mut client).unwrap_err();
            assert!(
                matches!(
                    error,
                    ToyError::Call(CallError::Transport(dunlin_rpc::CallError::MaybeExecuted(
                        Cause::DeadlineExceeded
                    )))
                ),
                "{error}"
            );
            assert_eq!(error.certainty(), Certainty::MaybeExecuted);
        }
        drop(client);
        thread.join().unwrap();
    }
}

/// Calls with a time of their own beside the usual one of 10 seconds: the same errors as in the engine.
#[test]
fn a_call_may_have_a_time_of_its_own() {
    let (address, thread) = server(vec![Box::new(|mut stream| drop(stream.read(&mut [0; 1])))]);
    let mut client = Connection::connect(&address.to_string(), ConnectionOptions::default()).unwrap();
    let mut within = |time| {
        let called = client.call_within::<_, Answer, ToyError>(Some(time), "echo", &Payload(b"x"));
        match called.unwrap_err() {
            ToyError::Call(CallError::Transport(error)) => error,
            other => panic!("{other}"),
        }
    };
    let over = dunlin_rpc::CallError::NotExecuted(Cause::DeadlineExceeded);
    assert_eq!(within(Duration::ZERO), over, "nothing was sent, and the connection is used again");
    let late = dunlin_rpc::CallError::MaybeExecuted(Cause::DeadlineExceeded);
    assert_eq!(within(Duration::from_millis(20)), late);
    drop(client);
    thread.join().unwrap();
}

#[test]
fn a_server_that_was_started_again_is_found_again() {
    let toy = Toy::new();
    let first = Server::bind("127.0.0.1:0", Arc::clone(&toy), ServerOptions::default()).unwrap();
    let address = first.address().to_string();
    let mut client = Connection::connect(&address, options(Wire::UNFRAMED_COMPACT)).unwrap();
    assert_eq!(echo(&mut client).unwrap(), b"x");
    drop(first);
    let _second = Server::bind(&address, toy, ServerOptions::default()).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(echo(&mut client).unwrap(), b"x");
}

#[test]
fn who_sends_more_than_may_be_is_told_before_anything_is_sent() {
    let (address, thread) = server(vec![Box::new(|mut stream| {
        stream.write_all(&answer(Wire::FRAMED_COMPACT, "echo", REPLY, 2)).unwrap();
    })]);
    let mut client = Connection::connect(&address.to_string(), options(Wire::FRAMED_COMPACT)).unwrap();
    let error = client.call::<_, Answer, ToyError>("echo", &Payload(&vec![0; 1 << 20])).unwrap_err();
    assert!(
        matches!(&error, ToyError::Call(CallError::Encode(why)) if why.message().contains("message_limit")),
        "{error}"
    );
    assert_eq!(error.certainty(), Certainty::NotExecuted);
    assert!(matches!(echo(&mut client), Err(ToyError::Refused(_))));
    thread.join().unwrap();
}

#[test]
fn nobody_there_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = Connection::connect(&address, options(Wire::FRAMED_BINARY)).unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    assert!(Connection::connect("no port", options(Wire::FRAMED_BINARY)).is_err());
}
