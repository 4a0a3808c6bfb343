//! Asynchronous client of a stock Thrift server: futures for any executor, and one thread that owns the
//! sockets.
//!
//! Each call in progress has exclusive use of a connection, as in Thrift's own clients. A call that is slow
//! or breaks its connection thus affects no other call. Calls wait in a queue while no connection is free,
//! and outside the queue while it is full, in both cases no longer than the call timeout.

use crate::client::{ConnectionOptions, OfArguments, decode_answer, dial, later, resolve, wrong_door};
use crate::client_loop::ClientLoop;
use crate::head::{CALL, Head, ONEWAY, append, sequence};
use crate::outgoing::Outgoing;
use dunlin_fabric::dialling::{PROBE, probe};
use dunlin_rpc::Cause;
use dunlin_thrift_core::{Arguments, CallError, ConnectError, ErrorOf, Outcome, TcpError};
use pilota::Bytes;
use pilota::thrift::ThriftException;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// An asynchronous client of a stock Thrift server. Clones share its connections and its thread, which ends
/// with the last clone. All methods may be called from any thread.
#[derive(Clone, Debug)]
pub struct AsyncConnection(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by callers and the thread.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The server's address as given, and its resolution at that time.
    pub(crate) address: String,
    pub(crate) resolved: Vec<SocketAddr>,
    pub(crate) options: ConnectionOptions,
    /// Wakes the thread.
    pub(crate) bell: OwnedFd,
    /// Whether a server is being asked for its kind.
    probing: AtomicBool,
    state: Mutex<State>,
}

/// The calls of a client.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Calls that wait for a connection.
    pub(crate) queue: VecDeque<Arc<Ticket>>,
    /// The number of queued calls and calls in progress.
    pub(crate) calls: usize,
    /// The maximum of `calls`.
    window: usize,
    /// Calls that wait for room in the queue, by numbers in the order of their deadlines. Each has its
    /// deadline, and its waker unless it was already woken.
    room: BTreeMap<u64, (Instant, Option<Waker>)>,
    next_number: u64,
    /// Whether the thread is ending or has ended.
    pub(crate) ended: bool,
}

/// A call.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) name: &'static str,
    pub(crate) sequence: i32,
    pub(crate) oneway: bool,
    pub(crate) deadline: Instant,
    /// The end of the call's patience with a missing connection; `None` if it makes one attempt only.
    pub(crate) patience: Option<Instant>,
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
    /// The caller has dropped the call.
    GivenUp,
}

/// The body of an answer and its message type, a reply or an exception. Empty for oneway calls.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) kind: u8,
    pub(crate) body: Bytes,
}

impl Ticket {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the message in order to send it; `None` if the caller has dropped the call.
    pub(crate) fn begin(&self) -> Option<Outgoing<'static>> {
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

    /// Stores the call's result. Returns the waker to call.
    pub(crate) fn complete(&self, result: Result<Answer, TcpError>) -> Option<Waker> {
        let mut stage = self.stage();
        match std::mem::replace(&mut *stage, Stage::GivenUp) {
            Stage::Waiting { waker, .. } | Stage::UnderWay { waker } => {
                *stage = Stage::Done(result);
                waker
            }
            _ => None,
        }
    }

    /// Returns whether the caller has dropped the call.
    pub(crate) fn is_given_up(&self) -> bool {
        matches!(*self.stage(), Stage::GivenUp)
    }

    fn give_up(&self) {
        // Dropped without the lock: dropping a waker may run arbitrary code.
        let was = std::mem::replace(&mut *self.stage(), Stage::GivenUp);
        drop(was);
    }

    /// Returns the result if it is available; otherwise registers `waker`.
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
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread.
    fn ring(&self) {
        // Fails only if a wake-up is already pending.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub(crate) fn not_sent(&self, kind: ErrorKind, text: &'static str) -> TcpError {
        let error = Arc::new(io::Error::new(kind, text));
        TcpError::NotSent { address: self.address.clone(), error }
    }

    /// Queues a call if there is room. Returns whether it was queued.
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

    /// Ends a call on a server that has closed the connection without a word: asks that server which kind it is,
    /// on a thread of its own, as that blocks. There is one such thread at a time; a call beside it ends with
    /// `error`.
    pub(crate) fn probe(self: &Arc<Self>, place: SocketAddr, ticket: &Arc<Ticket>, error: TcpError) {
        let end = |shared: &Shared, ticket: &Ticket, error| {
            let mut woken: Vec<Waker> = ticket.complete(Err(error)).into_iter().collect();
            shared.state().release(1, &mut woken);
            woken.into_iter().for_each(Waker::wake);
        };
        if self.probing.swap(true, Ordering::Acquire) {
            return end(self, ticket, error);
        }
        let (shared, asked, broken) = (Arc::clone(self), Arc::clone(ticket), error.clone());
        let begun = thread::Builder::new().name("dunlin-tcp-probe".into()).spawn(move || {
            let left = asked.deadline.saturating_duration_since(Instant::now());
            let found = wrong_door(&probe(&place, left.min(PROBE)), &shared.address);
            shared.probing.store(false, Ordering::Release);
            let error = match found {
                Ok(Some(found)) => TcpError::WrongDoor { address: shared.address.clone(), found },
                _ => broken,
            };
            end(&shared, &asked, error);
        });
        if begun.is_err() {
            self.probing.store(false, Ordering::Release);
            end(self, ticket, error);
        }
    }
}

impl State {
    /// Records the end of `calls` calls, and wakes as many of the calls that wait for room as now fit.
    pub(crate) fn release(&mut self, calls: usize, woken: &mut Vec<Waker>) {
        self.calls -= calls;
        self.tell(woken);
    }

    /// Wakes as many of the waiting calls as there is room for. A woken call that is dropped passes its
    /// wake-up on (`leave_room`).
    fn tell(&mut self, woken: &mut Vec<Waker>) {
        let room = self.window.saturating_sub(self.calls);
        woken.extend(self.room.values_mut().filter_map(|(_, waker)| waker.take()).take(room));
    }

    /// Returns the earliest deadline of a call that waits for room and was not woken.
    pub(crate) fn next_out_of_room(&self) -> Option<Instant> {
        let untold = self.room.values().find(|(_, waker)| waker.is_some());
        untold.map(|(until, _)| *until)
    }

    /// Wakes the calls whose deadline passed while they waited for room.
    pub(crate) fn take_out_of_room(&mut self, now: Instant, woken: &mut Vec<Waker>) {
        let late = self.room.values_mut().take_while(|(until, _)| *until <= now);
        woken.extend(late.filter_map(|(_, waker)| waker.take()));
    }

    /// Wakes all calls that wait for room.
    pub(crate) fn take_all_out_of_room(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(self.room.values_mut().filter_map(|(_, waker)| waker.take()));
    }

    /// Removes a waiting call. If it was already woken, wakes another one instead.
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
        // The last handle may be dropped by a task on the client's own thread.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("the thread of a TCP client has panicked");
        }
    }
}

impl AsyncConnection {
    /// Connects to `address` (`host:port`) and starts the thread. Blocks. The address is resolved only here.
    /// With [`ConnectionOptions::lazy`] it resolves the address and does not connect yet.
    ///
    /// # Errors
    /// The name cannot be resolved, or the server cannot be reached.
    pub fn connect(address: &str, options: ConnectionOptions) -> Result<Self, ConnectError> {
        Self::try_connect(address, options)
            .map_err(|error| ConnectError::Tcp { address: address.to_owned(), error })
    }

    fn try_connect(address: &str, options: ConnectionOptions) -> io::Result<Self> {
        let resolved = resolve(address)?;
        let stream = match options.lazy {
            true => None,
            false => Some(dial(&resolved, Instant::now() + options.connect_timeout)?),
        };
        let shared = Arc::new(Shared {
            address: address.to_owned(),
            resolved,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            probing: AtomicBool::new(false),
            state: Mutex::new(State { window: options.window.max(1), ..State::default() }),
            options,
        });
        let client_loop = ClientLoop::new(Arc::clone(&shared), stream)?;
        let thread =
            thread::Builder::new().name("dunlin-tcp-client".to_owned()).spawn(move || client_loop.run())?;
        Ok(AsyncConnection(Arc::new(Handle { shared, thread: Some(thread) })))
    }

    /// Returns the server's address as given to [`connect`](AsyncConnection::connect).
    pub fn address(&self) -> &str {
        &self.0.shared.address
    }

    fn ticket<A: Arguments>(
        &self,
        time: Option<Duration>,
        name: &'static str,
        kind: u8,
        arguments: &A,
    ) -> Result<Arc<Ticket>, ThriftException> {
        let Shared { options, .. } = &*self.0.shared;
        let sequence = {
            let mut state = self.0.shared.state();
            state.next_number += 1;
            sequence(state.next_number)
        };
        let mut message = Outgoing::default();
        let head = Head { name: name.as_bytes(), kind, sequence, old: false };
        let limit = options.message_limit.min(i32::MAX as usize);
        append(&mut message, options.wire, limit, &head, &OfArguments(arguments))?;
        Ok(self.ticket_of(time, name, (kind, sequence), message.into_owned()))
    }

    /// Returns the ticket of an encoded call of this type and sequence number.
    fn ticket_of(
        &self,
        time: Option<Duration>,
        name: &'static str,
        (kind, sequence): (u8, i32),
        message: Outgoing<'static>,
    ) -> Arc<Ticket> {
        let (Shared { options, .. }, now) = (&*self.0.shared, Instant::now());
        let patience = options.wait_for_ready;
        Arc::new(Ticket {
            name,
            sequence,
            oneway: kind == ONEWAY,
            deadline: later(now, time.unwrap_or_else(|| options.call_time())),
            patience: (!patience.is_zero()).then(|| later(now, patience)),
            stage: Mutex::new(Stage::Waiting { message, waker: None }),
        })
    }

    /// Makes a call, sending it immediately if there is room. Dropping the future abandons the call; the
    /// server may still execute it.
    pub fn call<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &self,
        name: &'static str,
        arguments: &A,
    ) -> TcpCall<R, E> {
        self.call_within(None, name, arguments)
    }

    /// As [`call`](AsyncConnection::call), with a time of its own in place of that of the settings.
    pub fn call_within<A: Arguments, R: Outcome, E: ErrorOf<R>>(
        &self,
        time: Option<Duration>,
        name: &'static str,
        arguments: &A,
    ) -> TcpCall<R, E> {
        let state = match self.ticket(time, name, CALL, arguments) {
            Err(error) => CallState::Failed(CallError::Encode(error)),
            Ok(ticket) => self.begin(time, ticket),
        };
        TcpCall { client: self.clone(), state, outcome: PhantomData }
    }

    /// Makes a call that was encoded before. As [`call_within`](AsyncConnection::call_within).
    pub fn call_held<R: Outcome, E: ErrorOf<R>>(
        &self,
        time: Option<Duration>,
        name: &'static str,
        held: HeldMessage,
    ) -> TcpCall<R, E> {
        let state = self.begin(time, self.ticket_of(time, name, (CALL, sequence(0)), held.0));
        TcpCall { client: self.clone(), state, outcome: PhantomData }
    }

    fn begin(&self, time: Option<Duration>, ticket: Arc<Ticket>) -> CallState {
        if time == Some(Duration::ZERO) {
            return CallState::Failed(dunlin_rpc::CallError::NotExecuted(Cause::DeadlineExceeded).into());
        }
        match self.0.shared.submit(&ticket) {
            Ok(true) => CallState::Sent(ticket),
            Ok(false) => {
                let mut state = self.0.shared.state();
                state.next_number += 1;
                CallState::Room(state.next_number, ticket)
            }
            Err(error) => CallState::Failed(error.into()),
        }
    }

    /// Sends a oneway call. If there is no room, returns an error instead of waiting; the call is then not
    /// executed. Success means that the call was queued; a later failure to send it is only logged.
    pub fn oneway<A: Arguments>(&self, name: &'static str, arguments: &A) -> Result<(), CallError> {
        self.oneway_within(None, name, arguments)
    }

    /// As [`oneway`](AsyncConnection::oneway), with a time of its own in place of that of the settings.
    pub fn oneway_within<A: Arguments>(
        &self,
        time: Option<Duration>,
        name: &'static str,
        arguments: &A,
    ) -> Result<(), CallError> {
        let ticket = self.ticket(time, name, ONEWAY, arguments).map_err(CallError::Encode)?;
        if time == Some(Duration::ZERO) {
            return Err(dunlin_rpc::CallError::NotExecuted(Cause::DeadlineExceeded).into());
        }
        if self.0.shared.submit(&ticket)? {
            return Ok(());
        }
        Err(dunlin_rpc::CallError::NotExecuted(Cause::WindowFull).into())
    }
}

/// A call that is encoded before its connection exists, for [`AsyncConnection::call_held`].
#[derive(Debug)]
pub struct HeldMessage(Outgoing<'static>);

impl HeldMessage {
    /// Encodes a call of the function with this name. The connection must have the same options.
    ///
    /// # Errors
    /// The arguments cannot be encoded, or the message exceeds [`ConnectionOptions::message_limit`].
    pub fn new<A: Arguments>(
        options: &ConnectionOptions,
        name: &str,
        arguments: &A,
    ) -> Result<Self, ThriftException> {
        let mut message = Outgoing::default();
        let head = Head { name: name.as_bytes(), kind: CALL, sequence: sequence(0), old: false };
        let limit = options.message_limit.min(i32::MAX as usize);
        append(&mut message, options.wire, limit, &head, &OfArguments(arguments))?;
        Ok(HeldMessage(message.into_owned()))
    }
}

/// A call in progress over TCP. Dropping it abandons the call; the server may still execute it.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub struct TcpCall<R: Outcome, E> {
    client: AsyncConnection,
    state: CallState,
    outcome: PhantomData<fn() -> (R, E)>,
}

#[derive(Debug)]
enum CallState {
    /// Waits for room under this number.
    Room(u64, Arc<Ticket>),
    Sent(Arc<Ticket>),
    Failed(CallError),
    Over,
}

// No field is pinned: an error is only moved out.
impl<R: Outcome, E> Unpin for TcpCall<R, E> {}

impl<R: Outcome, E: ErrorOf<R>> Future for TcpCall<R, E> {
    type Output = Result<R::Value, E>;

    /// # Panics
    /// Panics when polled again after it returned `Ready`.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let shared = &this.client.0.shared;
        if let CallState::Room(number, ticket) = &this.state {
            let (number, ticket) = (*number, Arc::clone(ticket));
            // Registered before the check, so that room freed after the check causes a wake-up.
            let entry = (ticket.deadline, Some(context.waker().clone()));
            let replaced = shared.state().room.insert(number, entry);
            drop(replaced);
            let state = match shared.submit(&ticket) {
                Ok(true) => CallState::Sent(ticket),
                Ok(false) if Instant::now() < ticket.deadline => {
                    // The thread wakes this task at the deadline.
                    shared.ring();
                    return Poll::Pending;
                }
                Ok(false) => {
                    let text = "too many calls were under way for all of the call's time";
                    CallState::Failed(shared.not_sent(ErrorKind::TimedOut, text).into())
                }
                Err(error) => CallState::Failed(error.into()),
            };
            // Dropping a waker may run arbitrary code, so the lock must not be held.
            let gone = shared.state().room.remove(&number);
            drop(gone);
            this.state = state;
        }
        if let CallState::Sent(ticket) = &this.state {
            let Poll::Ready(result) = ticket.poll(context.waker()) else { return Poll::Pending };
            this.state = CallState::Over;
            let encoding = shared.options.wire.encoding;
            return Poll::Ready(match result {
                Ok(answer) => decode_answer::<R, E>(encoding, answer.kind, &answer.body, Some(&answer.body)),
                Err(error) => Err(CallError::from(error).into()),
            });
        }
        match std::mem::replace(&mut this.state, CallState::Over) {
            CallState::Failed(error) => Poll::Ready(Err(error.into())),
            _ => panic!("the call was polled after it was ready"),
        }
    }
}

impl<R: Outcome, E> Drop for TcpCall<R, E> {
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
