//! The thread of an asynchronous client: owns non-blocking sockets, each with at most one call.

use crate::asynchronous::{Answer, Shared, Ticket};
use crate::client::{FIRST_WAIT, KEEP, LONGEST_WAIT, check_answer, is_stale, wrong_door};
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::split::{Next, Splitter};
use dunlin_fabric::dialling::{no_answer, share};
use dunlin_fabric::{Host, RealHost, WithSources};
use dunlin_thrift_core::TcpError;
use pilota::Bytes;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Event token of the wake-up; connections have tokens from 0.
const BELL: u64 = u64::MAX;
/// The number of events taken at a time.
const EVENTS: usize = 64;
/// The number of receives per event of one connection before other connections are served.
const RECEIVES: usize = 16;

/// The state of the thread.
pub(crate) struct ClientLoop {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    /// Slots for the maximum number of connections.
    links: Vec<Option<Link>>,
    /// The token of the next connection. Tokens are not reused, so that late events of a closed connection
    /// are ignored.
    next_number: u64,
    /// Calls that found no connection and wait for one, oldest first.
    delayed: VecDeque<Call>,
    /// The last failure to connect, until a connect succeeds. Only with `wait_for_ready`.
    outage: Option<Outage>,
    /// Wakers to call once no lock is held.
    woken: Vec<Waker>,
}

/// The server cannot be reached.
struct Outage {
    error: Arc<io::Error>,
    /// The next attempt is made then.
    not_before: Instant,
    /// The wait that preceded it.
    wait: Duration,
}

/// A connection.
struct Link {
    number: u64,
    stream: TcpStream,
    place: SocketAddr,
    /// The events that it waits for.
    interest: epoll::EventFlags,
    splitter: Splitter,
    incoming: Incoming,
    /// Whether the server has answered a call on this connection.
    answered: bool,
    phase: Phase,
}

enum Phase {
    Idle,
    Connecting {
        call: Call,
        /// The index of the address to try next.
        next: usize,
        /// The end of this address's share of the time.
        share: Instant,
        until: Instant,
    },
    Sending(Call),
    Receiving(Arc<Ticket>),
}

/// A call that has not been fully sent.
struct Call {
    ticket: Arc<Ticket>,
    message: Outgoing<'static>,
    sent: usize,
}

impl Phase {
    fn ticket(&self) -> Option<&Arc<Ticket>> {
        match self {
            Phase::Idle => None,
            Phase::Connecting { call, .. } | Phase::Sending(call) => Some(&call.ticket),
            Phase::Receiving(ticket) => Some(ticket),
        }
    }

    fn until(&self) -> Option<Instant> {
        match self {
            Phase::Connecting { share, .. } => Some(*share),
            other => other.ticket().map(|ticket| ticket.deadline),
        }
    }
}

impl ClientLoop {
    /// Creates the loop, with a connection if one is established.
    pub(crate) fn new(shared: Arc<Shared>, stream: Option<TcpStream>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &shared.bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let links = (0..shared.options.connections.max(1)).map(|_| None).collect();
        let (delayed, outage, woken) = (VecDeque::new(), None, Vec::new());
        let mut this = ClientLoop { shared, epoll, links, next_number: 0, delayed, outage, woken };
        if let Some(stream) = stream {
            stream.set_nonblocking(true)?;
            let place = stream.peer_addr()?;
            this.adopt(0, (stream, place), Phase::Idle, epoll::EventFlags::IN)?;
        }
        Ok(this)
    }

    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.shared.state().ended {
            // One reading for both, so that no attempt falls due between them.
            let now = Instant::now();
            self.assign(now);
            self.wake();
            let left = self.until(now).map(|until| {
                // Rounded up, since an early wake-up would be spurious.
                let left = until.saturating_duration_since(Instant::now()) + Duration::from_micros(100);
                Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() }
            });
            match epoll::wait(&self.epoll, spare_capacity(&mut events), left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!("a TCP client ends, as it cannot wait for events: {error}");
                    return;
                }
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    // Fails only after a spurious event.
                    BELL => drop(rustix::io::read(&self.shared.bell, &mut [0; 8])),
                    number => {
                        let of =
                            |link: &Option<Link>| link.as_ref().is_some_and(|link| link.number == number);
                        if let Some(slot) = self.links.iter().position(of) {
                            self.turn(slot);
                        }
                    }
                }
            }
            self.expire(Instant::now());
            self.wake();
        }
    }

    /// Calls the collected wakers, which may run arbitrary code.
    fn wake(&mut self) {
        self.woken.drain(..).for_each(Waker::wake);
    }

    /// Returns whether a connection is being made.
    fn is_connecting(&self) -> bool {
        self.links.iter().flatten().any(|link| matches!(link.phase, Phase::Connecting { .. }))
    }

    /// Returns the earliest deadline, or the time of the next attempt to connect.
    fn until(&self, now: Instant) -> Option<Instant> {
        let links = self.links.iter().flatten().filter_map(|link| link.phase.until()).min();
        let state = self.shared.state();
        let waiting = state.queue.iter().chain(self.delayed.iter().map(|call| &call.ticket));
        let ends = waiting.map(|ticket| match (&self.outage, ticket.patience) {
            (Some(_), Some(patience)) => ticket.deadline.min(patience),
            _ => ticket.deadline,
        });
        let attempt = self.outage.as_ref().map(|outage| outage.not_before).filter(|time| *time > now);
        links.into_iter().chain(ends.min()).chain(attempt).chain(state.next_out_of_room()).min()
    }

    fn complete(&mut self, ticket: &Ticket, result: Result<Answer, TcpError>) {
        if let (true, Err(error)) = (ticket.oneway, &result) {
            tracing::warn!("a oneway call of {} was lost: {}", ticket.name, WithSources(error));
        }
        self.woken.extend(ticket.complete(result));
        self.shared.state().release(1, &mut self.woken);
    }

    /// Fails a call that was not sent and thus not executed.
    fn refuse(&mut self, ticket: &Ticket, error: io::Error) {
        let error = TcpError::NotSent { address: self.shared.address.clone(), error: error.into() };
        self.complete(ticket, Err(error));
    }

    /// Assigns queued calls to idle connections.
    fn assign(&mut self, now: Instant) {
        loop {
            let idle =
                |link: &Option<Link>| link.as_ref().is_some_and(|link| matches!(link.phase, Phase::Idle));
            let free = self.links.iter().position(idle);
            // After a failure, one connection at a time is tried, with back-off.
            let waits =
                self.outage.as_ref().is_some_and(|outage| outage.not_before > now || self.is_connecting());
            let new = || self.links.iter().position(Option::is_none).filter(|_| !waits);
            let Some(slot) = free.or_else(new) else { return };
            let Some(call) = self.next_call() else { return };
            match &mut self.links[slot] {
                Some(link) if !is_stale(&link.stream) => {
                    link.phase = Phase::Sending(call);
                    self.turn(slot);
                }
                _ => {
                    let until = Instant::now() + self.shared.options.connect_timeout;
                    let until = until.min(call.ticket.deadline);
                    let error = io::Error::new(ErrorKind::NotFound, "the name has no address");
                    self.connect(slot, call, 0, until, error);
                }
            }
        }
    }

    /// Takes the next call to be sent that the caller has not dropped.
    fn next_call(&mut self) -> Option<Call> {
        while let Some(call) = self.delayed.pop_front() {
            if !call.ticket.is_given_up() {
                return Some(call);
            }
            self.shared.state().release(1, &mut self.woken);
        }
        loop {
            let ticket = self.shared.state().queue.pop_front()?;
            if let Some(message) = ticket.begin() {
                return Some(Call { ticket, message, sent: 0 });
            }
            self.shared.state().release(1, &mut self.woken);
        }
    }

    /// Records that no address could be reached. The call waits for the next attempt if it has the patience,
    /// else it fails.
    fn unreachable(&mut self, call: Call, error: io::Error) {
        let (error, now) = (Arc::new(error), Instant::now());
        if call.ticket.patience.is_none() {
            return self.no_connection(&call.ticket, error);
        }
        let wait = self.outage.take().map_or(FIRST_WAIT, |outage| (2 * outage.wait).min(LONGEST_WAIT));
        // Half of the wait is random, so that the clients of a restarted server spread.
        let nanos = wait.as_nanos() as u64 / 2;
        let not_before = now + Duration::from_nanos(nanos + RealHost.random() % (nanos + 1));
        self.outage = Some(Outage { error, not_before, wait });
        self.delayed.push_front(call);
    }

    /// Fails a call since there is no connection.
    fn no_connection(&mut self, ticket: &Ticket, error: Arc<io::Error>) {
        let error = TcpError::Connect { address: self.shared.address.clone(), error };
        self.complete(ticket, Err(error));
    }

    /// Starts connecting to the next address. `error` is the failure of the previous one.
    fn connect(&mut self, slot: usize, call: Call, mut next: usize, until: Instant, mut error: io::Error) {
        self.links[slot] = None;
        while let Some(&address) = self.shared.resolved.get(next) {
            let now = Instant::now();
            let left = until.saturating_duration_since(now);
            if left.is_zero() && next > 0 {
                error = no_answer(self.shared.options.connect_timeout);
                break;
            }
            let share = now + share(left, self.shared.resolved.len() - next);
            next += 1;
            match dial(&address) {
                Ok(stream) => {
                    let phase = Phase::Connecting { call, next, share, until };
                    if let Err(error) = self.adopt(slot, (stream, address), phase, epoll::EventFlags::OUT) {
                        self.fail(slot, error);
                    }
                    return;
                }
                Err(failed) => error = failed,
            }
        }
        self.unreachable(call, error);
    }

    fn adopt(
        &mut self,
        slot: usize,
        (stream, place): (TcpStream, SocketAddr),
        phase: Phase,
        interest: epoll::EventFlags,
    ) -> io::Result<()> {
        let number = self.next_number;
        self.next_number += 1;
        let added = epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(number), interest);
        let options = &self.shared.options;
        let splitter = Splitter::new(options.wire, options.message_limit);
        let incoming = Incoming::default();
        let answered = false;
        self.links[slot] =
            Some(Link { number, stream, place, interest, splitter, incoming, answered, phase });
        Ok(added?)
    }

    /// Closes a connection and fails its call.
    fn fail(&mut self, slot: usize, error: io::Error) {
        let Some(link) = self.links[slot].take() else { return };
        let address = self.shared.address.clone();
        match link.phase {
            Phase::Idle => {}
            Phase::Connecting { call, next, until, .. } => self.connect(slot, call, next, until, error),
            Phase::Sending(call) if call.sent == 0 => self.refuse(&call.ticket, error),
            Phase::Sending(Call { ticket, .. }) | Phase::Receiving(ticket) => {
                let error = TcpError::Broken { address, error: error.into() };
                match !link.answered && link.incoming.is_empty() && !ticket.oneway {
                    true => self.shared.probe(link.place, &ticket, error),
                    false => self.complete(&ticket, Err(error)),
                }
            }
        }
    }

    /// Closes a connection whose answer is invalid.
    fn reject(&mut self, slot: usize, error: impl FnOnce(String) -> TcpError) {
        let Some(link) = self.links[slot].take() else { return };
        if let Some(ticket) = link.phase.ticket() {
            let error = error(self.shared.address.clone());
            self.complete(ticket, Err(error));
        }
    }

    /// Handles a connection's events and updates its epoll interest.
    fn turn(&mut self, slot: usize) {
        let Some(link) = &mut self.links[slot] else { return };
        let (wire, place) = (self.shared.options.wire, &self.shared.address);
        let was_connecting = matches!(link.phase, Phase::Connecting { .. });
        let gone = match link.go_on(place) {
            Ok(Gone::On) => Ok(()),
            Ok(Gone::Sent(ticket)) => {
                self.complete(&ticket, Ok(Answer::default()));
                Ok(())
            }
            Ok(Gone::Answered(ticket, answer)) => {
                self.complete(&ticket, Ok(answer));
                Ok(())
            }
            Err(End::Failed(error)) => Err(error),
            Err(End::Malformed(why)) => {
                return self.reject(slot, |address| TcpError::Answer { address, why, wire });
            }
            Err(End::WrongDoor(found)) => {
                return self.reject(slot, |address| TcpError::WrongDoor { address, found });
            }
        };
        let Some(link) = &mut self.links[slot] else { return };
        if was_connecting && gone.is_ok() && !matches!(link.phase, Phase::Connecting { .. }) {
            self.outage = None;
        }
        let watched = gone.and_then(|()| link.watch(&self.epoll));
        // The connection received more bytes than its answer, which belong to no known call.
        let spoilt = matches!(link.phase, Phase::Idle) && !link.incoming.is_empty();
        if let Err(error) = watched {
            self.fail(slot, error);
        } else if spoilt {
            self.links[slot] = None;
        }
    }

    /// Fails overdue calls.
    fn expire(&mut self, now: Instant) {
        for slot in 0..self.links.len() {
            let until = self.links[slot].as_ref().and_then(|link| link.phase.until());
            if until.is_none_or(|until| until > now) {
                continue;
            }
            let Some(link) = self.links[slot].take() else { continue };
            let address = self.shared.address.clone();
            let connect_timeout = self.shared.options.connect_timeout;
            let late = || Arc::new(io::Error::from(ErrorKind::TimedOut));
            let (ticket, error) = match link.phase {
                Phase::Idle => continue,
                // The next address has the rest of the time.
                Phase::Connecting { call, next, until, .. } => {
                    self.connect(slot, call, next, until, no_answer(connect_timeout));
                    continue;
                }
                Phase::Sending(call) if call.sent == 0 => {
                    (call.ticket, TcpError::NotSent { address, error: late() })
                }
                Phase::Sending(Call { ticket, .. }) | Phase::Receiving(ticket) => {
                    (ticket, TcpError::TimedOut { address, after: self.shared.options.call_time() })
                }
            };
            self.complete(&ticket, Err(error));
        }
        let error = self.outage.as_ref().map(|outage| Arc::clone(&outage.error));
        let impatient =
            |ticket: &Ticket| error.is_some() && ticket.patience.is_some_and(|patience| patience <= now);
        let is_over = |ticket: &Ticket| ticket.deadline <= now || impatient(ticket);
        let delayed = std::mem::take(&mut self.delayed).into_iter();
        let (over, delayed): (Vec<_>, _) = delayed.partition(|call| is_over(&call.ticket));
        self.delayed = delayed.into();
        let mut state = self.shared.state();
        let queue = std::mem::take(&mut state.queue).into_iter();
        let (late, queue): (Vec<_>, _) = queue.partition(|ticket| is_over(ticket));
        state.queue = queue.into();
        state.take_out_of_room(now, &mut self.woken);
        drop(state);
        for ticket in over.into_iter().map(|call| call.ticket).chain(late) {
            match &error {
                Some(error) if ticket.deadline > now => self.no_connection(&ticket, Arc::clone(error)),
                _ => self
                    .refuse(&ticket, io::Error::new(ErrorKind::TimedOut, "no connection was free in time")),
            }
        }
        // An outage that no call waits for is forgotten after its back-off.
        if self.delayed.is_empty() && self.shared.state().queue.is_empty() && !self.is_connecting() {
            self.outage = self.outage.take().filter(|outage| outage.not_before > now);
        }
    }
}

impl Drop for ClientLoop {
    /// Fails the pending calls. Since calls hold the client, there are some only if the thread has panicked.
    fn drop(&mut self) {
        self.shared.state().ended = true;
        let ended = || io::Error::other("the client's thread has ended");
        for slot in 0..self.links.len() {
            if let Some(link) = &mut self.links[slot]
                && let Phase::Connecting { next, .. } = &mut link.phase
            {
                *next = usize::MAX;
            }
            self.fail(slot, ended());
        }
        for call in std::mem::take(&mut self.delayed) {
            self.refuse(&call.ticket, ended());
        }
        let queue = std::mem::take(&mut self.shared.state().queue);
        queue.iter().for_each(|ticket| self.refuse(ticket, ended()));
        self.shared.state().take_all_out_of_room(&mut self.woken);
        self.wake();
    }
}

/// The result of handling a connection's event.
enum Gone {
    On,
    /// A oneway call was sent.
    Sent(Arc<Ticket>),
    Answered(Arc<Ticket>, Answer),
}

/// The reason why a connection ends.
enum End {
    Failed(io::Error),
    Malformed(String),
    /// The kind of the server, and the address to use.
    WrongDoor(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Failed(error)
    }
}

impl Link {
    /// Goes on with the call. `address` is the server's.
    fn go_on(&mut self, address: &str) -> Result<Gone, End> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            // An idle connection was closed by the server or received unexpected bytes.
            Phase::Idle => Err(End::Failed(ErrorKind::ConnectionAborted.into())),
            Phase::Connecting { call, next, share, until } => {
                // An unknown state counts as a failure.
                let failed = self.stream.take_error().unwrap_or_else(Some);
                let there = self.stream.peer_addr().is_ok();
                self.phase = match (&failed, there) {
                    (None, true) => Phase::Sending(call),
                    _ => Phase::Connecting { call, next, share, until },
                };
                match failed {
                    Some(error) => Err(End::Failed(error)),
                    None if there => self.go_on(address),
                    None => Ok(Gone::On),
                }
            }
            Phase::Sending(mut call) => {
                let sent = self.send(&mut call);
                if matches!(sent, Ok(true)) {
                    return Ok(match call.ticket.oneway {
                        true => Gone::Sent(call.ticket),
                        false => {
                            self.phase = Phase::Receiving(call.ticket);
                            Gone::On
                        }
                    });
                }
                self.phase = Phase::Sending(call);
                sent?;
                Ok(Gone::On)
            }
            Phase::Receiving(ticket) => {
                let received = self.receive(&ticket, address);
                match received {
                    Ok(Some(answer)) => Ok(Gone::Answered(ticket, answer)),
                    other => {
                        self.phase = Phase::Receiving(ticket);
                        other.map(|_| Gone::On)
                    }
                }
            }
        }
    }

    /// Sends as much as the socket accepts. Returns whether the whole call was sent.
    fn send(&self, call: &mut Call) -> io::Result<bool> {
        while call.sent < call.message.len() {
            match call.message.send(&self.stream, call.sent) {
                Ok(sent) => call.sent += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Receives available bytes. Returns the answer if it is complete.
    fn receive(&mut self, ticket: &Ticket, address: &str) -> Result<Option<Answer>, End> {
        let Some(range) = self.message(RECEIVES, address)? else { return Ok(None) };
        self.answered = true;
        let encoding = self.splitter.wire().encoding;
        let answer = self.incoming.take(range, |message, memory| {
            let (kind, length) = check_answer(encoding, message, ticket.name, ticket.sequence)?;
            let body = &message[length..];
            let body = match memory {
                Some(memory) => memory.slice_ref(body),
                None => Bytes::copy_from_slice(body),
            };
            Ok(Answer { kind, body })
        });
        self.incoming.shrink(KEEP);
        answer.map(Some).map_err(End::Malformed)
    }

    /// Receives at most `receives` times. Returns the message's range if it is complete. The splitter must
    /// run after the last receive: epoll reports only bytes that remain in the socket, not buffered ones.
    fn message(&mut self, receives: usize, address: &str) -> Result<Option<Range<usize>>, End> {
        let mut left = receives;
        loop {
            let wanted = match self.next(address)? {
                Next::Message(range) => return Ok(Some(range)),
                Next::Wanted(_) if left == 0 => return Ok(None),
                Next::Wanted(wanted) => wanted,
            };
            left -= 1;
            match self.incoming.receive(&self.stream, wanted) {
                Ok((0, true)) => {
                    let text = "the server closed the connection";
                    return Err(End::Failed(io::Error::new(ErrorKind::UnexpectedEof, text)));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Looks for an answer in the received bytes.
    fn next(&mut self, address: &str) -> Result<Next, End> {
        if !self.answered {
            match wrong_door(self.incoming.bytes(), address) {
                Ok(None) => {}
                Ok(Some(found)) => return Err(End::WrongDoor(found)),
                Err(()) => return Ok(Next::Wanted(1)),
            }
        }
        let next = self.splitter.next(self.incoming.bytes());
        next.map_err(|error| End::Malformed(error.message().to_string()))
    }

    /// Updates the epoll interest to match the phase.
    fn watch(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        let interest = match &self.phase {
            Phase::Connecting { .. } | Phase::Sending(_) => epoll::EventFlags::OUT,
            Phase::Idle | Phase::Receiving(_) => epoll::EventFlags::IN,
        };
        if interest != self.interest {
            epoll::modify(epoll.as_fd(), &self.stream, epoll::EventData::new_u64(self.number), interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}

/// Starts a non-blocking connect.
fn dial(address: &SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match rustix::net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_thrift_core::{Encoding, Transport, Wire};
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn a_message_that_is_whole_with_the_last_look_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut server = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        let mut link = Link {
            number: 0,
            place: stream.peer_addr().unwrap(),
            stream,
            interest: epoll::EventFlags::IN,
            splitter: Splitter::new(
                Wire { transport: Transport::Framed, encoding: Encoding::Binary },
                1 << 20,
            ),
            incoming: Incoming::default(),
            answered: false,
            phase: Phase::Idle,
        };
        // A frame of 100 bytes, in two pieces.
        let frame = [&100u32.to_be_bytes()[..], &[7; 100]].concat();
        server.write_all(&frame[..50]).unwrap();
        assert!(matches!(link.message(1, ""), Ok(None)));
        server.write_all(&frame[50..]).unwrap();
        let Ok(Some(range)) = link.message(1, "") else {
            panic!("it is there, and the socket will not tell of it again")
        };
        assert_eq!(&link.incoming.bytes()[range], [7; 100]);
    }
}
