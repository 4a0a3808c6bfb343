//! Virtual time: tasks (simulated threads) and their scheduling.
//!
//! One task runs at a time. Its work advances its own clock without a switch, and its actions carry that
//! clock's time, so tasks work in parallel in virtual time. Where a task may block or be pre-empted, all
//! events up to its clock happen first, and it switches only if one of them belongs to another task. Calls
//! that do not block by the contract of the traits never switch: their caller may hold a lock, and the next
//! task to take that lock would block the only thread.

use crate::events::Event;
use crate::state::State;
use crate::tasks::{Body, Reason, Stay, TaskId, TaskRest, TaskState, Waiter};
use dunlin_fabric::{Nanos, Wake, copy};
use std::fmt;

/// Number of tasks from which on the memory of upcoming events is prefetched; with fewer it stays in the
/// caches.
const LARGE: usize = 256;
/// Distance of prefetching, in events.
const EVENTS_AHEAD: usize = 14;
/// Prefetched lines of a task's stack, below and above the address where it was suspended: below are future
/// frames, above are the active ones.
const LINES_BELOW: usize = 10;
const LINES_ABOVE: usize = 18;
const LINE: usize = 64;

impl State {
    /// Returns the running task's time, or that of the current event.
    #[inline(always)]
    pub(crate) fn now(&self) -> Nanos {
        self.clock + self.fraction / 1000
    }

    pub(crate) fn clock_of_events(&self) -> Nanos {
        self.event_clock
    }

    /// Returns whether the running task must end.
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

    /// Adds work to the running task's clock.
    #[inline(always)]
    pub(crate) fn charge(&mut self, picoseconds: u64) {
        self.fraction += picoseconds;
    }

    /// Returns whether the running task is too far ahead of all others. Nearly every call of a handle checks
    /// this, so the cheap necessary condition comes first.
    #[inline(always)]
    pub(crate) fn is_hogging(&self) -> bool {
        self.fraction > self.much && self.is_far_ahead()
    }

    #[cold]
    #[inline(never)]
    fn is_far_ahead(&self) -> bool {
        self.now() - self.event_clock > self.settings.run_ahead
    }

    /// Advances the queue's time to the running task's, as far as no event is due before.
    #[inline]
    pub(crate) fn settle(&mut self) {
        self.event_clock = self.event_clock.max(self.now().min(self.events.next_time()));
    }

    /// Returns whether the running task may continue without scheduling: no event is due, it need not end,
    /// and it has no limited core to yield.
    #[inline(always)]
    pub(crate) fn has_the_time_to_itself(&self) -> bool {
        let now = self.now();
        self.events.next_time() > now
            && now <= self.settings.limit
            && !self.over()
            && self.running.is_some_and(|task| self.tasks[task as usize].core.is_none())
    }

    /// [`settle`](State::settle) for a task with no event due.
    #[inline(always)]
    pub(crate) fn settle_at_clock(&mut self) {
        self.event_clock = self.event_clock.max(self.now());
    }

    /// Mixes a number into the trace hash.
    #[inline(always)]
    pub(crate) fn note(&mut self, value: u64) {
        self.trace.note(value);
    }

    /// Appends a line to the history, if one is kept.
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

    /// Schedules an event, not earlier than the latest past event.
    #[inline]
    pub(crate) fn put(&mut self, at: Nanos, event: Event) {
        self.events.push(at.max(self.event_clock), event);
    }

    /// Creates a task of a process; it starts after a short delay.
    pub(crate) fn spawn(&mut self, name: &str, process: u32, body: Body) -> TaskId {
        let task = self.tasks.len() as TaskId;
        let start = self.now() + self.timing.thread_start(&mut self.chance);
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
            rest: Box::new(TaskRest {
                name: name.to_owned(),
                began: start,
                ended_at: Nanos::MAX,
                joiners: Vec::new(),
                panic: None,
            }),
        });
        self.live += 1;
        if self.is_large() {
            self.events.keep_in_order(EVENTS_AHEAD);
        }
        self.started.push_back((task, body));
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

    /// Opens a wait for the running task, which must then [`park`](crate::shared::Shared::park).
    #[inline]
    pub(crate) fn stay(&mut self, reason: Reason) -> Waiter {
        let task = self.running.expect("a blocking call of the simulated host was made outside of Sim::run");
        self.stays += 1;
        let since = self.now();
        self.tasks[task as usize].stay = Some(Stay { number: self.stays, reason, woken: false, since });
        Waiter { task, stay: self.stays }
    }

    /// Sets the timer of the running task's wait before it is suspended.
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

    /// Returns whether a wait is still open and nothing has ended it.
    pub(crate) fn waits(&self, waiter: Waiter) -> bool {
        let stay = self.tasks[waiter.task as usize].stay;
        stay.is_some_and(|stay| stay.number == waiter.stay && !stay.woken)
    }

    /// Ends a wait at a time; does nothing if it has ended or is about to.
    #[inline]
    pub(crate) fn wake(&mut self, waiter: Waiter, at: Nanos) {
        let task = &mut self.tasks[waiter.task as usize];
        let Some(stay) = task.stay.as_mut() else { return };
        if stay.number != waiter.stay || stay.woken {
            return;
        }
        stay.woken = true;
        let stay = *stay;
        task.timer = Nanos::MAX;
        self.end_sleep(waiter.task, stay);
        let at = at.max(stay.since);
        // Within the slack the task may run at once.
        if self.running.is_none() && self.next.is_none() && at <= self.event_clock + self.settings.slack {
            self.next = Some((waiter.task, waiter.stay, at));
        } else {
            self.put(at, Event::Wake { task: waiter.task, stay: waiter.stay });
        }
    }

    /// Wakes all tasks in a list, each after its own delay.
    pub(crate) fn wake_all(&mut self, waiters: &mut Vec<Waiter>) {
        for waiter in waiters.drain(..) {
            let at = self.now() + self.timing.wake_up(&mut self.chance);
            self.wake(waiter, at);
        }
    }

    /// Ends a doomed task's wait and schedules the task, so that it can unwind.
    pub(crate) fn doom(&mut self, task: TaskId) {
        let state = &mut self.tasks[task as usize];
        if state.ended || state.doomed {
            return;
        }
        state.doomed = true;
        let stay = state.stay.take();
        state.timer = Nanos::MAX;
        if let Some(stay) = stay.filter(|stay| !stay.woken) {
            self.end_sleep(task, stay);
        }
        if self.running == Some(task) {
            self.doomed = true;
        } else {
            self.put(self.now(), Event::Run { task });
        }
    }

    /// Records the stack address at which a task is suspended.
    #[inline]
    pub(crate) fn suspended_at(&mut self, task: TaskId, address: usize) {
        self.tasks[task as usize].stack = address;
    }

    /// Records the end of a task's stack and the address of its strand.
    pub(crate) fn has_stack(&mut self, task: TaskId, stack_end: usize, strand: usize) {
        let state = &mut self.tasks[task as usize];
        (state.stack_end, state.strand) = (stack_end, strand);
    }

    /// Returns whether the run is so large that a task's memory has left the caches between its runs.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.live > LARGE
    }

    /// Prefetches a task's state.
    #[inline]
    fn warm_task(&self, task: TaskId) {
        let state: *const u8 = (&raw const self.tasks[task as usize]).cast();
        for at in (0..size_of::<TaskState>()).step_by(LINE) {
            copy::prefetch_to_write(state.wrapping_add(at));
        }
    }

    /// Prefetches the first lines that a task will touch: its stack around the address of suspension.
    #[inline]
    fn warm(&self, task: TaskId) {
        let TaskState { stack, stack_end, strand, .. } = self.tasks[task as usize];
        copy::prefetch_to_write(strand as *const u8);
        let first = stack.wrapping_sub(LINES_BELOW * LINE) as *const u8;
        // A fixed number of lines, even beyond the end of the stack: that is cheapest.
        for line in 0..LINES_BELOW + LINES_ABOVE {
            copy::prefetch_to_write(first.wrapping_add(line * LINE));
        }
        // The return path is stored at the stack's start.
        copy::prefetch_to_write(stack_end.wrapping_sub(LINE) as *const u8);
    }

    /// Prefetches for upcoming events while the present one happens. Where an address depends on memory that
    /// must be prefetched first, each later arrival performs one step of the chain. A landing follows its
    /// arrival closely, so everything that it needs is prefetched with the arrival.
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
        // An event inserted before this one makes the same arrival appear again.
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

    /// Executes the next events while they are network events not later than `clock`, without changing the
    /// running task's time.
    pub(crate) fn happen_until(&mut self, clock: Nanos) {
        let own = (self.clock, self.fraction);
        self.happen_in_network(clock);
        (self.clock, self.fraction) = own;
    }

    /// Executes the next events while they are network events not later than `until`, and stops once one has
    /// woken a task that runs at once.
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

    /// Executes events until a task is to run; returns `None` if no event is left or the time limit is
    /// reached.
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

    /// Executes the next event, which belongs to a task; returns the task to run.
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

    /// Takes the task that an event has just woken, or queues it again if `other` runs first.
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
            if let Some(stay) = state.stay {
                self.end_sleep(task, stay);
            }
            return self.end_stay(task, |_| true, outcome);
        }
        state.timer_event = state.timer;
        let timer = state.timer;
        self.put(timer, Event::Timer { task });
        None
    }

    /// Returns whether the next event is an outdated timer.
    #[cold]
    fn is_stale_timer(&self) -> bool {
        let Some((at, Event::Timer { task })) = self.events.peek() else { return false };
        let task = &self.tasks[task as usize];
        task.timer_event != at || task.timer == Nanos::MAX || task.ended
    }

    /// Ends the run: tasks that still execute do so outside of virtual time.
    pub(crate) fn end_run(&mut self) {
        self.running = None;
    }

    pub(crate) fn end_task(&mut self, task: TaskId) {
        self.running = None;
        self.doomed = false;
        self.tasks[task as usize].ended = true;
        self.tasks[task as usize].rest.ended_at = self.now();
        self.live -= 1;
        if self.tasks[task as usize].core.is_some() {
            self.rest(task, false);
        }
        let mut joiners = std::mem::take(&mut self.tasks[task as usize].rest.joiners);
        self.wake_all(&mut joiners);
    }

    /// Returns whether a task is in a busy wait.
    pub(crate) fn is_spinning(&self, task: TaskId) -> bool {
        self.spins_since(task).is_some()
    }

    /// Returns the time since which a task spins.
    pub(crate) fn spins_since(&self, task: TaskId) -> Option<Nanos> {
        self.tasks[task as usize].stay.filter(|stay| stay.reason.spins()).map(|stay| stay.since)
    }

    /// Returns whether events are left, in which case the time limit ended the run.
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
            Reason::Unpark { parker, .. } => write!(f, "an unpark of parker {parker}"),
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
