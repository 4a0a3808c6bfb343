//! Virtual time: tasks (simulated threads), the event queue, and the loop that runs both.
//!
//! Everything that will happen stands in one queue ordered by (time, sequence number); the sequence number is
//! given out in the order of scheduling, so the order is a pure function of the seed. One task runs at a time.
//!
//! Its own work moves its clock ahead without a switch ([`Shared::pass`]): what it does is dated by that clock,
//! so tasks work in parallel in virtual time. Where it may block or be pre-empted, [`Shared::enter`] lets all
//! events up to its clock happen first, and switches only if there are any. Calls that do not block by the
//! contract of the traits never switch, since their caller may hold a lock, and the next task to want that lock
//! would stop the one thread that there is.

use crate::host::Signals;
use crate::network::{Network, NetworkEvent};
use crate::random::Random;
use crate::report::{RunError, RunReport};
use crate::settings::Settings;
use crate::switch::{self, Strand};
use dunlin_fabric::{Nanos, Wake};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A task's number: its place in [`State::tasks`].
pub(crate) type TaskId = usize;

/// The body of a task.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

/// Names one stay of one task in one wait; outdated as soon as the task runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    task: TaskId,
    stay: u64,
}

/// What a task waits for, for the message about a deadlock.
#[derive(Clone, Debug)]
pub(crate) enum Reason {
    Arrivals { domain: u32, event: bool },
    Signal(u64),
    End(TaskId),
    Sleep,
    Message { link: u32 },
    Connection { address: String },
    Answer { address: String },
}

struct Stay {
    number: u64,
    reason: Reason,
    timer: Option<(Nanos, u64)>,
    woken: bool,
}

struct TaskState {
    name: String,
    stay: Option<Stay>,
    outcome: Wake,
    ended: bool,
    joiners: Vec<Waiter>,
    panic: Option<String>,
}

enum Event {
    /// A task that gave way runs on.
    Run { task: TaskId },
    /// A wait ends.
    Wake { waiter: Waiter, outcome: Wake },
    /// Something arrives in the network.
    Network(NetworkEvent),
}

/// Everything about a run but its stacks.
pub(crate) struct State {
    pub(crate) settings: Settings,
    /// Timings of network and scheduler.
    pub(crate) chance: Random,
    /// What [`dunlin_fabric::Host::random`] gives.
    pub(crate) host_random: Random,
    pub(crate) network: Network,
    pub(crate) signals: Signals,
    now: Nanos,
    /// How far the running task is ahead of `now`, in picoseconds.
    ahead: u64,
    sequence: u64,
    events: BTreeMap<(Nanos, u64), Event>,
    handled: u64,
    trace: u64,
    tasks: Vec<TaskState>,
    /// How many of them have not ended.
    live: usize,
    started: VecDeque<(TaskId, Body)>,
    running: Option<TaskId>,
    stays: u64,
    /// The running task ran too far ahead of all others.
    hogged: bool,
    /// The run is over: stacks are unwound, and nothing blocks any more.
    stopping: bool,
}

impl State {
    fn new(settings: Settings, seed: u64) -> Self {
        State {
            chance: Random::new(seed, 1),
            host_random: Random::new(seed, 2),
            network: Network::default(),
            signals: Signals::default(),
            now: settings.start,
            settings,
            ahead: 0,
            sequence: 0,
            events: BTreeMap::new(),
            handled: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            tasks: Vec::new(),
            live: 0,
            started: VecDeque::new(),
            running: None,
            stays: 0,
            hogged: false,
            stopping: false,
        }
    }

    /// The time on the running task's clock.
    pub(crate) fn now(&self) -> Nanos {
        self.now + self.ahead / 1000
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping
    }

    /// Puts work on the running task's clock.
    pub(crate) fn charge(&mut self, picoseconds: u64) {
        self.ahead = self.ahead.saturating_add(picoseconds);
    }

    /// Mixes a number into the trace hash (FNV-1a by words): equal hashes mean equal runs.
    pub(crate) fn note(&mut self, value: u64) {
        self.trace = (self.trace ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    fn put(&mut self, at: Nanos, event: Event) -> (Nanos, u64) {
        self.sequence += 1;
        let key = (at.max(self.now), self.sequence);
        self.events.insert(key, event);
        key
    }

    /// Has something happen in the network.
    pub(crate) fn schedule(&mut self, at: Nanos, event: NetworkEvent) {
        self.put(at, Event::Network(event));
    }

    /// Makes a task, which starts a little later.
    pub(crate) fn spawn(&mut self, name: &str, body: Body) -> TaskId {
        let task = self.tasks.len();
        self.tasks.push(TaskState {
            name: name.to_owned(),
            stay: None,
            outcome: Wake::Arrived,
            ended: false,
            joiners: Vec::new(),
            panic: None,
        });
        self.live += 1;
        self.started.push_back((task, body));
        let start = self.now() + self.chance.below(1000);
        self.put(start, Event::Run { task });
        task
    }

    pub(crate) fn has_ended(&self, task: TaskId) -> bool {
        self.tasks[task].ended
    }

    pub(crate) fn add_joiner(&mut self, task: TaskId, waiter: Waiter) {
        self.tasks[task].joiners.push(waiter);
    }

    /// Opens a stay for the running task, which must then [`Shared::park`].
    pub(crate) fn stay(&mut self, reason: Reason) -> Waiter {
        let task = self.running.expect("a blocking call of the simulated host was made outside of Sim::run");
        self.stays += 1;
        self.tasks[task].stay = Some(Stay { number: self.stays, reason, timer: None, woken: false });
        Waiter { task, stay: self.stays }
    }

    /// Ends a stay at some time; nothing if it has ended or is about to.
    pub(crate) fn wake(&mut self, waiter: Waiter, at: Nanos) {
        let Some(stay) = self.tasks[waiter.task].stay.as_mut() else { return };
        if stay.number != waiter.stay || stay.woken {
            return;
        }
        stay.woken = true;
        if let Some(timer) = stay.timer.take() {
            self.events.remove(&timer);
        }
        self.put(at, Event::Wake { waiter, outcome: Wake::Arrived });
    }

    /// Wakes all in a list, each after a delay of its own.
    pub(crate) fn wake_all(&mut self, waiters: &mut Vec<Waiter>) {
        for waiter in waiters.drain(..) {
            let at = self.now() + 20 + self.chance.below(200);
            self.wake(waiter, at);
        }
    }

    /// Lets one event happen; the task that is to run now, if any.
    fn handle(&mut self, event: Event) -> Option<TaskId> {
        self.handled += 1;
        self.note(self.now);
        match event {
            Event::Run { task } => {
                self.note(task as u64);
                Some(task)
            }
            Event::Wake { waiter, outcome } => {
                let task = &mut self.tasks[waiter.task];
                task.stay = None;
                task.outcome = outcome;
                self.note(waiter.task as u64 | 1 << 32);
                Some(waiter.task)
            }
            Event::Network(event) => {
                self.happen(event);
                None
            }
        }
    }

    fn end_task(&mut self, task: TaskId) {
        self.tasks[task].ended = true;
        self.live -= 1;
        let mut joiners = std::mem::take(&mut self.tasks[task].joiners);
        self.wake_all(&mut joiners);
    }

    fn describe_waits(&self) -> Vec<String> {
        let waiting = self.tasks.iter().filter(|task| !task.ended);
        waiting
            .map(|task| match &task.stay {
                Some(stay) => format!("'{}' waits for {}", task.name, Waited(self, &stay.reason)),
                None => format!("'{}' can run", task.name),
            })
            .collect()
    }
}

struct Waited<'a>(&'a State, &'a Reason);

impl fmt::Display for Waited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Reason::Arrivals { domain, event: true } => write!(f, "an event at domain {domain}"),
            Reason::Arrivals { domain, event: false } => {
                write!(
                    f,
                    "an arrival at domain {domain} (a completion, a WRITE in a watched region, a waker)"
                )
            }
            Reason::Signal(signal) => write!(f, "signal {signal}"),
            Reason::End(task) => write!(f, "the end of '{}'", self.0.tasks[*task].name),
            Reason::Sleep => write!(f, "time to pass"),
            Reason::Message { link } => write!(f, "a message on link {link}"),
            Reason::Connection { address } => write!(f, "a connection to {address}"),
            Reason::Answer { address } => write!(f, "the answer of {address}"),
        }
    }
}

/// The state of a run, as its handles share it. The lock is only there to make handles `Send + Sync`: one
/// thread takes it, and never across a switch.
pub(crate) struct Shared(Mutex<State>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    pub(crate) fn new(settings: Settings, seed: u64) -> Self {
        Shared(Mutex::new(State::new(settings, seed)))
    }

    /// The state as it is. For what must not switch: drops, and looks that need no order.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For what does not block, which may be called with a lock held and so must not switch: charges `price`
    /// nanoseconds. The task runs ahead on a clock of its own; what happens until then it sees after its next
    /// [`enter`](Shared::enter).
    pub(crate) fn pass(&self, price: Nanos) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.charge(price * 1000);
        if state.ahead / 1000 <= state.settings.run_ahead || !switch::inside() || state.stopping {
            return state;
        }
        state.hogged = true;
        drop(state);
        // For good: the run is given up.
        switch::suspend();
        self.lock()
    }

    /// For what may block: the state at the running task's time. Charges `price` nanoseconds, and everything that
    /// happens until then has happened. May switch tasks.
    pub(crate) fn enter(&self, price: Nanos) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.charge(price * 1000);
        if !switch::inside() || state.stopping {
            return state;
        }
        let clock = state.now();
        let due = state.events.first_key_value().is_some_and(|((at, _), _)| *at <= clock);
        if due || clock > state.settings.limit {
            // What was scheduled for this very instant before goes first; what is scheduled for it later does
            // not, else two tasks of one instant would give way to each other for ever.
            return self.give_way(state, clock);
        }
        state.now = clock;
        state.ahead %= 1000;
        state
    }

    /// Lets the others run until `at`.
    pub(crate) fn give_way<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        at: Nanos,
    ) -> MutexGuard<'a, State> {
        let Some(task) = state.running.filter(|_| !state.stopping) else { return state };
        state.put(at, Event::Run { task });
        state.ahead %= 1000;
        drop(state);
        switch::suspend();
        self.lock()
    }

    /// Parks the running task in its [`State::stay`] until it is woken, or until then. A stay may end for no
    /// reason now and then if `spurious` says that the caller has to cope with it.
    pub(crate) fn park<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        waiter: Waiter,
        until: Nanos,
        spurious: bool,
    ) -> (MutexGuard<'a, State>, Wake) {
        if state.stopping {
            return (state, Wake::TimedOut);
        }
        let clock = state.now();
        if until != Nanos::MAX {
            state.set_timer(waiter, until.max(clock), Wake::TimedOut);
        }
        if spurious && state.settings.spurious != 0 {
            let one_in = state.settings.spurious;
            if state.chance.one_in(one_in) {
                let at = clock + 1 + state.chance.below(20_000);
                if at < until {
                    state.set_timer(waiter, at, Wake::Arrived);
                }
            }
        }
        state.ahead %= 1000;
        drop(state);
        switch::suspend();
        let state = self.lock();
        let outcome = state.tasks[waiter.task].outcome;
        (state, outcome)
    }
}

impl State {
    fn set_timer(&mut self, waiter: Waiter, at: Nanos, outcome: Wake) {
        let key = self.put(at, Event::Wake { waiter, outcome });
        if let Some(stay) = self.tasks[waiter.task].stay.as_mut()
            && let Some(replaced) = stay.timer.replace(key)
        {
            self.events.remove(&replaced);
        }
    }
}

/// Runs `root` and everything it spawns to the end.
pub(crate) fn run(shared: &Arc<Shared>, root: Body) -> Result<RunReport, RunError> {
    let mut strands: Vec<Option<Strand>> = Vec::new();
    shared.lock().spawn("root", root);
    let result = drive(shared, &mut strands);
    shared.lock().stopping = true;
    // Unwinds what still stands on the stacks. Drops run by it may use the handles, but no longer block.
    drop(strands);
    let mut state = shared.lock();
    let bodies = std::mem::take(&mut state.started);
    let events = std::mem::take(&mut state.events);
    let network = std::mem::take(&mut state.network);
    drop(state);
    drop((bodies, events, network));
    match result {
        Ok(()) => {
            let state = shared.lock();
            let panics = state.tasks.iter().filter_map(|t| Some((t.name.clone(), t.panic.clone()?)));
            if let Some((task, message)) = panics.into_iter().next() {
                return Err(RunError::Panicked { task, message });
            }
            Ok(RunReport { end: state.now, events: state.handled, trace_hash: state.trace })
        }
        Err(Stop::Error(error)) => Err(error),
        Err(Stop::Panic(payload)) => resume_unwind(payload),
    }
}

enum Stop {
    Error(RunError),
    Panic(Box<dyn std::any::Any + Send>),
}

fn drive(shared: &Arc<Shared>, strands: &mut Vec<Option<Strand>>) -> Result<(), Stop> {
    let root_panic = Arc::new(Mutex::new(None));
    loop {
        let mut state = shared.lock();
        state.running = None;
        if state.live == 0 {
            return Ok(());
        }
        let Some(((at, _), event)) = state.events.pop_first() else {
            let waits = state.describe_waits();
            return Err(Stop::Error(RunError::Deadlock { at: state.now, waits }));
        };
        if at > state.settings.limit {
            let (limit, waits) = (state.settings.limit, state.describe_waits());
            return Err(Stop::Error(RunError::TimeLimit { limit, waits }));
        }
        state.now = at;
        let next = state.handle(event);
        let started = std::mem::take(&mut state.started);
        state.running = next;
        let stack = state.settings.stack;
        drop(state);
        for (task, body) in started {
            let wrapped = guarded(shared, task, body, Arc::clone(&root_panic));
            let strand = Strand::new(stack, wrapped)
                .map_err(|error| Stop::Error(RunError::Stack { bytes: stack, reason: error.to_string() }))?;
            strands.push(Some(strand));
        }
        let Some(task) = next else { continue };
        let ended = strands[task].as_mut().is_some_and(Strand::resume);
        let state = shared.lock();
        if state.hogged {
            let (task, limit) = (state.tasks[task].name.clone(), state.settings.run_ahead);
            return Err(Stop::Error(RunError::Hogged { task, limit }));
        }
        drop(state);
        if ended {
            strands[task] = None;
            let mut state = shared.lock();
            // What it did last takes its time too.
            state.now = state.now();
            state.ahead = 0;
            state.end_task(task);
        }
        if let Some(payload) = root_panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(Stop::Panic(payload));
        }
    }
}

/// Catches a task's panic: the root's ends the run, another's is reported at its end.
fn guarded(
    shared: &Arc<Shared>,
    task: TaskId,
    body: Body,
    root_panic: Arc<Mutex<Option<Box<dyn std::any::Any + Send>>>>,
) -> Body {
    let shared = Arc::clone(shared);
    Box::new(move || {
        let Err(payload) = catch_unwind(AssertUnwindSafe(body)) else { return };
        let mut state = shared.lock();
        if state.stopping {
            return;
        }
        if task == 0 {
            *root_panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        } else {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            state.tasks[task].panic = Some(text.unwrap_or_else(|| "no message".to_owned()));
        }
    })
}
