//! The state of a run. The code that changes it is in the files of its parts: `scheduler`, `cores`, `process`,
//! `host`, `link`, `network`, `posting` and `outcome`.

use crate::events::Events;
use crate::links::{Held, LinkEvent, Links};
use crate::machine::{Machine, Process};
use crate::memory::SimMemory;
use crate::queues::{DomainState, Outcome, Packet, QueuePair};
use crate::random::Random;
use crate::settings::Settings;
use crate::signals::{Parkers, Signals};
use crate::slab::{Places, Slab};
use crate::tasks::{Body, TaskId, TaskState};
use crate::timing::Timing;
use crate::trace::Trace;
use dunlin_fabric::{Completion, Nanos, Site};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The whole state of a run except its stacks.
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) timing: Timing,
    /// Source of network and scheduler timings.
    pub(crate) chance: Random,
    /// Source of [`dunlin_fabric::Host::random`].
    pub(crate) host_random: Random,
    pub(crate) network: Network,
    pub(crate) signals: Signals,
    pub(crate) parkers: Parkers,
    pub(crate) machines: Vec<Machine>,
    /// Whether any machine's slowness differs from 1000.
    pub(crate) has_slow_machines: bool,
    /// Whether any machine was ever cut off.
    pub(crate) has_cuts: bool,
    pub(crate) processes: Vec<Process>,
    /// Time of the latest event.
    pub(crate) event_clock: Nanos,
    /// The running task's clock is `clock` plus `fraction` in picoseconds. Charging only adds to `fraction`,
    /// since the clock is advanced far more often than it is read. While an event happens, the sum is its
    /// time.
    pub(crate) clock: Nanos,
    pub(crate) fraction: u64,
    /// Most picoseconds that a task may run ahead of all others.
    pub(crate) much: u64,
    pub(crate) events: Events,
    pub(crate) handled: u64,
    /// Packets of the last arrivals that were prefetched, latest first.
    pub(crate) arrivals: [Option<u32>; 4],
    /// Number of task switches.
    pub(crate) switches: u64,
    pub(crate) trace: Trace,
    pub(crate) tasks: Vec<TaskState>,
    /// Number of tasks that have not ended.
    pub(crate) live: usize,
    pub(crate) started: VecDeque<(TaskId, Body)>,
    pub(crate) running: Option<TaskId>,
    pub(crate) doomed: bool,
    pub(crate) stays: u64,
    /// A task that an event has just woken, and when: it runs next without passing through the queue.
    pub(crate) next: Option<(TaskId, u64, Nanos)>,
    /// The next task of this process that passes this checkpoint loses its core for this time.
    pub(crate) stall_next: Option<(u32, Site, Nanos)>,
    /// The running task ran too far ahead of all others.
    pub(crate) hogged: bool,
    /// The run is over: tasks unwind, and no call blocks.
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
            parkers: Parkers::default(),
            machines: settings.machines.iter().map(Machine::new).collect(),
            has_slow_machines: false,
            has_cuts: false,
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
            stall_next: None,
            hogged: false,
            stopping: false,
        }
    }
}

/// All state that does not belong to tasks.
#[derive(Default)]
pub(crate) struct Network {
    pub(crate) links: Links,
    pub(crate) domains: Places<DomainState>,
    pub(crate) queue_pairs: Places<QueuePair>,
    pub(crate) packets: Slab<Packet>,
    pub(crate) rare: Slab<Option<Rare>>,
    /// Number of live registered memories.
    pub(crate) registered: Arc<AtomicU64>,
}

/// A less frequent network event.
pub(crate) enum Rare {
    /// The retries of a packet that found no RECV are exhausted.
    RetriesOver { at: u32, packet: u32, from: u32, serial: u64 },
    /// A RECV completes; its message is visible.
    Received { at: u32, completion: Completion<SimMemory> },
    /// The second part of a READ is sampled; `got` is the first part.
    Sample {
        back_to: u32,
        serial: u64,
        region: Held,
        offset: usize,
        length: usize,
        got: Vec<u8>,
        answer: Option<Nanos>,
    },
    /// An answer other than a plain acknowledgement reaches the initiator's NIC.
    Answered { at: u32, serial: u64, outcome: Outcome },
    /// The outcome of a work request reaches its initiator.
    Outcome { at: u32, serial: u64, outcome: Outcome },
    /// A queue pair learns that its peer is broken or gone.
    PeerBroke { at: u32 },
    /// A queue pair breaks spontaneously.
    Break { at: u32 },
    /// An event on a control connection.
    Link(LinkEvent),
}
