//! The listener of an `auto:` address: tells each client that asks the addresses of the server on each
//! fabric. It refuses visitors with another protocol in that protocol, and is bounded in connections, bytes
//! and time.

use dunlin_fabric::door::{self, Door, Look, Visitors};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time in which a visitor must ask. Clients of older builds ask nothing and get the answer then.
const QUESTION_WITHIN: Duration = Duration::from_millis(250);
/// The time in which a visitor must take its answer and close.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);
/// The most visitors at a time. The oldest one leaves when another one comes.
const MAX_VISITS: usize = 64;
/// The most bytes that are read from a visitor after its answer.
const MAX_DISCARDED: usize = 64 << 10;
/// The most bytes that are read of a visitor's first words.
const FIRST_WORDS: usize = 512;

/// Sends the announcement to each client that connects to the address. Dropping it stops the thread and frees
/// the address.
#[derive(Debug)]
pub(crate) struct Teller {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Teller {
    /// Starts the thread. `announcement` is the answer to a question.
    pub(crate) fn start(listener: TcpListener, announcement: Vec<u8>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stop = Arc::new(stop);
        let desk = Desk { listener, announcement, visits: Vec::new(), visitors: Visitors::default() };
        let stopped = Arc::clone(&stop);
        let body = move || desk.run(&stopped);
        let thread = std::thread::Builder::new().name("dunlin-auto".into()).spawn(body)?;
        Ok(Teller { stop, thread: Some(thread) })
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        // Cannot fail: the counter is written only once.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread has logged any error.
            let _ = thread.join();
        }
    }
}

/// A connection.
#[derive(Debug)]
struct Visit {
    socket: TcpStream,
    /// The end of the present step.
    until: Instant,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The first bytes of a visitor that has not been answered.
    Asking(Vec<u8>),
    /// The visitor has its answer. Its further bytes are discarded, so that the system does not reset the
    /// connection before the visitor has read the answer. The value is their number so far.
    Leaving(usize),
}

/// The state of the thread.
struct Desk {
    listener: TcpListener,
    announcement: Vec<u8>,
    /// The oldest first.
    visits: Vec<Visit>,
    visitors: Visitors,
}

impl Desk {
    fn run(mut self, stop: &OwnedFd) {
        loop {
            if self.accept().is_err() {
                // Most likely out of descriptors. The socket stays readable, so wait instead of spinning.
                let mut only_stop = [PollFd::new(stop, PollFlags::IN)];
                let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                if rustix::event::poll(&mut only_stop, Some(&pause)).is_ok_and(|count| count > 0) {
                    return;
                }
            }
            let now = Instant::now();
            let next = self.visits.iter().map(|visit| visit.until).min();
            let timeout = next.map(|next| {
                let left = next.saturating_duration_since(now);
                Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() }
            });
            let ready = {
                let mut all =
                    vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
                all.extend(self.visits.iter().map(|visit| PollFd::new(&visit.socket, PollFlags::IN)));
                // After an interrupt, nothing is ready and the loop polls again.
                let _ = rustix::event::poll(&mut all, timeout.as_ref());
                if !all[1].revents().is_empty() {
                    return;
                }
                all[2..].iter().map(|one| !one.revents().is_empty()).collect::<Vec<_>>()
            };
            let now = Instant::now();
            for index in (0..self.visits.len()).rev() {
                let late = self.visits[index].until <= now;
                if (ready[index] || late) && !self.serve(index, late, now) {
                    self.visits.remove(index);
                }
            }
        }
    }

    /// Accepts the waiting connections.
    fn accept(&mut self) -> io::Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error)
                    if [ErrorKind::Interrupted, ErrorKind::ConnectionAborted].contains(&error.kind()) =>
                {
                    continue;
                }
                Err(error) => {
                    tracing::warn!(target: "dunlin::transport", %error, "cannot answer who asks for our fabrics; raise `ulimit -n`?");
                    return Err(error);
                }
            };
            if let Err(error) = socket.set_nonblocking(true) {
                tracing::debug!(target: "dunlin::transport", %error, "a visitor is dropped");
                continue;
            }
            let now = Instant::now();
            if self.visits.len() == MAX_VISITS {
                self.serve(0, true, now);
                self.visits.remove(0);
            }
            self.visits.push(Visit { socket, until: now + QUESTION_WITHIN, step: Step::Asking(Vec::new()) });
        }
    }

    /// Takes the bytes of a visitor; `late` ends its step. Returns whether the visit goes on.
    fn serve(&mut self, index: usize, late: bool, now: Instant) -> bool {
        let visit = &mut self.visits[index];
        match &mut visit.step {
            Step::Leaving(discarded) => !late && discard(&visit.socket, discarded),
            Step::Asking(bytes) => {
                let more = read(&visit.socket, bytes);
                let look = door::recognise(bytes);
                if look == Look::Short && more && !late {
                    return true;
                }
                let answered = if bytes.is_empty() || look == Look::Is(Door::AutoClient) {
                    say(&visit.socket, &self.announcement)
                } else {
                    refuse(&visit.socket, bytes, &self.visitors)
                };
                if let Err(error) = answered {
                    tracing::debug!(target: "dunlin::transport", %error, "one who asked for our fabrics has gone");
                    return false;
                }
                (visit.step, visit.until) = (Step::Leaving(0), now + LEAVE_WITHIN);
                more
            }
        }
    }
}

/// Sends an answer and ends this side of the connection. The answer fits into the send buffer of a new
/// socket, so no visitor can block the thread.
fn say(mut socket: &TcpStream, answer: &[u8]) -> io::Result<()> {
    socket.write_all(answer)?;
    socket.shutdown(Shutdown::Write)
}

/// Refuses a visitor with another protocol; logs the first of each kind.
fn refuse(socket: &TcpStream, bytes: &[u8], visitors: &Visitors) -> io::Result<()> {
    let place = socket.local_addr().map(|place| place.to_string()).unwrap_or_default();
    let text = Door::AutoServer.found_at(&place);
    let (visitor, peer) = (door::described(bytes), socket.peer_addr().ok());
    if visitors.is_first(bytes) {
        tracing::warn!(target: "dunlin::transport", ?peer, "{visitor} came to {place} and is refused: {text}");
    } else {
        tracing::debug!(target: "dunlin::transport", ?peer, "{visitor} came to {place} and is refused");
    }
    say(socket, &door::refusal(bytes, &text))
}

/// Reads first words. Returns whether more may come.
fn read(mut socket: &TcpStream, bytes: &mut Vec<u8>) -> bool {
    let mut buffer = [0; FIRST_WORDS];
    while bytes.len() < FIRST_WORDS {
        match socket.read(&mut buffer[..FIRST_WORDS - bytes.len()]) {
            Ok(0) => return false,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
    true
}

/// Reads and discards bytes. Returns whether more may come.
fn discard(mut socket: &TcpStream, discarded: &mut usize) -> bool {
    let mut buffer = [0; 4096];
    while *discarded < MAX_DISCARDED {
        match socket.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => *discarded += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    const ANSWER: &[u8] = b"DunlinAU and more";

    fn start() -> (Teller, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("bound");
        (Teller::start(listener, ANSWER.to_vec()).expect("starts"), place)
    }

    /// Connects, sends these bytes, and returns the answer up to the end of the connection.
    fn answer(place: SocketAddr, words: &[u8]) -> Vec<u8> {
        let mut socket = TcpStream::connect(place).expect("connects");
        socket.write_all(words).expect("room");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).expect("an answer and an end");
        answer
    }

    #[test]
    fn who_asks_and_who_says_nothing_get_the_announcement() {
        let (_teller, place) = start();
        assert_eq!(answer(place, &door::AUTO_QUESTION), ANSWER);
        // Bytes behind the question are discarded.
        assert_eq!(answer(place, b"DunlinAQ\r\n\r\n"), ANSWER);
        assert_eq!(answer(place, b""), ANSWER);
    }

    #[test]
    fn a_visitor_with_another_protocol_is_refused_in_that_protocol() {
        let (_teller, place) = start();
        let auto = format!("use auto:{place}");
        for (words, begin) in [
            (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &b"HTTP/1.1 400 "[..]),
            (b"SSH-2.0-OpenSSH_9.2\r\n", b"this is an auto: address"),
            (b"\x0b\0\0\0\x01DunlinRD\x03\0", b"DunlinNO"),
            (b"\x80\x01\0\x01\0\0\0\x04echo\0\0\0\x05\0", b"\x80\x01\0\x03\0\0\0\x04echo\0\0\0\x05"),
        ] {
            let answer = answer(place, words);
            assert!(answer.starts_with(begin), "{}", answer.escape_ascii());
            assert!(String::from_utf8_lossy(&answer).contains(&auto), "{}", answer.escape_ascii());
        }
        assert_eq!(answer(place, b"\x16\x03\x01\x02\0\x01"), [0x15, 3, 1, 0, 2, 2, 40]);
        assert_eq!(answer(place, b"hello, world"), b"");
    }

    /// Silent peers, peers that send without end, and more peers than visits: a client is answered all the
    /// same.
    #[test]
    fn no_visitor_holds_up_another() {
        let (_teller, place) = start();
        let silent: Vec<_> =
            (0..3 * MAX_VISITS).map(|_| TcpStream::connect(place).expect("connects")).collect();
        let mut flood = TcpStream::connect(place).expect("connects");
        // The listener reads a part of it and closes. The rest fails, or stays in buffers.
        let _ = flood.write_all(&[0; 1 << 20]);
        assert_eq!(answer(place, &door::AUTO_QUESTION), ANSWER);
        // The silent peers are answered and left.
        for mut socket in silent {
            let mut answer = Vec::new();
            let end = socket.read_to_end(&mut answer);
            assert!(end.is_err() || answer == ANSWER, "{}", answer.escape_ascii());
        }
    }
}
