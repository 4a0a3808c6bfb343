//! Asynchronous calls of a stock Thrift server: futures for any executor, and one thread for their sockets.
//!
//! While a call is under way it has a connection to itself, as Thrift's own clients have it and its servers expect; so a
//! call that takes long or breaks its connection harms no other. What finds no connection waits in a queue, what finds no
//! room in that waits by itself, both no longer than a call may take.

use super::client::{ConnectionOptions, OfArguments, TcpError, decode_answer, dial, resolve};
use super::client_loop::ClientLoop;
use super::head::{CALL, Head, ONEWAY, append};
use super::outgoing::Outgoing;
use crate::arguments::{Arguments, Outcome};
use crate::error::{CallError, ConnectError};
use pilota::Bytes;
use pilota::thrift::ThriftException;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A client of a stock Thrift server whose calls are futures. Clones share its connections and its thread, which ends with
/// the last of them; all methods may be called from any thread.
#[derive(Clone, Debug)]
pub struct AsyncConnection(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What callers and the thread share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The server's address, as it was given, and what it stood for then.
    pub(super) address: String,
    pub(super) resolved: Vec<SocketAddr>,
    pub(super) options: ConnectionOptions,
    /// Wakes the thread.
    pub(super) bell: OwnedFd,
    state: Mutex<State>,
}

/// The calls.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Those that wait for a connection.
    pub(super) queue: VecDeque<Arc<Ticket>>,
    /// Those that wait and those under way.
    pub(super) calls: usize,
    /// The most of them.
    window: usize,
    /// Those that wait for room in the queue, by their numbers, which grow with the ends of their times: until when, and
    /// whom to wake, if that was not done yet.
    room: BTreeMap<u64, (Instant, Option<Waker>)>,
    next_number: u64,
    /// The thread ends, or has ended.
    pub(super) ended: bool,
}

/// A call.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) name: &'static str,
    pub(super) sequence: i32,
    pub(super) oneway: bool,
    pub(super) deadline: Instant,
    stage: Mutex<Stage>,
}

#[derive(Debug)]
enum Stage {
    Waiting {
        message: Outgoing<'static>,
        waker: Option<Waker>,
    },
    UnderWay {
        waker: Option<Waker>,
    },
    Done(Result<Answer, TcpError>),
    /// Nobody waits for it any more.
    GivenUp,
}

/// The body of an answer, and whether it is an exception that the IDL does not know. Empty for oneway calls.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) kind: u8,
    pub(super) body: Bytes,
}

impl Ticket {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the message over to be sent; `None` if nobody waits for the call any more.
    pub(super) fn begin(&self) -> Option<Outgoing<'static>> {
        let mut stage = self.stage();
        match std::mem::replace(&mut *stage, Stage::GivenUp) {
            Stage::Waiting { message, waker } => {
                *stage = Stage::UnderWay { waker };
                Some(message)
            }
            other => {
                *stage = other;
                None
            }
        }
    }

    /// Says what became of it; answers whom to wake.
    pub(super) fn complete(&self, result: Result<Answer, TcpError>) -> Option<Waker> {
        let mut stage = self.stage();
        match std::mem::replace(&mut *stage, Stage::GivenUp) {
            Stage::Waiting { waker, .. } | Stage::UnderWay { waker } => {
                *stage = Stage::Done(result);
                waker
            }
            _ => None,
        }
    }

    fn give_up(&self) {
        // What was there may be a waker, and with that anything.
        let was = std::mem::replace(&mut *self.stage(), Stage::GivenUp);
        drop(was);
    }

    /// The result if it is there; else `waker` is woken when it is.
    fn poll(&self, waker: &Waker) -> Poll<Result<Answer, TcpError>> {
        let mut stage = self.stage();
        let waiting = match &mut *stage {
            Stage::Waiting { waker, .. } | Stage::UnderWay { waker } => waker,
            Stage::Done(_) | Stage::GivenUp => {
                return match std::mem::replace(&mut *stage, Stage::GivenUp) {
                    Stage::Done(result) => Poll::Ready(result),
                    _ => Poll::Pending,
                };
            }
        };
        let replaced = match waiting {
            Some(known) if known.will_wake(waker) => None,
            other => other.replace(waker.clone()),
        };
        drop(stage);
        drop(replaced);
        Poll::Pending
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread.
    fn ring(&self) {
        // It can only fail if it is ringing already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub(super) fn not_sent(&self, kind: ErrorKind, text: &'static str) -> TcpError {
        let error = Arc::new(io::Error::new(kind, text));
        TcpError::NotSent { address: self.address.clone(), error }
    }

    /// Puts a call into the queue if there is room.
    fn submit(&self, ticket: &Arc<Ticket>) -> Result<bool, TcpError> {
        let mut state = self.state();
        if state.ended {
            drop(state);
            return Err(self.not_sent(ErrorKind::Other, "the client's thread has ended"));
        }
        if state.calls >= state.window {
            return Ok(false);
        }
        state.calls += 1;
        state.queue.push_back(Arc::clone(ticket));
        drop(state);
        self.ring();
        Ok(true)
    }
}

impl State {
    /// Calls of this number have come to an end: as many of those that wait for room as there is room for are told.
    pub(super) fn release(&mut self, calls: usize, woken: &mut Vec<Waker>) {
        self.calls -= calls;
        self.tell(woken);
    }

    /// Who is told already may have lost interest since, and says so when it goes: then others are told.
    fn tell(&mut self, woken: &mut Vec<Waker>) {
        let room = self.window.saturating_sub(self.calls);
        woken.extend(self.room.values_mut().filter_map(|(_, waker)| waker.take()).take(room));
    }

    /// Until when the first of those that wait for room does.
    pub(super) fn next_out_of_room(&self) -> Option<Instant> {
        let untold = self.room.values().find(|(_, waker)| waker.is_some());
        untold.map(|(until, _)| *until)
    }

    /// Wakes those that have waited for room for too long.
    pub(super) fn take_out_of_room(&mut self, now: Instant, woken: &mut Vec<Waker>) {
        let late = self.room.values_mut().take_while(|(until, _)| *until <= now);
        woken.extend(late.filter_map(|(_, waker)| waker.take()));
    }

    /// Wakes all that wait for room.
    pub(super) fn take_all_out_of_room(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(self.room.values_mut().filter_map(|(_, waker)| waker.take()));
    }

    /// One waits no more; if it was told of room that it has no use for, another is.
    fn leave_room(&mut self, number: u64, woken: &mut Vec<Waker>) {
        match self.room.remove(&number) {
            Some((_, Some(waker))) => woken.push(waker),
            Some((_, None)) => self.tell(woken),
            None => {}
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.ring();
        // A task may let the client go on the thread itself.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("the thread of a TCP client has panicked");
        }
    }
}

impl AsyncConnection {
    /// Connects to `address` (`host:port`) and starts the thread. Blocks: the name is looked up here, and only here.
    pub fn connect(address: &str, options: ConnectionOptions) -> Result<Self, ConnectError> {
        Self::try_connect(address, options)
            .map_err(|error| ConnectError::Tcp { address: address.to_owned(), error })
    }

    fn try_connect(address: &str, options: ConnectionOptions) -> io::Result<Self> {
        let resolved = resolve(address)?;
        let stream = dial(&resolved, Instant::now() + options.connect_timeout)?;
        let shared = Arc::new(Shared {
            address: address.to_owned(),
            resolved,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            state: Mutex::new(State { window: options.window.max(1), ..State::default() }),
            options,
        });
        let client_loop = ClientLoop::new(Arc::clone(&shared), stream)?;
        let thread =
            thread::Builder::new().name("dunlin-tcp-client".to_owned()).spawn(move || client_loop.run())?;
        Ok(AsyncConnection(Arc::new(Handle { shared, thread: Some(thread) })))
    }

    /// The server's address, as it was given.
    pub fn address(&self) -> &str {
        &self.0.shared.address
    }

    fn ticket<A: Arguments>(
        &self,
        name: &'static str,
        kind: u8,
        arguments: &A,
    ) -> Result<Arc<Ticket>, ThriftException> {
        let Shared { options, .. } = &*self.0.shared;
        let sequence = {
            let mut state = self.0.shared.state();
            state.next_number += 1;
            state.next_number as i32
        };
        let mut message = Outgoing::default();
        let head = Head { name: name.as_bytes(), kind, sequence, old: false };
        let limit = options.message_limit.min(i32::MAX as usize);
        append(&mut message, options.wire, limit, &head, &OfArguments(arguments))?;
        let message = message.into_owned();
        Ok(Arc::new(Ticket {
            name,
            sequence,
            oneway: kind == ONEWAY,
            deadline: Instant::now() + options.call_timeout,
            stage: Mutex::new(Stage::Waiting { message, waker: None }),
        }))
    }

    /// Makes a call. It is on its way at once if there is room; dropping the future gives it up, though the server may
    /// still execute it.
    pub fn call<A: Arguments, R: Outcome>(&self, name: &'static str, arguments: &A) -> TcpCall<R> {
        let state = match self.ticket(name, CALL, arguments) {
            Err(error) => CallState::Failed(CallError::Encode(error)),
            Ok(ticket) => match self.0.shared.submit(&ticket) {
                Ok(true) => CallState::Sent(ticket),
                Ok(false) => {
                    let mut state = self.0.shared.state();
                    state.next_number += 1;
                    CallState::Room(state.next_number, ticket)
                }
                Err(error) => CallState::Failed(error.into()),
            },
        };
        TcpCall { client: self.clone(), state, outcome: PhantomData }
    }

    /// Makes a call whose result nobody waits for. It does not wait for room: without any it is an error, not executed.
    /// Success says that it waits to be sent; that it was not is told in the log only.
    pub fn oneway<A: Arguments, E>(&self, name: &'static str, arguments: &A) -> Result<(), CallError<E>> {
        let ticket = self.ticket(name, ONEWAY, arguments).map_err(CallError::Encode)?;
        if self.0.shared.submit(&ticket)? {
            return Ok(());
        }
        Err(self.0.shared.not_sent(ErrorKind::WouldBlock, "too many calls are under way").into())
    }
}

/// A call under way by TCP. Dropping it gives the call up here; the server may still execute it.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct TcpCall<R: Outcome> {
    client: AsyncConnection,
    state: CallState<R::Exception>,
    outcome: PhantomData<fn() -> R>,
}

#[derive(Debug)]
enum CallState<E> {
    /// Waits for room, under this number.
    Room(u64, Arc<Ticket>),
    Sent(Arc<Ticket>),
    Failed(CallError<E>),
    Over,
}

// Nothing in it is pinned: an error is only moved out.
impl<R: Outcome> Unpin for TcpCall<R> {}

impl<R: Outcome> Future for TcpCall<R> {
    type Output = Result<R::Value, CallError<R::Exception>>;

    /// # Panics
    /// When polled again after it was ready, as futures may.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let shared = &this.client.0.shared;
        if let CallState::Room(number, ticket) = &this.state {
            let (number, ticket) = (*number, Arc::clone(ticket));
            // Before the look, so that room that is made after it is heard of.
            let entry = (ticket.deadline, Some(context.waker().clone()));
            let replaced = shared.state().room.insert(number, entry);
            drop(replaced);
            let state = match shared.submit(&ticket) {
                Ok(true) => CallState::Sent(ticket),
                Ok(false) if Instant::now() < ticket.deadline => {
                    // The thread wakes us in time.
                    shared.ring();
                    return Poll::Pending;
                }
                Ok(false) => {
                    let text = "too many calls were under way for all of the call's time";
                    CallState::Failed(shared.not_sent(ErrorKind::TimedOut, text).into())
                }
                Err(error) => CallState::Failed(error.into()),
            };
            // With a waker may go anything: not while the lock is held.
            let gone = shared.state().room.remove(&number);
            drop(gone);
            this.state = state;
        }
        if let CallState::Sent(ticket) = &this.state {
            let Poll::Ready(result) = ticket.poll(context.waker()) else { return Poll::Pending };
            this.state = CallState::Over;
            let encoding = shared.options.wire.encoding;
            return Poll::Ready(match result {
                Ok(answer) => decode_answer::<R>(encoding, answer.kind, &answer.body, Some(&answer.body)),
                Err(error) => Err(error.into()),
            });
        }
        match std::mem::replace(&mut this.state, CallState::Over) {
            CallState::Failed(error) => Poll::Ready(Err(error)),
            _ => panic!("the call was polled after it was ready"),
        }
    }
}

impl<R: Outcome> Drop for TcpCall<R> {
    fn drop(&mut self) {
        let shared = &self.client.0.shared;
        let mut woken = Vec::new();
        match &self.state {
            CallState::Room(number, _) => shared.state().leave_room(*number, &mut woken),
            CallState::Sent(ticket) => {
                let mut state = shared.state();
                if let Some(place) = state.queue.iter().position(|queued| Arc::ptr_eq(queued, ticket)) {
                    state.queue.remove(place);
                    state.release(1, &mut woken);
                }
                drop(state);
                ticket.give_up();
            }
            CallState::Failed(_) | CallState::Over => {}
        }
        woken.into_iter().for_each(Waker::wake);
    }
}
