//! Listeners and diallers at wrong doors, with a back-end without a device.

use crate::{Backend, Control, Greeting, Limits, Place};
use dunlin_fabric::{
    Access, Address, DialError, GrantError, Host, Link, Listener, Memory, Nanos, RealHost, Scheme,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that nobody registers.
#[derive(Debug)]
struct Nothing;

// SAFETY: it has no bytes.
unsafe impl Memory for Nothing {
    fn base(&self) -> NonNull<u8> {
        NonNull::dangling()
    }
    fn length(&self) -> usize {
        0
    }
    fn access(&self) -> Access {
        Access::LOCAL
    }
}

#[derive(Debug)]
struct Fake {
    greeting: Greeting,
    patience: Nanos,
}

impl Backend for Fake {
    type Memory = Nothing;
    type Registration = ();
    const SCHEME: Scheme = Scheme::Rdma;
    const THREAD: &'static str = "fake-control";

    fn greeting(&self) -> Greeting {
        self.greeting
    }
    fn limits(&self) -> Limits {
        Limits { max_grants: 4, greeting_patience: self.patience }
    }
    fn grant(&self, _: &Arc<Nothing>, _: Access) -> Result<((), Place), GrantError> {
        Err(GrantError::Access)
    }
}

const LONG: Nanos = 30_000_000_000;
const RDMA: Greeting = Greeting { magic: *b"DunlinRD", version: 3 };
const OFI: Greeting = Greeting { magic: *b"DunlinOF", version: 3 };

fn control(greeting: Greeting, patience: Nanos) -> Arc<Control<Fake>> {
    Control::start(Arc::new(Fake { greeting, patience })).expect("starts")
}

fn rdma(port: u16) -> Address {
    Address::new(Scheme::Rdma, &format!("127.0.0.1:{port}")).expect("an address")
}

fn dial(control: &Arc<Control<Fake>>, port: u16, within: Nanos) -> Result<crate::TcpLink<Fake>, DialError> {
    control.dial(&rdma(port), ("127.0.0.1", port), RealHost.now() + within)
}

/// Serves one connection: sends these words and reads until the dialler leaves.
fn impostor(words: &'static [u8], leaves: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("dialled");
        let _ = socket.write_all(words);
        if !leaves {
            while socket.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        }
    });
    port
}

#[test]
fn a_dialler_names_what_it_finds() {
    let control = control(RDMA, LONG);
    for (words, part) in [
        (&b"HTTP/1.1 400 Bad Request\r\n"[..], "this is a web server (HTTP)"),
        (b"\x15\x03\x01\0\x02\x02\x28", "this is a server of TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "this is an SSH server"),
        (b"DunlinAU\x01\0\0\0", "use auto:127.0.0.1:"),
        (b"\0\0\0\x20\x80\x01\0\x03\0\0\0\0", "use tcp:127.0.0.1:"),
        (b"\x0b\0\0\0\x01DunlinOF\x03\0", "use ofi:PROVIDER:127.0.0.1:"),
        (b"DunlinNO\x0b\0words of it", "words of it"),
    ] {
        let error = dial(&control, impostor(words, false), LONG).expect_err("no server of this fabric");
        let DialError::WrongDoor { address, found } = &error else { panic!("{error}") };
        assert!(found.contains(part), "{found}");
        assert!(error.to_string().starts_with(&format!("{address}: ")), "{error}");
    }
    for words in [&b""[..], b"hello, who is there?"] {
        let error = dial(&control, impostor(words, true), LONG).expect_err("no server of this fabric");
        assert!(matches!(error, DialError::NoGreeting { .. }), "{error}");
    }
    let error = dial(&control, impostor(b"", false), 300_000_000).expect_err("silence");
    assert!(matches!(error, DialError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("no answer in 300 ms") || error.to_string().contains("29"), "{error}");
}

#[test]
fn another_fabric_and_another_version_are_told_apart() {
    let (ours, other) = (control(RDMA, LONG), control(OFI, LONG));
    let listener = ours.listen(&rdma(0), ("", "127.0.0.1", 0)).expect("listens");
    let (_, port) = listener.address().host_and_port().map(|(h, p)| (h.to_owned(), p)).expect("a port");
    let error = dial(&other, port, LONG).expect_err("another fabric");
    let DialError::WrongDoor { found, .. } = &error else { panic!("{error}") };
    assert!(found.contains("on RDMA") && found.contains(&format!("use rdma:127.0.0.1:{port}")), "{found}");
    let newer = control(Greeting { version: 4, ..RDMA }, LONG);
    let error = dial(&newer, port, LONG).expect_err("another version");
    assert!(matches!(error, DialError::Version { ours: 4, theirs: 3, .. }), "{error}");
    let link = dial(&ours, port, LONG).expect("the same fabric");
    let accepted = listener.accept(RealHost.now() + LONG).expect("accepted");
    link.send(b"hello").expect("sent");
    assert_eq!(accepted.receive(RealHost.now() + LONG).expect("received"), b"hello");
}

/// Sends words to the listener and returns its answer.
fn visit(port: u16, words: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    // The listener closes before it has read all of many words.
    let _ = socket.write_all(words);
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => answer,
    }
}

#[test]
fn a_listener_refuses_visitors_in_their_protocol_and_goes_on() {
    let control = control(RDMA, 200_000_000);
    let listener = control.listen(&rdma(0), ("", "127.0.0.1", 0)).expect("listens");
    let port = listener.address().host_and_port().expect("a port").1;
    let place = format!("use rdma:127.0.0.1:{port}");
    // Silent peers, which are dropped when their time is over.
    let silent: Vec<_> =
        (0..20).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("connects")).collect();
    for (words, begin) in [
        (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &b"HTTP/1.1 400 "[..]),
        (b"\0\0\0\x15\x80\x01\0\x01\0\0\0\x04echo\0\0\0\x05\0", b"\0\0\0"),
        (b"\x82\x21\x05\x04echo\0", b"\x82\x61\x05\x04echo"),
        (b"SSH-2.0-x\r\n", b"this is "),
        (b"DunlinAQ", b"DunlinNO"),
    ] {
        let answer = visit(port, words);
        assert!(answer.starts_with(begin), "{}", answer.escape_ascii());
        assert!(String::from_utf8_lossy(&answer).contains(&place), "{}", answer.escape_ascii());
    }
    assert_eq!(visit(port, b"\x16\x03\x01\x02\0\x01"), [0x15, 3, 1, 0, 2, 2, 40]);
    assert_eq!(visit(port, &[0; 1 << 20]), b"");
    let link = dial(&control, port, LONG).expect("the door is open");
    assert!(listener.accept(RealHost.now() + LONG).expect("accepted").is_alive());
    drop(link);
    for mut socket in silent {
        assert_eq!(socket.read(&mut [0; 8]).expect("closed"), 0);
    }
}
