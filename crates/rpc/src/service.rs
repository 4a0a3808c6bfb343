//! The application's side of a call: a [`Service`] takes requests and fills replies.

use crate::path::large::PayloadWriter;
use dunlin_fabric::{Clock, Nanos, PeerIdentity};
use dunlin_wire::handshake::Token;
use dunlin_wire::{Status, copy_bytes};
use std::time::Duration;
use thiserror::Error;

/// The deadline of a call without one.
pub(crate) const NEVER: Nanos = Nanos::MAX;

/// A request. Its bytes lie in memory that no peer can change.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The function id.
    pub function: u16,
    /// The request's payload.
    pub payload: &'a [u8],
    /// The caller's session: the same for all calls of one connection.
    pub session: u64,
    /// On the server's clock; [`NEVER`] without a deadline.
    pub(crate) deadline: Nanos,
    pub(crate) clock: &'a Clock,
}

impl Request<'_> {
    /// Returns the time that is left now until the call's deadline: zero if it has passed, `None` without a
    /// deadline. Reads the clock.
    ///
    /// The server knows when it took the request and bounds how long the request lay there before. So the
    /// time may be too short by the time for which the server was busy, and too long by the time on the
    /// network.
    pub fn time_left(&self) -> Option<Duration> {
        left(self.deadline, self.clock)
    }

    /// Returns the deadline on the server's clock in nanoseconds, and that clock; `None` without a deadline. For
    /// layers that hand the call on and outlive the request.
    #[doc(hidden)]
    pub fn deadline(&self) -> Option<(Nanos, &Clock)> {
        (self.deadline != NEVER).then_some((self.deadline, self.clock))
    }
}

/// Returns the time left until a deadline; `None` without one.
pub(crate) fn left(deadline: Nanos, clock: &Clock) -> Option<Duration> {
    (deadline != NEVER).then(|| Duration::from_nanos(deadline.saturating_sub(clock.now())))
}

/// A result does not fit into the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a result of {wanted} bytes does not fit: the limit is {limit}")]
pub struct ReplyTooLarge {
    /// The result's length in bytes.
    pub wanted: usize,
    /// The largest length possible, in bytes.
    pub limit: usize,
}

impl From<ReplyTooLarge> for Status {
    fn from(_: ReplyTooLarge) -> Status {
        Status::TooLarge
    }
}

/// Memory for a large result: registered memory on a worker, heap memory in a pool.
pub(crate) trait LargeReply {
    /// Resizes to `length` bytes and keeps the existing content; `false` without memory.
    fn resize(&mut self, length: usize) -> bool;
    /// The bytes of the result.
    fn bytes(&mut self) -> &mut [u8];
    /// As [`resize`](LargeReply::resize) of an empty reply, for a caller that then fills it in place.
    fn resize_to_fill(&mut self, length: usize) -> bool {
        self.resize(length)
    }
    /// As [`resize_to_fill`](LargeReply::resize_to_fill), with a progress sink if the result may be sent
    /// while it is filled.
    fn fill(&mut self, length: usize) -> Option<(&mut [u8], Option<&mut dyn PayloadWriter>)> {
        self.resize_to_fill(length).then(|| (self.bytes(), None))
    }
}

/// The reply to a request; empty until written. A small result is built in place in the outgoing message. A
/// larger one is built in registered memory, from which the client READs it.
pub struct Reply<'a> {
    pub(crate) small: &'a mut [u8],
    pub(crate) length: usize,
    pub(crate) small_limit: usize,
    pub(crate) limit: usize,
    pub(crate) large: &'a mut dyn LargeReply,
}

impl std::fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply")
            .field("length", &self.length)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl Reply<'_> {
    /// Appends bytes. Fails without a change if the result would exceed [`limit`](Reply::limit), or if no
    /// memory is left.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ReplyTooLarge> {
        let start = self.length;
        let place = self.grow(start + bytes.len())?;
        copy_bytes(&mut place[start..], bytes);
        Ok(())
    }

    /// Sets the result's length and returns all of its bytes for writing in place. Bytes written before keep
    /// their place at the front; the content of the rest is undefined.
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<&mut [u8], ReplyTooLarge> {
        if self.length == 0 && (self.small_limit + 1..=self.limit).contains(&length) {
            if !self.large.resize_to_fill(length) {
                return Err(ReplyTooLarge { wanted: length, limit: self.limit });
            }
            self.length = length;
            return Ok(self.large.bytes());
        }
        self.grow(length)
    }

    /// As [`reserve`](Reply::reserve) of an empty reply. Also returns a progress sink if the result can be
    /// sent while it is being filled.
    ///
    /// The bytes reported to the sink must stay part of the final result. If another result replaces them,
    /// the call fails for the caller as a handler failure.
    #[inline]
    pub fn reserve_to_fill(
        &mut self,
        length: usize,
    ) -> Result<(&mut [u8], Option<&mut dyn PayloadWriter>), ReplyTooLarge> {
        if self.length > 0 || !(self.small_limit + 1..=self.limit).contains(&length) {
            return self.reserve(length).map(|place| (place, None));
        }
        let too_large = ReplyTooLarge { wanted: length, limit: self.limit };
        let place = self.large.fill(length).ok_or(too_large)?;
        self.length = length;
        Ok(place)
    }

    /// Returns the result's current length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the result is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Discards everything written so far.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Returns the largest possible length of a result, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Truncates the result to the size of a small one, as error texts require, and returns its length.
    pub(crate) fn shorten(&mut self) -> usize {
        if self.length > self.small_limit {
            // A smaller length always fits.
            let _ = self.grow(self.small_limit);
        }
        self.length
    }

    #[inline]
    fn grow(&mut self, length: usize) -> Result<&mut [u8], ReplyTooLarge> {
        if length <= self.small_limit && self.length <= self.small_limit {
            self.length = length;
            return Ok(&mut self.small[..length]);
        }
        self.grow_large(length)
    }

    #[cold]
    fn grow_large(&mut self, length: usize) -> Result<&mut [u8], ReplyTooLarge> {
        if length <= self.small_limit {
            // A result that shrank below the limit moves back to the buffer that small results are sent from.
            let place = &mut self.small[..length];
            place.copy_from_slice(&self.large.bytes()[..length]);
            self.length = length;
            return Ok(place);
        }
        let too_large = ReplyTooLarge { wanted: length, limit: self.limit };
        if length > self.limit || !self.large.resize(length) {
            return Err(too_large);
        }
        let moved = self.length <= self.small_limit;
        let place = self.large.bytes();
        if moved {
            place[..self.length].copy_from_slice(&self.small[..self.length]);
        }
        self.length = length;
        Ok(place)
    }
}

/// A service as seen by one worker. Only that worker calls it, so it needs no locks. It must not block: every
/// other call on the worker would wait. Declare slow functions as [`FunctionMode::Pool`].
pub trait Service: Send {
    /// Answers one request.
    ///
    /// An error discards the reply, with one exception: for [`Status::Application`] the bytes written are
    /// sent with it, truncated to the plan's limit for small results. A panic is caught and answered with
    /// [`Status::HandlerPanicked`].
    ///
    /// For the caller, [`Status::Application`], [`Status::TooLarge`] and a panic mean that the call was
    /// executed ([`Certainty::Executed`](crate::Certainty::Executed)). Any other error means that it was not:
    /// return one only before the call has an effect.
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status>;

    /// Reports that the handler of a function kept its worker for longer than
    /// [`SLOW_HANDLER`](crate::SLOW_HANDLER), 1 ms: all other calls of the worker waited. Called once for each
    /// function of a server, right after the call. The default logs a warning (target `dunlin::server`).
    ///
    /// A worker times few of its calls: the first one after it waited, and about one of 64 under constant
    /// load.
    fn on_slow(&mut self, function: u16, took: Duration) {
        tracing::warn!(
            target: "dunlin::server",
            function,
            ?took,
            "a handler kept its worker, and all other calls there waited: declare the function as FunctionMode::Pool"
        );
    }

    /// Returns the number of [`prepare`](Service::prepare) passes over each batch; 0 for none. Read once,
    /// when the worker is created.
    fn passes(&self) -> usize {
        0
    }

    /// Prefetches memory that a request will need.
    ///
    /// Before it calls the first request of a batch, the worker passes every request of that batch to
    /// `prepare`, in passes numbered from 0 (see [`passes`](Service::passes)), so that the cache misses of
    /// many requests overlap. A pass may read what the previous pass prefetched and prefetch what that points
    /// to. Must not change any state: the call itself may never follow.
    fn prepare(&mut self, pass: usize, function: u16, payload: &[u8]) {
        let _ = (pass, function, payload);
    }
}

impl<S: FnMut(&Request<'_>, &mut Reply<'_>) -> Result<(), Status> + Send> Service for S {
    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        self(request, reply)
    }
}

/// A service shared by the threads of a pool. May block.
pub trait PoolService: Send + Sync + 'static {
    /// Answers one request, as [`Service::call`].
    fn call(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status>;
}

impl<S: Fn(&Request<'_>, &mut Reply<'_>) -> Result<(), Status> + Send + Sync + 'static> PoolService for S {
    fn call(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        self(request, reply)
    }
}

/// Observes the connections of a server, for services that keep state for each caller
/// ([`ServerBuilder::observe`](crate::ServerBuilder::observe)). The server's control thread calls the methods, so they
/// must not block.
pub trait ConnectionObserver: Send + Sync + 'static {
    /// A client asks to connect, and its hello is acceptable. `peer` is the identity as the operating system reports
    /// it, and not as the client names itself. `service` is the service that it asks for; empty for any. `token` is what the
    /// client presents, empty for none; a server with [`ServerConfig::token`](crate::ServerConfig::token) has compared it
    /// already. No call of the session precedes this. An error refuses the connection, and `closed` is not called.
    fn opened(
        &self,
        session: u64,
        peer: &PeerIdentity,
        service: &str,
        token: &Token,
    ) -> Result<(), NotAdmitted>;

    /// The connection has ended. Calls of the session that have begun may still run.
    fn closed(&self, session: u64);
}

/// The reason why a [`ConnectionObserver`] refuses a connection. The client gets the text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAdmitted {
    /// There are enough connections, or the observer cannot serve this one: the client fails with
    /// [`ConnectError::Refused`](crate::ConnectError::Refused).
    Refused(String),
    /// The token is not one of those that the observer knows: the client fails with
    /// [`ConnectError::Unauthorised`](crate::ConnectError::Unauthorised).
    Unauthorised(String),
}

impl From<String> for NotAdmitted {
    fn from(text: String) -> NotAdmitted {
        NotAdmitted::Refused(text)
    }
}

/// The place where a function runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionMode {
    /// On the worker that received the request.
    Worker,
    /// On a thread of the pool, for functions that are slow or block.
    Pool,
    /// On the worker that received the request, until a run takes longer than
    /// [`ServerConfig::group_slice`](crate::ServerConfig::group_slice); from then on in the pool (ScaleRPC section 3.5).
    /// That run ends on its worker and is answered. The worker times each run: two readings of the clock. Without a
    /// pool service the function stays on the worker. The service and the pool service must do the same.
    WorkerThenPool,
    /// On the worker that received the request, which does not wait: its [`PolledService`](crate::PolledService) answers
    /// at once or in a later turn, or leaves the call to the pool. Without such a service, the pool runs all calls.
    Polled,
    /// Outside the server's threads: the application pulls calls with
    /// [`Server::receive`](crate::Server::receive), or has them handed to a [`Taker`](crate::Taker), and replies at any later time
    /// (LITE, FLOCK table 2).
    Pull,
}

/// A large reply in heap memory.
#[derive(Debug, Default)]
pub(crate) struct HeapReply(pub(crate) Vec<u8>);

impl LargeReply for HeapReply {
    fn resize(&mut self, length: usize) -> bool {
        if self.0.try_reserve(length.saturating_sub(self.0.len())).is_err() {
            return false;
        }
        self.0.resize(length, 0);
        true
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_grows_from_small_to_large_and_stops_at_the_limit() {
        let (mut small, mut large) = (vec![0; 8], HeapReply::default());
        let mut reply = Reply { small: &mut small, length: 0, small_limit: 8, limit: 20, large: &mut large };
        reply.write(b"12345").unwrap();
        reply.write(b"678").unwrap();
        assert_eq!(reply.len(), 8);
        reply.write(b"9abc").unwrap();
        reply.write(b"defghijk").unwrap();
        assert_eq!(reply.write(b"x"), Err(ReplyTooLarge { wanted: 21, limit: 20 }));
        assert_eq!(reply.len(), 20);
        assert_eq!(large.0, b"123456789abcdefghijk");
    }

    /// A handler may reserve the limit and shorten the result afterwards. The bytes sent must be the bytes
    /// written.
    #[test]
    fn a_reply_that_shrinks_keeps_its_beginning() {
        let (mut small, mut large) = (*b"old news", HeapReply::default());
        let mut reply = Reply { small: &mut small, length: 0, small_limit: 8, limit: 20, large: &mut large };
        reply.reserve(20).unwrap().copy_from_slice(b"abcdefghijklmnopqrst");
        assert_eq!(reply.reserve(12).unwrap(), b"abcdefghijkl");
        assert_eq!(reply.reserve(5).unwrap(), b"abcde");
        reply.write(b"123").unwrap();
        assert_eq!(reply.len(), 8);
        reply.write(b"4").unwrap();
        assert_eq!(reply.reserve(9).unwrap(), b"abcde1234");
        assert_eq!(reply.shorten(), 8);
        assert_eq!(&small, b"abcde123");
    }
}
