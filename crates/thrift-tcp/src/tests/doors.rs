//! Visitors without Thrift at the server, and clients at servers without Thrift.

use super::service::{Answer, Payload, Toy, ToyError};
use crate::client::wrong_door;
use crate::{AsyncConnection, Connection, ConnectionOptions, Server, ServerOptions};
use dunlin_rpc::Certainty;
use dunlin_thrift_core::{CallError, TcpError, Wire};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Sends words to the server and returns its answer.
fn visit(server: &Server<Toy>, words: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(server.address()).unwrap();
    // The server closes before it has read all of many words.
    let _ = socket.write_all(words);
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => answer,
    }
}

#[test]
fn a_server_refuses_visitors_in_their_protocol() {
    let toy = Toy::new();
    let server = Server::bind("127.0.0.1:0", Arc::clone(&toy), ServerOptions::default()).unwrap();
    let text = format!("use tcp:{} with a typed client; it serves 'Toy'", server.address());
    for (words, begin) in [
        (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &b"HTTP/1.1 400 "[..]),
        (b"SSH-2.0-x\r\n", b"this is a server of stock Thrift; "),
        (b"DunlinAQ", b"DunlinNO"),
        (b"\x0b\0\0\0\x01DunlinRD\x03\0", b"DunlinNO"),
        (b"\x0b\0\0\0\x01DunlinOF\x03\0", b"DunlinNO"),
    ] {
        let answer = visit(&server, words);
        assert!(answer.starts_with(begin), "{}", answer.escape_ascii());
        assert!(String::from_utf8_lossy(&answer).contains(&text), "{}", answer.escape_ascii());
    }
    assert_eq!(visit(&server, b"\x16\x03\x01\x02\0\x01"), [0x15, 3, 1, 0, 2, 2, 40]);
    // THeader gets an exception of Thrift.
    let answer = visit(&server, b"\0\0\0\x20\x0f\xff\0\0");
    assert!(String::from_utf8_lossy(&answer).contains("it speaks THeader"), "{}", answer.escape_ascii());
    for words in [&[0; 1 << 20][..], b"hello, server"] {
        assert_eq!(visit(&server, words), b"");
    }
    assert_eq!(toy.executed(), 0);
    let mut client = Connection::connect(&server.address().to_string(), Default::default()).unwrap();
    assert_eq!(client.call::<_, Answer, ToyError>("echo", &Payload(b"in")).unwrap(), b"in");
}

/// A server that sends these words to each connection.
fn impostor(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            std::thread::spawn(move || {
                // A word that comes before the call, as that of an SSH server, would make the client connect
                // again.
                let _ = socket.read(&mut [0; 64]);
                let _ = socket.write_all(words);
                while socket.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
            });
        }
    });
    address
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::yield_now();
    }
}

/// A long frame whose length looks like another protocol is an answer.
#[test]
fn a_length_is_not_taken_for_another_protocol() {
    for length in [&b"\x15\x03\x03\x00"[..], b"\x16\x03\x01\x00", b"SSH-", b"HTTP"] {
        assert!(!matches!(wrong_door(length, "h:1"), Ok(Some(_))));
        for message in [&b"\x80\x01\0\x02"[..], b"\x82\x41", b"\0\0\0\x04echo"] {
            let frame = [length, message].concat();
            assert!(matches!(wrong_door(&frame, "h:1"), Ok(None)), "{}", frame.escape_ascii());
        }
    }
    assert!(matches!(wrong_door(b"SSH-2", "h:1"), Ok(Some(_))));
}

/// A server that hands the first bytes of each connection to `answer`, which may wait for more, and closes.
fn listener(answer: impl Fn(&[u8], &mut TcpStream) -> Vec<u8> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut piece = [0; 256];
            let Ok(count) = socket.read(&mut piece) else { continue };
            let answer = answer(&piece[..count], &mut socket);
            let _ = socket.write_all(&answer);
        }
    });
    address
}

/// Returns the errors of a blocking and an asynchronous client's first call.
fn first_calls(address: &str, wire: Wire) -> [TcpError; 2] {
    let options = ConnectionOptions { wire, ..ConnectionOptions::default() };
    let mut client = Connection::connect(address, options.clone()).unwrap();
    let blocking = client.call::<_, Answer, ToyError>("echo", &Payload(b"in"));
    let client = AsyncConnection::connect(address, options).unwrap();
    let future = wait(client.call::<_, Answer, ToyError>("echo", &Payload(b"in")));
    [blocking, future].map(|result| match result {
        Err(ToyError::Call(CallError::Tcp(error))) => error,
        other => panic!("{other:?}"),
    })
}

/// A server of TLS closes in silence after bytes that are no TLS.
#[test]
fn a_server_of_tls_that_closes_in_silence_is_named() {
    let address = listener(|said, _| match said {
        [0x16, 3, ..] => b"\x16\x03\x03\0\x28\x02\0\0\x24\x03\x03".to_vec(),
        _ => Vec::new(),
    });
    for error in Wire::ALL.into_iter().flat_map(|wire| first_calls(&address, wire)) {
        assert!(error.to_string().contains("this is a server of TLS"), "{error}");
        assert_eq!(error.certainty(), Certainty::NotExecuted);
    }
}

/// A server that ends during a call may have executed it, whoever answers at its place then.
#[test]
fn a_server_that_closes_in_silence_may_have_executed_the_call() {
    let own_alert = dunlin_fabric::door::refusal(b"\x16\x03\x01\x02\0\x01", "");
    let alert = listener(move |said, _| if said[0] == 0x16 { own_alert.clone() } else { Vec::new() });
    // A stock server answers with a message of Thrift, if at all.
    let thrift = listener(|said, _| match said {
        [0x16, ..] => b"\x80\x01\0\x03\0\0\0\0\0\0\0\0\0".to_vec(),
        _ => Vec::new(),
    });
    let silent = listener(|_, _| Vec::new());
    for error in [alert, thrift, silent].iter().flat_map(|address| first_calls(address, Wire::FRAMED_BINARY))
    {
        assert!(matches!(error, TcpError::Broken { .. }), "{error}");
        assert_eq!(error.certainty(), Certainty::MaybeExecuted);
    }
}

/// A web server answers nothing before the end of a line, and each call has one.
#[test]
fn a_web_server_that_reads_a_line_is_named() {
    let address = listener(|said, socket| {
        let mut last = *said.last().unwrap();
        while !said.contains(&b'\n') && last != b'\n' {
            let mut byte = [0];
            if socket.read(&mut byte).unwrap() == 0 {
                return Vec::new();
            }
            last = byte[0];
        }
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()
    });
    for error in Wire::ALL.into_iter().flat_map(|wire| first_calls(&address, wire)) {
        assert!(error.to_string().contains("this is a web server (HTTP)"), "{error}");
        assert_eq!(error.certainty(), Certainty::NotExecuted);
    }
}

#[test]
fn a_client_names_what_it_finds_and_was_not_executed() {
    for (words, part) in [
        (&b"DunlinAU\x01\0\0\0"[..], "this is an auto: address of a Dunlin server; use auto:127.0.0.1:"),
        (b"\x0b\0\0\0\x01DunlinRD\x03\0", "use rdma:127.0.0.1:"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "this is a web server (HTTP)"),
        (b"<!DOCTYPE HTML>\n<html lang=\"en\">\n", "this is a web server (HTTP)"),
        (b"\x15\x03\x03\0\x02\x02\x28", "this is a server of TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "this is an SSH server"),
        (b"DunlinNO\x05\0words", "words"),
    ] {
        let address = impostor(words);
        for wire in Wire::ALL {
            for error in first_calls(&address, wire) {
                assert!(matches!(error, TcpError::WrongDoor { .. }), "{error}");
                assert_eq!(error.certainty(), Certainty::NotExecuted);
                assert!(error.to_string().contains(part), "{error}");
            }
        }
    }
}
