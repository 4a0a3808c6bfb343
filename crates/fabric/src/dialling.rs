//! Dialling: one time limit for all addresses of a name, and a second look at a peer that says nothing.

use crate::door::{self, ALERT, Look, TLS_HELLO};
use crate::{Host, RealHost};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Tries the addresses of a name in their order, and returns the first connection. `left` returns the time
/// left of one limit for all addresses; `connect` gets an equal share of it for each address not yet tried,
/// so that an address that does not answer leaves time for the next one. Blocks as `connect` does.
///
/// # Errors
/// The last address's error; "no answer in N s" (`TimedOut`) if that address did not answer or the time is
/// over; `NotFound` without any address.
pub fn first_of<A, T>(
    addresses: &[A],
    left: impl Fn() -> Duration,
    mut connect: impl FnMut(&A, Duration) -> io::Result<T>,
) -> io::Result<T> {
    let within = left();
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for (index, address) in addresses.iter().enumerate() {
        let left = left();
        if left.is_zero() && index > 0 {
            failed = ErrorKind::TimedOut.into();
            break;
        }
        match connect(address, share(left, addresses.len() - index)) {
            Ok(connection) => return Ok(connection),
            Err(error) => failed = error,
        }
    }
    match failed.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Err(no_answer(within)),
        _ => Err(failed),
    }
}

/// Returns the part of the time that is left for one of `addresses` addresses: at least a millisecond,
/// because sockets do not take a limit of zero.
pub fn share(left: Duration, addresses: usize) -> Duration {
    let addresses = u32::try_from(addresses.max(1)).unwrap_or(u32::MAX);
    (left / addresses).max(Duration::from_millis(1))
}

/// Returns the error of a peer that did not answer within this time.
pub fn no_answer(within: Duration) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("no answer in {}", readable(within)))
}

/// Returns a time for a message, in seconds or milliseconds.
pub fn readable(time: Duration) -> String {
    match time.as_millis() {
        0 => "less than 1 ms".to_owned(),
        short @ 1..1000 => format!("{short} ms"),
        long if long % 1000 == 0 => format!("{} s", long / 1000),
        long => format!("{}.{} s", long / 1000, long % 1000 / 100),
    }
}

/// The time for a [`probe`].
pub const PROBE: Duration = Duration::from_secs(1);

/// Connects to a peer that has closed a connection without a word, sends a greeting of TLS, and returns the
/// first bytes of the answer, which [`door::found`] understands. A server of TLS closes in silence after other
/// bytes. Returns no bytes if the peer says nothing to this either, or is a listener of Dunlin, which answers TLS
/// with an alert. Blocks for `most` at the longest.
pub fn probe(place: &SocketAddr, most: Duration) -> Vec<u8> {
    let mut said = Vec::new();
    // A peer that fails has said what it has said.
    let _ = greet(place, most, &mut said);
    if said.starts_with(&ALERT) {
        said.clear();
    }
    said
}

fn greet(place: &SocketAddr, most: Duration, said: &mut Vec<u8>) -> io::Result<()> {
    let until = RealHost.now().saturating_add(most.as_nanos() as u64);
    let left = || Duration::from_nanos(until.saturating_sub(RealHost.now())).max(Duration::from_millis(1));
    let mut socket = TcpStream::connect_timeout(place, left())?;
    socket.set_write_timeout(Some(left()))?;
    socket.write_all(&TLS_HELLO)?;
    let mut piece = [0; door::ENOUGH];
    let is_short = |said: &[u8]| {
        door::recognise(said) == Look::Short || said.len() < ALERT.len() && ALERT.starts_with(said)
    };
    while is_short(said) && RealHost.now() < until {
        socket.set_read_timeout(Some(left()))?;
        match socket.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => said.extend(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::net::TcpListener;

    const SECOND: Duration = Duration::from_secs(1);

    /// Dials three addresses with a limit of six seconds on a clock of its own. `connect` gets the address,
    /// takes the returned time, and fails with this kind. Returns the limits and the error.
    fn dial(outcome: impl Fn(u8, Duration) -> (Duration, ErrorKind)) -> (Vec<Duration>, io::Error, Duration) {
        let (now, mut limits) = (Cell::new(Duration::ZERO), Vec::new());
        let left = || (6 * SECOND).saturating_sub(now.get());
        let error = first_of(&[1, 2, 3], left, |address, limit| -> io::Result<()> {
            limits.push(limit);
            let (took, kind) = outcome(*address, limit);
            now.set(now.get() + took);
            Err(kind.into())
        })
        .expect_err("no address answers");
        (limits, error, now.get())
    }

    #[test]
    fn all_addresses_share_one_limit() {
        let (limits, error, took) = dial(|_, limit| (limit, ErrorKind::TimedOut));
        assert_eq!((limits, took), (vec![2 * SECOND; 3], 6 * SECOND));
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, "no answer in 6 s"));
        // An address that refuses at once leaves its share to the others.
        let refuses = |address, limit| match address {
            1 => (Duration::ZERO, ErrorKind::ConnectionRefused),
            _ => (limit, ErrorKind::TimedOut),
        };
        assert_eq!(dial(refuses).0, [2 * SECOND, 3 * SECOND, 3 * SECOND]);
    }

    #[test]
    fn nothing_is_tried_after_the_limit() {
        let (limits, error, took) = dial(|_, _| (7 * SECOND, ErrorKind::ConnectionRefused));
        assert_eq!((limits.len(), took), (1, 7 * SECOND));
        assert_eq!(error.to_string(), "no answer in 6 s");
    }

    #[test]
    fn the_last_error_counts_and_the_first_success() {
        let (_, error, _) = dial(|_, _| (Duration::ZERO, ErrorKind::ConnectionRefused));
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let second = |address: &u8, _| if *address == 2 { Ok(2) } else { Err(ErrorKind::TimedOut.into()) };
        assert_eq!(first_of(&[1, 2, 3], || SECOND, second).expect("the second answers"), 2);
        let none = first_of(&[], || SECOND, |_: &u8, _| Ok(())).expect_err("none");
        assert_eq!(none.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn times_are_readable() {
        let told = [0, 20, 1000, 5000, 1500].map(|ms| readable(Duration::from_millis(ms)));
        assert_eq!(told, ["less than 1 ms", "20 ms", "1 s", "5 s", "1.5 s"]);
    }

    /// Returns the first bytes of a listener that answers a greeting with these pieces, and closes.
    fn probed(pieces: &[&[u8]]) -> Vec<u8> {
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let place = listener.local_addr().expect("its place");
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a visitor");
            let mut hello = [0; TLS_HELLO.len()];
            socket.read_exact(&mut hello).expect("a greeting");
            pieces.iter().for_each(|piece| socket.write_all(piece).expect("the visitor reads"));
            hello
        });
        let said = probe(&place, 10 * SECOND);
        assert_eq!(server.join().expect("no panic"), TLS_HELLO);
        said
    }

    #[test]
    fn a_second_look_tells_tls_from_silence() {
        let tls =
            Some("this is a server of TLS; use the address of a Dunlin server: look at host and port of h:1");
        for pieces in [&[&b"\x15\x03\x03\0\x02\x02\x28"[..]][..], &[b"\x16", b"\x03\x03\0\x28\x02"]] {
            assert_eq!(door::found(&probed(pieces), "h:1").as_deref(), tls);
        }
        assert_eq!(probed(&[]), b"");
        // A server of Dunlin that has just been started again may have executed a call before its end.
        assert_eq!(probed(&[&ALERT]), b"");
        assert_eq!(probed(&[&ALERT[..2], &ALERT[2..]]), b"");
        assert_eq!(door::found(&probed(&[b"?!"]), "h:1"), None);
    }

    #[test]
    fn a_second_look_at_a_dumb_peer_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let place = listener.local_addr().expect("its place");
        assert_eq!(probe(&place, Duration::from_millis(20)), b"");
        drop(listener);
        assert_eq!(probe(&place, SECOND), b"");
    }
}
