//! A synchronous client of a stock Thrift server.

use crate::deadline::Guarded;
use crate::head::{Body, CALL, EXCEPTION, Head, ONEWAY, REPLY, append, sequence};
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::split::{Next, Splitter};
use dunlin_fabric::dialling::{PROBE, first_of, probe};
use dunlin_fabric::door::{self, Door, Look};
use dunlin_fabric::{Host, RealHost};
use dunlin_rpc::Cause;
use dunlin_thrift_core::codec::{BinaryInput, CompactInput, Encoding, Output};
use dunlin_thrift_core::{Arguments, CallError, ConnectError, ErrorOf, Outcome, TcpError, Wire};
use pilota::Bytes;
use pilota::thrift::{ApplicationException, Message, TLengthProtocol, ThriftException};
use rustix::net::RecvFlags;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection used within this time is assumed to be open. An older one is checked before a call is sent on
/// it.
const FRESH: Duration = Duration::from_millis(10);
/// The waits between attempts to connect: the first one, and the longest.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(1);
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The buffer capacity that is kept after a larger answer.
pub(crate) const KEEP: usize = 1 << 20;

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// The transport and encoding that the server expects. Default: framed and binary.
    pub wire: Wire,
    /// The timeout for connecting. Default: 5 seconds.
    pub connect_timeout: Duration,
    /// The timeout of a call without a time of its own, from sending it to the last byte of its answer. If
    /// `None` (the default): 10 seconds, or in a typed client's options the timeout of the engine's settings.
    /// [`Duration::MAX`] for none.
    pub call_timeout: Option<Duration>,
    /// The maximum size of a received or sent message in bytes. Default: 64 MiB. Memory grows as answers
    /// arrive.
    pub message_limit: usize,
    /// The maximum number of connections of an asynchronous client; each carries one call at a time. Default:
    /// 8.
    pub connections: usize,
    /// The maximum number of an asynchronous client's calls in progress or queued for a connection. Further
    /// calls wait for room. Default: 1024.
    pub window: usize,
    /// How long a call that finds no connection waits for one, with attempts in growing intervals (1 ms to
    /// 1 s). Default: zero, one attempt for each call.
    pub wait_for_ready: Duration,
    /// Makes the client without a connection: the first call connects. An asynchronous client resolves the
    /// server's name at once. Default: false.
    pub lazy: bool,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            wire: Wire::FRAMED_BINARY,
            connect_timeout: Duration::from_secs(5),
            call_timeout: None,
            message_limit: 64 << 20,
            connections: 8,
            window: 1024,
            wait_for_ready: Duration::ZERO,
            lazy: false,
        }
    }
}

/// The timeout of a call if nothing sets one: that of the engine.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

impl ConnectionOptions {
    /// Returns the timeout of a call.
    pub(crate) fn call_time(&self) -> Duration {
        self.call_timeout.unwrap_or(CALL_TIMEOUT)
    }
}

/// Returns the end of a time that begins now, at most a century later.
pub(crate) fn later(now: Instant, time: Duration) -> Instant {
    now + time.min(Duration::from_secs(100 * 365 * 24 * 3600))
}

pub(crate) struct OfArguments<'a, A>(pub(crate) &'a A);

impl<'s, A: Arguments> Body<'s> for OfArguments<'s, A> {
    fn size<P: TLengthProtocol>(&self, protocol: &mut P) -> usize {
        self.0.size(protocol)
    }
    fn encode<P: Output<'s>>(&self, protocol: &mut P) -> Result<(), ThriftException> {
        self.0.encode(protocol)
    }
}

/// A connection to a stock Thrift server, used by one thread at a time. Calls block. After a failure the next
/// call connects again. A call is never sent twice.
#[derive(Debug)]
pub struct Connection {
    address: String,
    options: ConnectionOptions,
    open: Option<Open>,
    outgoing: Outgoing<'static>,
    /// The number of calls.
    calls: u64,
}

#[derive(Debug)]
struct Open {
    socket: Guarded,
    place: SocketAddr,
    splitter: Splitter,
    incoming: Incoming,
    /// Whether the server has answered a call on this connection.
    answered: bool,
    used: Instant,
}

impl Connection {
    /// Connects to `address` (`host:port`). Blocks, unless the options say lazy.
    pub fn connect(address: &str, options: ConnectionOptions) -> Result<Self, ConnectError> {
        let open = match options.lazy {
            true => None,
            false => {
                let deadline = after(options.connect_timeout);
                let open = Open::connect(address, &options, deadline);
                Some(open.map_err(|error| ConnectError::Tcp { address: address.to_owned(), error })?)
            }
        };
        Ok(Connection { address: address.to_owned(), options, open, outgoing: Outgoing::default(), calls: 0 })
    }

    /// Opens another connection to the same server with the same options. Blocks, unless the options say lazy.
    pub fn another(&self) -> Result<Self, ConnectError> {
        Connection::connect(&self.address, self.options.clone())
    }

    /// Returns the server's address as given to [`connect`](Connection::connect).
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Makes a call and waits for its result.
    pub fn call<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        function_name: &'static str,
        arguments: &A,
    ) -> Result<R::Value, E> {
        self.call_within(None, function_name, arguments)
    }

    /// As [`call`](Connection::call), with a time of its own in place of that of the settings. The time
    /// includes connecting.
    pub fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &mut self,
        time: Option<Duration>,
        function_name: &'static str,
        arguments: &A,
    ) -> Result<R::Value, E> {
        let mut open = self.send(time, function_name, CALL, arguments)?;
        let range = open.receive(&self.address).map_err(|failed| CallError::from(self.no_answer(failed)))?;
        let (encoding, sequence) = (self.options.wire.encoding, sequence(self.calls));
        let result = open.incoming.take(range, |message, memory| {
            let (kind, length) = check_answer(encoding, message, function_name, sequence)?;
            Ok(decode_answer::<R, E>(encoding, kind, &message[length..], memory))
        });
        let result = result.map_err(|why| CallError::from(self.wrong_answer(why)))?;
        open.incoming.shrink(KEEP);
        // Extra bytes after the answer belong to no known call, so the connection is dropped. The deadline
        // may also have passed just after the answer arrived.
        self.open = (open.incoming.is_empty() && open.socket.end()).then_some(open);
        result
    }

    /// Sends a oneway call. Success means only that it was sent.
    pub fn oneway<A: Arguments>(
        &mut self,
        function_name: &'static str,
        arguments: &A,
    ) -> Result<(), CallError> {
        self.oneway_within(None, function_name, arguments)
    }

    /// As [`oneway`](Connection::oneway), with a time of its own in place of that of the settings.
    pub fn oneway_within<A: Arguments>(
        &mut self,
        time: Option<Duration>,
        function_name: &'static str,
        arguments: &A,
    ) -> Result<(), CallError> {
        let open = self.send(time, function_name, ONEWAY, arguments)?;
        self.open = open.socket.end().then_some(open);
        Ok(())
    }

    /// Sends a call and returns the connection for its answer. The caller puts the connection back only on
    /// success.
    fn send<A: Arguments>(
        &mut self,
        time: Option<Duration>,
        name: &str,
        kind: u8,
        arguments: &A,
    ) -> Result<Open, CallError> {
        if time == Some(Duration::ZERO) {
            return Err(dunlin_rpc::CallError::NotExecuted(Cause::DeadlineExceeded).into());
        }
        let until = time.map(|time| later(Instant::now(), time));
        self.calls += 1;
        let head = Head { name: name.as_bytes(), kind, sequence: sequence(self.calls), old: false };
        let limit = self.options.message_limit.min(i32::MAX as usize);
        // The buffer borrows the arguments during this call.
        let mut outgoing: Outgoing<'_> = std::mem::take(&mut self.outgoing);
        let sent = append(&mut outgoing, self.options.wire, limit, &head, &OfArguments(arguments))
            .map_err(CallError::Encode)
            .and_then(|()| {
                let mut open = self.ready(until)?;
                self.send_all(&mut open, &outgoing, until)?;
                Ok(open)
            });
        outgoing.truncate(0);
        outgoing.shrink(KEEP);
        self.outgoing = outgoing.into_owned();
        sent
    }

    /// Returns the open connection, or a new one if the server has closed it.
    fn ready(&mut self, until: Option<Instant>) -> Result<Open, TcpError> {
        match self.open.take().filter(|open| open.used.elapsed() < FRESH || !is_stale(open.socket.stream())) {
            Some(open) => Ok(open),
            None => self.reopen(self.options.wait_for_ready, until),
        }
    }

    /// Connects: once, and again with back-off until `patience` is over, until `end` at most.
    fn reopen(&self, patience: Duration, end: Option<Instant>) -> Result<Open, TcpError> {
        let sooner = |time: Instant| end.map_or(time, |end| end.min(time));
        let until = sooner(after(patience));
        let mut wait = FIRST_WAIT;
        loop {
            let limit = sooner(after(self.options.connect_timeout));
            let deadline = if patience.is_zero() { limit } else { limit.min(until) };
            let error = match Open::connect(&self.address, &self.options, deadline) {
                Ok(open) => return Ok(open),
                Err(error) => error,
            };
            let (address, now) = (self.address.clone(), Instant::now());
            if end.is_some_and(|end| end <= now) {
                return Err(late(address));
            }
            let left = until.saturating_duration_since(now);
            if left.is_zero() {
                return Err(TcpError::Connect { address, error: error.into() });
            }
            // Half of the wait is random, so that the clients of a restarted server spread.
            let nanos = wait.as_nanos() as u64 / 2;
            std::thread::sleep(Duration::from_nanos(nanos + RealHost.random() % (nanos + 1)).min(left));
            wait = (2 * wait).min(LONGEST_WAIT);
        }
    }

    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile.
    /// Returns at once if it is connected. Blocks.
    pub fn wait_ready(&mut self, at_most: Duration) -> Result<(), TcpError> {
        if self.open.as_ref().is_none_or(|open| is_stale(open.socket.stream())) {
            self.open = Some(self.reopen(at_most, None)?);
        }
        Ok(())
    }

    /// Sends the encoded call. The timeout of the settings begins here.
    fn send_all(
        &self,
        open: &mut Open,
        outgoing: &Outgoing<'_>,
        until: Option<Instant>,
    ) -> Result<(), TcpError> {
        open.used = Instant::now();
        open.socket.begin(until.unwrap_or_else(|| later(open.used, self.options.call_time())));
        let mut sent = 0;
        while sent < outgoing.len() {
            match outgoing.send(open.socket.stream(), sent) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) if sent == 0 && open.socket.expired() => return Err(late(self.address.clone())),
                Err(error) if sent == 0 => {
                    return Err(TcpError::NotSent { address: self.address.clone(), error: error.into() });
                }
                Err(error) => return Err(self.no_answer(open.failed(error))),
            }
        }
        Ok(())
    }

    fn no_answer(&self, failed: Failed) -> TcpError {
        let address = self.address.clone();
        match failed {
            Failed::TimedOut => TcpError::TimedOut { address, after: self.options.call_time() },
            Failed::System(error) => TcpError::Broken { address, error: error.into() },
            Failed::WrongDoor(found) => TcpError::WrongDoor { address, found },
            Failed::Malformed(error) => self.wrong_answer(error.message().to_string()),
        }
    }

    fn wrong_answer(&self, why: String) -> TcpError {
        TcpError::Answer { address: self.address.clone(), why, wire: self.options.wire }
    }
}

/// Returns the error of a call whose time passed before it was sent.
fn late(address: String) -> TcpError {
    TcpError::NotSent { address, error: Arc::new(ErrorKind::TimedOut.into()) }
}

enum Failed {
    TimedOut,
    System(io::Error),
    Malformed(ThriftException),
    /// The kind of the server, and the address to use.
    WrongDoor(String),
}

/// Returns the sentence about a server whose first bytes are no Thrift. `Err` while they are too few.
pub(crate) fn wrong_door(first: &[u8], address: &str) -> Result<Option<String>, ()> {
    match door::recognise(first) {
        Look::Is(Door::Thrift) | Look::Unknown | Look::Short => Ok(None),
        // The fifth byte of a frame begins its message, whatever protocol the frame's length looks like.
        Look::Is(_) if first.len() < 5 => Err(()),
        Look::Is(_) if matches!(first[4], 0x80 | 0x82 | 0x00) => Ok(None),
        Look::Is(Door::Refusal) if door::refusal_text(first).is_none() && first.len() < door::MAX_REFUSAL => {
            Err(())
        }
        Look::Is(_) => Ok(door::found(first, address)),
    }
}

impl Open {
    fn connect(address: &str, options: &ConnectionOptions, deadline: Instant) -> io::Result<Self> {
        let stream = dial(&resolve(address)?, deadline)?;
        Ok(Open {
            place: stream.peer_addr()?,
            socket: Guarded::new(stream)?,
            splitter: Splitter::new(options.wire, options.message_limit),
            incoming: Incoming::default(),
            answered: false,
            used: Instant::now(),
        })
    }

    /// Receives an answer.
    fn receive(&mut self, address: &str) -> Result<Range<usize>, Failed> {
        loop {
            let wanted = match self.next(address)? {
                Next::Message(range) => {
                    self.answered = true;
                    return Ok(range);
                }
                Next::Wanted(wanted) => wanted,
            };
            let error = match self.incoming.receive(self.socket.stream(), wanted) {
                Ok((0, _)) => io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection"),
                Ok(_) => continue,
                Err(error) => error,
            };
            if let Some(found) = self.probe(address) {
                return Err(Failed::WrongDoor(found));
            }
            return Err(self.failed(error));
        }
    }

    /// Asks a server that has closed the connection without a word which kind it is.
    fn probe(&self, address: &str) -> Option<String> {
        let left = self.socket.left();
        match !self.answered && self.incoming.is_empty() && !left.is_zero() {
            true => wrong_door(&probe(&self.place, left.min(PROBE)), address).ok()?,
            false => None,
        }
    }

    /// Looks for an answer in the received bytes.
    fn next(&mut self, address: &str) -> Result<Next, Failed> {
        if !self.answered {
            match wrong_door(self.incoming.bytes(), address) {
                Ok(None) => {}
                Ok(Some(found)) => return Err(Failed::WrongDoor(found)),
                Err(()) => return Ok(Next::Wanted(1)),
            }
        }
        self.splitter.next(self.incoming.bytes()).map_err(Failed::Malformed)
    }

    /// Classifies an error of the socket. The watch shuts down the socket of an overdue call.
    fn failed(&self, error: io::Error) -> Failed {
        if self.socket.expired() { Failed::TimedOut } else { Failed::System(error) }
    }
}

/// Returns the time after `duration`, at most a century ahead.
fn after(duration: Duration) -> Instant {
    later(Instant::now(), duration)
}

/// Resolves an address. Blocks.
pub(crate) fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(address.to_socket_addrs()?.collect())
}

/// Connects to the first address that accepts, within one deadline for all. Blocks.
pub(crate) fn dial(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let left = || deadline.saturating_duration_since(Instant::now());
    let stream = first_of(addresses, left, TcpStream::connect_timeout)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns whether the server has closed a connection or sent unexpected bytes.
pub(crate) fn is_stale(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let looked = rustix::net::recv(stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    !matches!(looked, Err(rustix::io::Errno::AGAIN))
}

/// Returns an answer's message type and the length of its head. The error says why the message does not
/// answer this call.
pub(crate) fn check_answer(
    encoding: Encoding,
    message: &[u8],
    name: &str,
    sequence: i32,
) -> Result<(u8, usize), String> {
    let head = Head::read(encoding, message).map_err(|error| error.message().to_string())?;
    let Some((head, length)) = head else { return Err("it ends within its head".to_owned()) };
    if head.sequence != sequence {
        return Err(format!("its sequence number is {}, not {sequence}", head.sequence));
    }
    if head.name != name.as_bytes() {
        return Err(format!("it is of '{}', not '{name}'", String::from_utf8_lossy(head.name)));
    }
    match head.kind {
        REPLY | EXCEPTION => Ok((head.kind, length)),
        other => Err(format!("its type is {other}")),
    }
}

/// Decodes an answer's body. Its large values may share `memory`, which contains it, if it is given.
pub(crate) fn decode_answer<R: Outcome, E: ErrorOf<R>>(
    encoding: Encoding,
    kind: u8,
    body: &[u8],
    memory: Option<&Bytes>,
) -> Result<R::Value, E> {
    if kind == EXCEPTION {
        let error = match decode::<ApplicationException>(encoding, body, None) {
            Ok(exception) => CallError::Application(exception),
            Err(error) => CallError::Decode(error),
        };
        return Err(error.into());
    }
    match decode::<R>(encoding, body, memory) {
        Ok(outcome) => outcome.into_result().map_err(E::from),
        Err(error) => Err(CallError::Decode(error).into()),
    }
}

fn decode<M: Message>(encoding: Encoding, body: &[u8], memory: Option<&Bytes>) -> Result<M, ThriftException> {
    match encoding {
        Encoding::Binary => M::decode(&mut BinaryInput::within(body, memory)),
        Encoding::Compact => M::decode(&mut CompactInput::new(body)),
    }
}
