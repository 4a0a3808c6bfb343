//! A client of a stock Thrift server.

use super::deadline::Guarded;
use super::head::{Body, CALL, EXCEPTION, Head, ONEWAY, REPLY, append};
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::split::{Next, Splitter};
use super::wire::Wire;
use crate::arguments::{Arguments, Outcome};
use crate::codec::{BinaryInput, CompactInput, Encoding, Output};
use crate::error::{CallError, ConnectError};
use dunlin_rpc::Certainty;
use pilota::Bytes;
use pilota::thrift::{ApplicationException, Message, TLengthProtocol, ThriftException};
use rustix::net::RecvFlags;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// A connection that was used within this time is taken to be there still; another is looked at before a call goes out on it.
const FRESH: Duration = Duration::from_millis(10);
/// The buffer that stays when a larger answer has been read.
pub(super) const KEEP: usize = 1 << 20;

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// What the server speaks. Framed and binary unless set.
    pub wire: Wire,
    /// How long connecting may take. 5 seconds unless set.
    pub connect_timeout: Duration,
    /// How long a call may take, from its sending to the last byte of its answer. 30 seconds unless set.
    pub call_timeout: Duration,
    /// Bytes of a message, coming or going. 64 MiB unless set. Memory for answers is taken as they come.
    pub message_limit: usize,
    /// Connections that an asynchronous client may have; each carries one call at a time. 8 unless set.
    pub connections: usize,
    /// Calls of an asynchronous client that may be under way or wait for a connection; more wait for room. 1024 unless set.
    pub window: usize,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            wire: Wire::FRAMED_BINARY,
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(30),
            message_limit: 64 << 20,
            connections: 8,
            window: 1024,
        }
    }
}

/// A call over TCP has come to nothing. Whichever it was, the next call connects again.
#[derive(Clone, Debug, Error)]
pub enum TcpError {
    /// There was no connection, and there is none. Not executed.
    #[error("cannot connect to {address}: {error}; is the server up?")]
    Connect {
        /// The server.
        address: String,
        /// What the system said.
        error: Arc<io::Error>,
    },
    /// The connection broke before a byte of the call went out. Not executed.
    #[error("the call was not sent to {address}: {error}; it can be made again")]
    NotSent {
        /// The server.
        address: String,
        /// What the system said.
        error: Arc<io::Error>,
    },
    /// The connection broke before the answer was there. It may have been executed.
    #[error("the connection to {address} broke during the call, which may have been executed: {error}")]
    Broken {
        /// The server.
        address: String,
        /// What the system said.
        error: Arc<io::Error>,
    },
    /// No answer came in time. It may have been executed.
    #[error("{address} has not answered within {after:?}; the call may have been executed, or be so still")]
    TimedOut {
        /// The server.
        address: String,
        /// The time that the call had.
        after: Duration,
    },
    /// The answer is none to the call. It may have been executed.
    #[error("{address} answered what is no answer to the call ({why}): does it speak {wire:?}?")]
    Answer {
        /// The server.
        address: String,
        /// What is wrong with it.
        why: String,
        /// What it was taken to speak.
        wire: Wire,
    },
}

impl TcpError {
    /// Whether the function may have been executed.
    pub fn certainty(&self) -> Certainty {
        match self {
            TcpError::Connect { .. } | TcpError::NotSent { .. } => Certainty::NotExecuted,
            TcpError::Broken { .. } | TcpError::TimedOut { .. } | TcpError::Answer { .. } => {
                Certainty::MaybeExecuted
            }
        }
    }
}

pub(super) struct OfArguments<'a, A>(pub(super) &'a A);

impl<'s, A: Arguments> Body<'s> for OfArguments<'s, A> {
    fn size<P: TLengthProtocol>(&self, protocol: &mut P) -> usize {
        self.0.size(protocol)
    }
    fn encode<P: Output<'s>>(&self, protocol: &mut P) -> Result<(), ThriftException> {
        self.0.encode(protocol)
    }
}

/// A connection to a stock Thrift server, for one thread at a time. Calls block. After a failure the next call connects again;
/// no call is ever made twice.
#[derive(Debug)]
pub struct Connection {
    address: String,
    options: ConnectionOptions,
    open: Option<Open>,
    outgoing: Outgoing<'static>,
    sequence: i32,
}

#[derive(Debug)]
struct Open {
    socket: Guarded,
    splitter: Splitter,
    incoming: Incoming,
    used: Instant,
}

impl Connection {
    /// Connects to `address` (`host:port`). Blocks.
    pub fn connect(address: &str, options: ConnectionOptions) -> Result<Self, ConnectError> {
        let open = Open::connect(address, &options)
            .map_err(|error| ConnectError::Tcp { address: address.to_owned(), error })?;
        Ok(Connection {
            address: address.to_owned(),
            options,
            open: Some(open),
            outgoing: Outgoing::default(),
            sequence: 0,
        })
    }

    /// The server's address, as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Makes a call and waits for its result.
    pub fn call<A: Arguments, R: Outcome>(
        &mut self,
        function_name: &'static str,
        arguments: &A,
    ) -> Result<R::Value, CallError<R::Exception>> {
        let mut open = self.send(function_name, CALL, arguments)?;
        let range = open.receive().map_err(|failed| self.no_answer(failed))?;
        let (encoding, sequence) = (self.options.wire.encoding, self.sequence);
        let result = open.incoming.take(range, |message, memory| {
            let (kind, length) = check_answer(encoding, message, function_name, sequence)?;
            Ok(decode_answer::<R>(encoding, kind, &message[length..], memory))
        });
        let result = result.map_err(|why| self.wrong_answer(why))?;
        open.incoming.shrink(KEEP);
        // More than the answer: whose it is, nobody can tell. And the deadline may have come right behind the answer.
        self.open = (open.incoming.is_empty() && open.socket.end()).then_some(open);
        result
    }

    /// Makes a call whose result nobody waits for. That it was sent is all that success says.
    pub fn oneway<A: Arguments, E>(
        &mut self,
        function_name: &'static str,
        arguments: &A,
    ) -> Result<(), CallError<E>> {
        let open = self.send(function_name, ONEWAY, arguments)?;
        self.open = open.socket.end().then_some(open);
        Ok(())
    }

    /// Sends a call, on the connection that it answers. Whoever returns with an error from then on leaves none behind.
    fn send<A: Arguments, E>(&mut self, name: &str, kind: u8, arguments: &A) -> Result<Open, CallError<E>> {
        self.sequence = self.sequence.wrapping_add(1);
        let head = Head { name: name.as_bytes(), kind, sequence: self.sequence, old: false };
        let limit = self.options.message_limit.min(i32::MAX as usize);
        // For this call it borrows the arguments.
        let mut outgoing: Outgoing<'_> = std::mem::take(&mut self.outgoing);
        let sent = append(&mut outgoing, self.options.wire, limit, &head, &OfArguments(arguments))
            .map_err(CallError::Encode)
            .and_then(|()| {
                let mut open = self.ready()?;
                self.send_all(&mut open, &outgoing)?;
                Ok(open)
            });
        outgoing.truncate(0);
        outgoing.shrink(KEEP);
        self.outgoing = outgoing.into_owned();
        sent
    }

    /// The connection, or a new one if it is not there any more.
    fn ready(&mut self) -> Result<Open, TcpError> {
        match self.open.take().filter(|open| open.used.elapsed() < FRESH || !is_stale(open.socket.stream())) {
            Some(open) => Ok(open),
            None => Open::connect(&self.address, &self.options)
                .map_err(|error| TcpError::Connect { address: self.address.clone(), error: error.into() }),
        }
    }

    /// Sends what is encoded. From here on the call has its time.
    fn send_all(&self, open: &mut Open, outgoing: &Outgoing<'_>) -> Result<(), TcpError> {
        open.used = Instant::now();
        open.socket.begin(open.used + self.options.call_timeout);
        let mut sent = 0;
        while sent < outgoing.len() {
            match outgoing.send(open.socket.stream(), sent) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
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
            Failed::TimedOut => TcpError::TimedOut { address, after: self.options.call_timeout },
            Failed::System(error) => TcpError::Broken { address, error: error.into() },
            Failed::Malformed(error) => self.wrong_answer(error.message().to_string()),
        }
    }

    fn wrong_answer(&self, why: String) -> TcpError {
        TcpError::Answer { address: self.address.clone(), why, wire: self.options.wire }
    }
}

enum Failed {
    TimedOut,
    System(io::Error),
    Malformed(ThriftException),
}

impl Open {
    fn connect(address: &str, options: &ConnectionOptions) -> io::Result<Self> {
        let deadline = Instant::now() + options.connect_timeout;
        Ok(Open {
            socket: Guarded::new(dial(&resolve(address)?, deadline)?)?,
            splitter: Splitter::new(options.wire, options.message_limit),
            incoming: Incoming::default(),
            used: Instant::now(),
        })
    }

    /// Receives an answer.
    fn receive(&mut self) -> Result<Range<usize>, Failed> {
        loop {
            let wanted = match self.splitter.next(self.incoming.bytes()).map_err(Failed::Malformed)? {
                Next::Message(range) => return Ok(range),
                Next::Wanted(wanted) => wanted,
            };
            match self.incoming.receive(self.socket.stream(), wanted) {
                Ok((0, _)) => {
                    let text = "the server closed the connection";
                    return Err(self.failed(io::Error::new(ErrorKind::UnexpectedEof, text)));
                }
                Ok(_) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// What an error of the socket means: one that is late is shut down.
    fn failed(&self, error: io::Error) -> Failed {
        if self.socket.expired() { Failed::TimedOut } else { Failed::System(error) }
    }
}

/// The addresses that a name stands for. Blocks.
pub(super) fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(address.to_socket_addrs()?.collect())
}

/// Connects to the first of some addresses that answers. Blocks.
pub(super) fn dial(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, left(deadline)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Whether the server has closed a connection, or sent what nobody asked for.
pub(super) fn is_stale(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let looked = rustix::net::recv(stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    !matches!(looked, Err(rustix::io::Errno::AGAIN))
}

/// Time left, and at least a little, since a socket's time-out of 0 is none.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// The kind of an answer and the length of its head; an error says why it is none to this call.
pub(super) fn check_answer(
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

/// Reads the body of an answer, whose large values may be parts of the memory that it lies in, if that is given.
pub(super) fn decode_answer<R: Outcome>(
    encoding: Encoding,
    kind: u8,
    body: &[u8],
    memory: Option<&Bytes>,
) -> Result<R::Value, CallError<R::Exception>> {
    if kind == EXCEPTION {
        return Err(match decode::<ApplicationException>(encoding, body, None) {
            Ok(exception) => CallError::Application(exception),
            Err(error) => CallError::Decode(error),
        });
    }
    match decode::<R>(encoding, body, memory) {
        Ok(outcome) => outcome.into_result().map_err(CallError::Exception),
        Err(error) => Err(CallError::Decode(error)),
    }
}

fn decode<M: Message>(encoding: Encoding, body: &[u8], memory: Option<&Bytes>) -> Result<M, ThriftException> {
    match encoding {
        Encoding::Binary => M::decode(&mut BinaryInput::within(body, memory)),
        Encoding::Compact => M::decode(&mut CompactInput::new(body)),
    }
}
