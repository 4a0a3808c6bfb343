//! Virtual time: tasks (simulated threads) and what happens to them.
//!
//! One task runs at a time. Its own work moves its clock ahead without a switch: what it does is dated by that clock,
//! so tasks work in parallel in virtual time. Where it may block or be pre-empted, it lets all events up to its clock
//! happen first, and switches only if one of them is another task's. Calls that do not block by the contract of the
//! traits never switch, since their caller may hold a lock, and the next task to want that lock would stop the one
//! thread that there is.

use crate::events::{Event, Events};
use crate::host::Signals;
use crate::machine::Machine;
use crate::network::Network;
use crate::process::Process;
use crate::random::Random;
use crate::settings::Settings;
use crate::timing::Timing;
use dunlin_fabric::{Nanos, Wake, copy};
use std::collections::VecDeque;
use std::fmt;

/// Tasks from which on what the next event needs is asked for ahead: with fewer it is in the caches anyhow.
const LARGE: usize = 256;
/// Events ahead of the next one of which something is asked for.
const EVENTS_AHEAD: usize = 14;
/// Lines of a task's stack that are asked for, from where it was suspended: below it the next calls will lie, above it lie those that
/// it is in.
const LINES_BELOW: usize = 10;
const LINES_ABOVE: usize = 18;
const LINE: usize = 64;

/// A task's number: its place in [`State::tasks`].
pub(crate) type TaskId = u32;

/// The body of a task.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

/// Names one stay of one task in one wait; outdated as soon as the task runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) task: TaskId,
    stay: u64,
}

/// What a task waits for, for the message about a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Arrivals {
        domain: u32,
        event: bool,
    },
    Signal(u64),
    End(TaskId),
    Sleep,
    Message {
        link: u32,
    },
    /// At a listener.
    Connection(u32),
    Answer,
}

impl Reason {
    /// Whether the task keeps its core, looking again and again.
    fn spins(self) -> bool {
        matches!(self, Reason::Arrivals { event: false, .. })
    }
}

#[derive(Clone, Copy)]
struct Stay {
    number: u64,
    reason: Reason,
    woken: bool,
    /// The task's own clock when it began: the stay does not end before.
    since: Nanos,
}

/// A task. What a switch touches lies in two cache lines.
#[repr(align(64))]
pub(crate) struct TaskState {
    pub(crate) process: u32,
    pub(crate) machine: u32,
    stay: Option<Stay>,
    outcome: Wake,
    /// When its wait is over, and how that is told; `MAX` for never.
    timer: Nanos,
    timer_outcome: Wake,
    /// The earliest timer event of it in the queue. Later ones than needed are not taken out: the task looks again.
    timer_event: Nanos,
    pub(crate) ended: bool,
    /// Its process was killed.
    pub(crate) doomed: bool,
    /// The core it is on, where its machine has a limited number.
    pub(crate) core: Option<u32>,
    /// It has something to do and no core.
    pub(crate) ready: bool,
    /// Where its stack stood when it was suspended last; what it does next it does there.
    stack: usize,
    /// The end of its stack, where it began, and where it lies what switches to it: for asking for their lines.
    stack_end: usize,
    strand: usize,
    pub(crate) rest: Box<TaskRest>,
}

/// What of a task no switch touches.
pub(crate) struct TaskRest {
    pub(crate) name: String,
    joiners: Vec<Waiter>,
    pub(crate) panic: Option<String>,
}

impl TaskState {
    pub(crate) fn is_in_stay(&self) -> bool {
        self.stay.is_some()
    }
}

/// A hash over all that happened (FNV-1a by words): equal hashes mean equal runs.
pub(crate) struct Trace(u64);

impl Trace {
    #[inline(always)]
    fn note(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    #[inline(always)]
    pub(crate) fn note_at(&mut self, kind: u64, at: u32, detail: u64) {
        self.note(kind << 56 | u64::from(at));
        self.note(detail);
    }

    #[inline(always)]
    pub(crate) fn note_bytes(&mut self, kind: u64, bytes: &[u8]) {
        self.note(kind << 56 | bytes.len() as u64);
        // Most payloads are a line.
        let Ok(line) = <&[u8; LINE]>::try_from(bytes) else { return self.note_words(bytes) };
        for word in line.as_chunks::<8>().0 {
            self.note(u64::from_le_bytes(*word));
        }
    }

    #[inline(never)]
    fn note_words(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.note(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.note(u64::from_le_bytes(word));
        }
    }
}

/// Everything about a run but its stacks.
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) timing: Timing,
    /// Timings of network and scheduler.
    pub(crate) chance: Random,
    /// What [`dunlin_fabric::Host::random`] gives.
    pub(crate) host_random: Random,
    pub(crate) network: Network,
    pub(crate) signals: Signals,
    pub(crate) machines: Vec<Machine>,
    /// Whether work takes longer or shorter than its price on any of them.
    pub(crate) has_slow_machines: bool,
    pub(crate) processes: Vec<Process>,
    /// The time of the latest event.
    event_clock: Nanos,
    /// The running task's clock is the sum of a time and of picoseconds, which are only added to: it is moved much more often than
    /// read. While an event happens: its time.
    clock: Nanos,
    fraction: u64,
    /// As many picoseconds as a task may be ahead of all others.
    much: u64,
    pub(crate) events: Events,
    handled: u64,
    /// The packets whose arrivals were looked at last, the latest first.
    arrivals: [Option<u32>; 4],
    /// Times that a task was given the processor.
    pub(crate) switches: u64,
    pub(crate) trace: Trace,
    pub(crate) tasks: Vec<TaskState>,
    /// How many of them have not ended.
    pub(crate) live: usize,
    pub(crate) started: VecDeque<(TaskId, Body)>,
    running: Option<TaskId>,
    doomed: bool,
    stays: u64,
    /// A task that an event has just woken, and when: it runs next, without a way through the queue.
    next: Option<(TaskId, u64, Nanos)>,
    /// The running task ran too far ahead of all others.
    pub(crate) hogged: bool,
    /// The run is over: tasks end where they stand, and nothing blocks any more.
    pub(crate) stopping: bool,
}

impl State {
    pub(crate) fn new(settings: Settings, timing: Timing, seed: u64) -> Self {
        let much = settings.run_ahead.saturating_mul(1000);
        State {
            chance: Random::new(seed, 1),
            host_random: Random::new(seed, 2),
            timing,
            network: Network::default(),
            signals: Signals::default(),
            machines: settings.machines.iter().map(Machine::new).collect(),
            has_slow_machines: false,
            processes: vec![Process::on(0)],
            event_clock: settings.start,
            clock: settings.start,
            settings,
            fraction: 0,
            much,
            events: Events::default(),
            handled: 0,
            arrivals: [None; 4],
            switches: 0,
            trace: Trace(0xcbf2_9ce4_8422_2325),
            tasks: Vec::new(),
            live: 0,
            started: VecDeque::new(),
            running: None,
            doomed: false,
            stays: 0,
            next: None,
            hogged: false,
            stopping: false,
        }
    }

    /// The time on the running task's clock, or of the event that happens.
    #[inline(always)]
    pub(crate) fn now(&self) -> Nanos {
        self.clock + self.fraction / 1000
    }

    pub(crate) fn clock_of_events(&self) -> Nanos {
        self.event_clock
    }

    /// Whether the running task shall end.
    #[inline(always)]
    pub(crate) fn over(&self) -> bool {
        self.stopping || self.doomed
    }

    pub(crate) fn running(&self) -> Option<TaskId> {
        self.running
    }

    pub(crate) fn handled(&self) -> u64 {
        self.handled
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace.0
    }

    /// Puts work on the running task's clock.
    #[inline(always)]
    pub(crate) fn charge(&mut self, picoseconds: u64) {
        self.fraction += picoseconds;
    }

    /// Whether the running task is too far ahead of all others. It cannot be before it has charged as much, which is asked first: this
    /// is asked with nearly every call of a handle.
    #[inline(always)]
    pub(crate) fn is_hogging(&self) -> bool {
        self.fraction > self.much && self.is_far_ahead()
    }

    #[cold]
    #[inline(never)]
    fn is_far_ahead(&self) -> bool {
        self.now() - self.event_clock > self.settings.run_ahead
    }

    /// The queue's time follows the running task's, as far as nothing is due before.
    #[inline]
    pub(crate) fn settle(&mut self) {
        self.event_clock = self.event_clock.max(self.now().min(self.events.next_time()));
    }

    /// Whether the running task may go on as it is: nothing is due, it shall not end, and there is no core that it may have to
    /// give to another.
    #[inline(always)]
    pub(crate) fn has_the_time_to_itself(&self) -> bool {
        let now = self.now();
        self.events.next_time() > now
            && now <= self.settings.limit
            && !self.over()
            && self.running.is_some_and(|task| self.tasks[task as usize].core.is_none())
    }

    /// [`settle`](State::settle), for a task that has the time to itself.
    #[inline(always)]
    pub(crate) fn settle_at_clock(&mut self) {
        self.event_clock = self.event_clock.max(self.now());
    }

    /// Mixes a number into the trace hash.
    #[inline(always)]
    pub(crate) fn note(&mut self, value: u64) {
        self.trace.note(value);
    }

    /// Keeps a line of history, if somebody wants it.
    #[inline]
    pub(crate) fn tell(&self, what: impl FnOnce(&State) -> String) {
        if self.settings.history.is_some() {
            self.tell_history(what);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_history(&self, what: impl FnOnce(&State) -> String) {
        if let Some(history) = &self.settings.history {
            history.push(self.now(), what(self));
        }
    }

    /// Has something happen, not before what has happened already.
    #[inline]
    pub(crate) fn put(&mut self, at: Nanos, event: Event) {
        self.events.push(at.max(self.event_clock), event);
    }

    /// Makes a task of a process, which starts a little later.
    pub(crate) fn spawn(&mut self, name: &str, process: u32, body: Body) -> TaskId {
        let task = self.tasks.len() as TaskId;
        self.tasks.push(TaskState {
            process,
            machine: self.processes[process as usize].machine,
            stay: None,
            outcome: Wake::Arrived,
            timer: Nanos::MAX,
            timer_outcome: Wake::TimedOut,
            timer_event: Nanos::MAX,
            ended: false,
            doomed: false,
            core: None,
            ready: false,
            stack: 0,
            stack_end: 0,
            strand: 0,
            rest: Box::new(TaskRest { name: name.to_owned(), joiners: Vec::new(), panic: None }),
        });
        self.live += 1;
        if self.is_large() {
            self.events.keep_in_order(EVENTS_AHEAD);
        }
        self.started.push_back((task, body));
        let start = self.now() + self.timing.thread_start(&mut self.chance);
        self.put(start, Event::Run { task });
        task
    }

    pub(crate) fn has_ended(&self, task: TaskId) -> bool {
        self.tasks[task as usize].ended
    }

    pub(crate) fn add_joiner(&mut self, task: TaskId, waiter: Waiter) {
        self.tasks[task as usize].rest.joiners.push(waiter);
    }

    pub(crate) fn outcome(&self, waiter: Waiter) -> Wake {
        self.tasks[waiter.task as usize].outcome
    }

    /// Opens a stay for the running task, which must then [`park`](crate::shared::Shared::park).
    #[inline]
    pub(crate) fn stay(&mut self, reason: Reason) -> Waiter {
        let task = self.running.expect("a blocking call of the simulated host was made outside of Sim::run");
        self.stays += 1;
        let since = self.now();
        self.tasks[task as usize].stay = Some(Stay { number: self.stays, reason, woken: false, since });
        Waiter { task, stay: self.stays }
    }

    /// The running task is about to be suspended in its stay.
    #[inline]
    pub(crate) fn begin_stay(&mut self, waiter: Waiter, until: Nanos, spurious: bool) {
        let clock = self.now();
        let task = &mut self.tasks[waiter.task as usize];
        task.timer = if until == Nanos::MAX { until } else { until.max(clock) };
        task.timer_outcome = Wake::TimedOut;
        if spurious && self.settings.spurious != 0 && self.chance.one_in(self.settings.spurious) {
            let at = clock + 1 + self.chance.below(20_000);
            if at < until {
                task.timer = at;
                task.timer_outcome = Wake::Arrived;
            }
        }
        let (timer, spins) = (task.timer, task.stay.is_some_and(|stay| stay.reason.spins()));
        if timer < task.timer_event {
            task.timer_event = timer;
            self.put(timer, Event::Timer { task: waiter.task });
        }
        self.tell(|state| {
            let task = &state.tasks[waiter.task as usize];
            let reason = task.stay.map_or(Reason::Sleep, |stay| stay.reason);
            let until = if timer == Nanos::MAX { String::new() } else { format!(" until {timer} at most") };
            format!("'{}' waits for {}{until}", task.rest.name, Waited(state, reason))
        });
        if self.tasks[waiter.task as usize].core.is_some() {
            self.rest(waiter.task, spins);
        }
    }

    /// Whether a stay lasts and nothing has ended it yet.
    pub(crate) fn waits(&self, waiter: Waiter) -> bool {
        let stay = self.tasks[waiter.task as usize].stay;
        stay.is_some_and(|stay| stay.number == waiter.stay && !stay.woken)
    }

    /// Ends a stay at some time; nothing if it has ended or is about to.
    #[inline]
    pub(crate) fn wake(&mut self, waiter: Waiter, at: Nanos) {
        let task = &mut self.tasks[waiter.task as usize];
        let Some(stay) = task.stay.as_mut() else { return };
        if stay.number != waiter.stay || stay.woken {
            return;
        }
        stay.woken = true;
        task.timer = Nanos::MAX;
        let at = at.max(stay.since);
        // Within the slack it may as well run at once.
        if self.running.is_none() && self.next.is_none() && at <= self.event_clock + self.settings.slack {
            self.next = Some((waiter.task, waiter.stay, at));
        } else {
            self.put(at, Event::Wake { task: waiter.task, stay: waiter.stay });
        }
    }

    /// Wakes all in a list, each after a delay of its own.
    pub(crate) fn wake_all(&mut self, waiters: &mut Vec<Waiter>) {
        for waiter in waiters.drain(..) {
            let at = self.now() + self.timing.wake_up(&mut self.chance);
            self.wake(waiter, at);
        }
    }

    /// Ends a doomed task's stay, and gives it the processor to end on.
    pub(crate) fn doom(&mut self, task: TaskId) {
        let state = &mut self.tasks[task as usize];
        if state.ended || state.doomed {
            return;
        }
        state.doomed = true;
        state.stay = None;
        state.timer = Nanos::MAX;
        if self.running == Some(task) {
            self.doomed = true;
        } else {
            self.put(self.now(), Event::Run { task });
        }
    }

    /// The task is about to be suspended with its stack at this address.
    #[inline]
    pub(crate) fn suspended_at(&mut self, task: TaskId, address: usize) {
        self.tasks[task as usize].stack = address;
    }

    /// A task has a stack, which ends there, and is switched to by what lies at `strand`.
    pub(crate) fn has_stack(&mut self, task: TaskId, stack_end: usize, strand: usize) {
        let state = &mut self.tasks[task as usize];
        (state.stack_end, state.strand) = (stack_end, strand);
    }

    /// Whether the run is so large that what a task touches has left the caches since it ran last.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.live > LARGE
    }

    /// Asks for what is known of a task.
    #[inline]
    fn warm_task(&self, task: TaskId) {
        let state: *const u8 = (&raw const self.tasks[task as usize]).cast();
        for at in (0..size_of::<TaskState>()).step_by(LINE) {
            copy::prefetch_to_write(state.wrapping_add(at));
        }
    }

    /// Asks for the lines that a task will touch first: of its stack, from where it was suspended both ways.
    #[inline]
    fn warm(&self, task: TaskId) {
        let TaskState { stack, stack_end, strand, .. } = self.tasks[task as usize];
        copy::prefetch_to_write(strand as *const u8);
        let first = stack.wrapping_sub(LINES_BELOW * LINE) as *const u8;
        // So many in any case, also if they lie above its stack: that costs least.
        for line in 0..LINES_BELOW + LINES_ABOVE {
            copy::prefetch_to_write(first.wrapping_add(line * LINE));
        }
        // Where it began stands the way back.
        copy::prefetch_to_write(stack_end.wrapping_sub(LINE) as *const u8);
    }

    /// Asks for what the next events will touch, while this one happens. Where that is told by what is to be asked for itself, one
    /// step for each arrival that is seen later. A landing comes so shortly after the arrival that all it takes is asked for with
    /// that.
    #[inline]
    fn look_ahead(&mut self) {
        match self.events.ahead(EVENTS_AHEAD) {
            Some(Event::Arrive { packet }) => self.look_at_arrival(packet),
            Some(Event::Acknowledged { queue_pair, .. } | Event::Done { queue_pair, .. }) => {
                self.network.warm_queue_pair(queue_pair);
            }
            Some(Event::Wake { task, .. } | Event::Run { task }) => self.warm_task(task),
            _ => {}
        }
        if let Some(Event::Wake { task, .. } | Event::Run { task }) = self.events.ahead(3) {
            self.warm(task);
        }
    }

    #[inline]
    fn look_at_arrival(&mut self, packet: u32) {
        let [last, second, third, fourth] = self.arrivals;
        // What was put before it meanwhile has it come by again.
        if last == Some(packet) {
            return;
        }
        let network = &self.network;
        network.warm_arrival(packet);
        if let Some(packet) = last {
            network.warm_memory(packet);
        }
        if let Some(packet) = second {
            network.warm_landing(packet);
        }
        if let Some((task, touched)) = third.and_then(|packet| network.waits_for_landing(packet)) {
            self.warm_task(task);
            touched.lines().for_each(copy::prefetch_to_write);
        }
        if let Some((task, _)) = fourth.and_then(|packet| network.waits_for_landing(packet)) {
            self.warm(task);
        }
        self.arrivals = [Some(packet), last, second, third];
    }

    /// Lets the next events happen as long as they are the network's and not later than `clock`, on the running task's time.
    pub(crate) fn happen_until(&mut self, clock: Nanos) {
        let own = (self.clock, self.fraction);
        self.happen_in_network(clock);
        (self.clock, self.fraction) = own;
    }

    /// Lets the next events happen as long as they are the network's and not later than `until`, and none has woken a task that runs
    /// at once.
    #[inline(never)]
    fn happen_in_network(&mut self, until: Nanos) {
        while self.next.is_none()
            && self.events.next_time() <= until
            && self.events.next_is_of_network()
            && let Some((at, event)) = self.events.pop()
        {
            self.begin_event(at);
            self.happen(event);
        }
    }

    #[inline(always)]
    fn begin_event(&mut self, at: Nanos) {
        self.handled += 1;
        if self.is_large() {
            self.look_ahead();
        }
        self.event_clock = at.max(self.event_clock);
        self.clock = at;
        self.fraction = 0;
        self.note(at);
    }

    /// Lets events happen until a task is to run; `None` when there are none, or when time is over.
    pub(crate) fn next_task(&mut self) -> Option<TaskId> {
        self.running = None;
        self.doomed = false;
        while let Some(at) = self.events.next_at() {
            if at > self.settings.limit && !self.is_stale_timer() {
                return None;
            }
            let task = match self.events.next_is_of_network() {
                true => {
                    self.happen_in_network(self.settings.limit);
                    None
                }
                false => self.happen_to_task(),
            };
            let task = if self.next.is_some() { self.take_next(task) } else { task };
            let Some(task) = task else { continue };
            if self.tasks[task as usize].ended {
                continue;
            }
            self.note(u64::from(task) | 1 << 32);
            if let Some(task) = self.on_a_core(task) {
                self.running = Some(task);
                self.switches += 1;
                self.doomed = self.tasks[task as usize].doomed;
                self.tell(|state| format!("'{}' runs", state.tasks[task as usize].rest.name));
                return Some(task);
            }
        }
        None
    }

    /// Lets the next event happen, which is one of a task; says who is to run by it.
    #[inline]
    fn happen_to_task(&mut self) -> Option<TaskId> {
        let (at, event) = self.events.pop()?;
        self.begin_event(at);
        match event {
            Event::Run { task } => Some(task),
            Event::Wake { task, stay } => self.end_stay(task, |number| number == stay, Wake::Arrived),
            Event::Timer { task } => self.look_at_timer(task, at),
            Event::Quantum { machine, core } => {
                self.quantum_is_over(machine, core);
                None
            }
            _ => None,
        }
    }

    /// What is to run, if an event has woken a task that runs at once: that, unless there is another.
    fn take_next(&mut self, other: Option<TaskId>) -> Option<TaskId> {
        let (next, stay, at) = self.next.take()?;
        if other.is_some() {
            self.put(at, Event::Wake { task: next, stay });
            return other;
        }
        self.clock = at;
        self.end_stay(next, |number| number == stay, Wake::Arrived)
    }

    #[inline]
    fn end_stay(&mut self, task: TaskId, is_it: impl Fn(u64) -> bool, outcome: Wake) -> Option<TaskId> {
        let state = &mut self.tasks[task as usize];
        state.stay.filter(|stay| is_it(stay.number))?;
        state.stay = None;
        state.timer = Nanos::MAX;
        state.outcome = outcome;
        Some(task)
    }

    fn look_at_timer(&mut self, task: TaskId, at: Nanos) -> Option<TaskId> {
        let state = &mut self.tasks[task as usize];
        if state.timer_event != at {
            return None;
        }
        state.timer_event = Nanos::MAX;
        if state.timer == Nanos::MAX || state.ended {
            return None;
        }
        if state.timer <= at {
            let outcome = state.timer_outcome;
            return self.end_stay(task, |_| true, outcome);
        }
        state.timer_event = state.timer;
        let timer = state.timer;
        self.put(timer, Event::Timer { task });
        None
    }

    /// Whether the next event is a timer that means nothing any more.
    #[cold]
    fn is_stale_timer(&self) -> bool {
        let Some((at, Event::Timer { task })) = self.events.peek() else { return false };
        let task = &self.tasks[task as usize];
        task.timer_event != at || task.timer == Nanos::MAX || task.ended
    }

    /// The run is over: whoever still runs does so outside of time.
    pub(crate) fn end_run(&mut self) {
        self.running = None;
    }

    pub(crate) fn end_task(&mut self, task: TaskId) {
        self.running = None;
        self.doomed = false;
        self.tasks[task as usize].ended = true;
        self.live -= 1;
        if self.tasks[task as usize].core.is_some() {
            self.rest(task, false);
        }
        let mut joiners = std::mem::take(&mut self.tasks[task as usize].rest.joiners);
        self.wake_all(&mut joiners);
    }

    /// Whether a task waits in vain for what only time brings.
    pub(crate) fn is_spinning(&self, task: TaskId) -> bool {
        self.tasks[task as usize].stay.is_some_and(|stay| stay.reason.spins())
    }

    /// Whether something is left to happen: then what ended the run is its limit of time.
    pub(crate) fn is_past_limit(&self) -> bool {
        self.events.next_at().is_some()
    }

    pub(crate) fn describe_waits(&self) -> Vec<String> {
        let waiting = self.tasks.iter().filter(|task| !task.ended);
        waiting
            .map(|task| match &task.stay {
                Some(stay) => format!("'{}' waits for {}", task.rest.name, Waited(self, stay.reason)),
                None if task.ready => format!("'{}' waits for a core", task.rest.name),
                None => format!("'{}' can run", task.rest.name),
            })
            .collect()
    }
}

struct Waited<'a>(&'a State, Reason);

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
            Reason::End(task) => write!(f, "the end of '{}'", self.0.tasks[task as usize].rest.name),
            Reason::Sleep => write!(f, "time to pass"),
            Reason::Message { link } => write!(f, "a message on link {link}"),
            Reason::Connection(listener) => {
                write!(f, "a connection to {}", self.0.network.links.listener_name(listener))
            }
            Reason::Answer => write!(f, "the answer of a listener that does not accept"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_switch_touches_of_a_task_is_two_cache_lines() {
        assert_eq!(size_of::<TaskState>(), 2 * LINE);
    }
}
