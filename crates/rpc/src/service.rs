//! What an application implements: a service that takes requests and fills replies.

use crate::path::pieces::Filling;
use dunlin_fabric::Nanos;
use dunlin_wire::{Status, copy_bytes};
use thiserror::Error;

/// A request, in memory that no peer can change any more.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The function id.
    pub function: u16,
    /// The payload.
    pub payload: &'a [u8],
    /// Time left for the call when it was sent, in nanoseconds; `None` for no deadline.
    pub time_left: Option<Nanos>,
    /// The session of the caller: the same for all calls of one connection.
    pub session: u64,
}

/// A result does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a result of {wanted} bytes does not fit: the limit is {limit}")]
pub struct ReplyTooLarge {
    /// How long the result would be.
    pub wanted: usize,
    /// The most it may be.
    pub limit: usize,
}

impl From<ReplyTooLarge> for Status {
    fn from(_: ReplyTooLarge) -> Status {
        Status::TooLarge
    }
}

/// Where large results are built: registered memory on a worker, plain memory in a pool.
pub(crate) trait LargeReply {
    /// Makes room for `length` bytes, keeping what is there.
    fn resize(&mut self, length: usize) -> bool;
    /// The bytes.
    fn bytes(&mut self) -> &mut [u8];
    /// As [`resize`](LargeReply::resize) of what is empty, for bytes that will be filled in place.
    fn resize_to_fill(&mut self, length: usize) -> bool {
        self.resize(length)
    }
    /// As [`resize_to_fill`](LargeReply::resize_to_fill), with whom to tell how far that is, if it may leave meanwhile.
    fn fill(&mut self, length: usize) -> Option<(&mut [u8], Option<&mut dyn Filling>)> {
        self.resize_to_fill(length).then(|| (self.bytes(), None))
    }
}

/// The reply to a request; empty until written. Small results are built in place for sending; larger ones go to
/// registered memory from which the client READs them.
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
    /// Appends bytes.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ReplyTooLarge> {
        let start = self.length;
        let place = self.grow(start + bytes.len())?;
        copy_bytes(&mut place[start..], bytes);
        Ok(())
    }

    /// Makes the result `length` bytes long and gives all of it to be written in place. What was written before
    /// stays in front; the rest is undefined.
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

    /// As [`reserve`](Reply::reserve) of an empty reply, with whom to tell how far it is, if the result may leave while it is being
    /// filled. What was told then has to be the result, or the call fails: if another result takes its place afterwards, the caller hears
    /// that the handler has failed.
    #[inline]
    pub fn reserve_to_fill(
        &mut self,
        length: usize,
    ) -> Result<(&mut [u8], Option<&mut dyn Filling>), ReplyTooLarge> {
        if self.length > 0 || !(self.small_limit + 1..=self.limit).contains(&length) {
            return self.reserve(length).map(|place| (place, None));
        }
        let too_large = ReplyTooLarge { wanted: length, limit: self.limit };
        let place = self.large.fill(length).ok_or(too_large)?;
        self.length = length;
        Ok(place)
    }

    /// The result's length so far.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Takes back what was written.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// The longest result possible, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Keeps no more than a small result has room for: where an error's text goes.
    pub(crate) fn shorten(&mut self) -> usize {
        if self.length > self.small_limit {
            // Shrinking does not fail.
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
            // What was large and is not any more goes back to where small results are sent from.
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

/// A service as one worker has it: called by that worker only, so it needs no locks. Must not block: everything
/// else on the worker waits meanwhile. Functions that take long are declared [`FunctionMode::Pool`].
pub trait Service: Send {
    /// Answers one request. An error takes the place of whatever was written, except that the bytes written go
    /// along with [`Status::Application`], as many as a small result of the plan may have. A panic is caught and answered
    /// with [`Status::HandlerPanicked`].
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status>;

    /// How many times over [`prepare`](Service::prepare) wants to be shown a batch; 0 if it does nothing. Asked once, when the
    /// worker is made.
    fn passes(&self) -> usize {
        0
    }

    /// Shown each request of a batch before the first of them is called, in as many passes, counted from 0, as
    /// [`passes`](Service::passes) says: the moment to ask for memory that they will need, so that the ways of many overlap. What
    /// one pass has asked for the next may look at, to ask for what it leads to. Must not change anything; the call may never
    /// come.
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

/// A service as the threads of a pool share it. May block.
pub trait PoolService: Send + Sync + 'static {
    /// Answers one request, as [`Service::call`].
    fn call(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status>;
}

impl<S: Fn(&Request<'_>, &mut Reply<'_>) -> Result<(), Status> + Send + Sync + 'static> PoolService for S {
    fn call(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        self(request, reply)
    }
}

/// Where a function runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionMode {
    /// On the worker that received it.
    Worker,
    /// On a thread of the pool: for what takes long or blocks.
    Pool,
    /// Nowhere: the application pulls it with [`Server::receive`](crate::Server::receive) and replies when it
    /// likes (LITE, FLOCK table 2).
    Pull,
}

/// A large reply in plain memory.
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

    /// A handler may reserve the most and then say how much it was; what is sent has to be what was written.
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
