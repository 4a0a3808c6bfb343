//! Timing of the network: random, to vary the order of events; fixed rates; or a hardware model, to predict
//! performance.
//!
//! All knowledge of durations is here; the rest of the simulator knows order only.

use crate::random::Random;
use crate::settings::{ChanceTiming, FixedTiming, ModelTiming, Prices, TimingSettings};
use dunlin_fabric::{Nanos, Opcode, Transport, Work};
use dunlin_rnic_model::{self as model, ClusterError};

/// A message from one machine to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) from: Place,
    pub(crate) to: Place,
    pub(crate) request: model::Request,
}

impl Default for Message {
    fn default() -> Self {
        let request = model::Request {
            initiator: 0,
            target: 0,
            opcode: model::Opcode::Send,
            transport: Transport::ReliableConnection,
            bytes: 0,
            inline: false,
            signaled: false,
            linked: model::Linked::Alone,
            local: model::Touch::default(),
            remote: model::Touch::default(),
        };
        Message { from: Place::default(), to: Place::default(), request }
    }
}

/// A NIC of a machine, or its processors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) machine: u32,
    pub(crate) nic: u32,
}

/// In the place of a NIC: the processors of a machine copy.
const PROCESSORS: u32 = u32::MAX;

impl Place {
    /// Returns the place of queue pairs between processes of one machine.
    pub(crate) const fn within(machine: u32) -> Place {
        Place { machine, nic: PROCESSORS }
    }

    const fn is_within(self) -> bool {
        self.nic == PROCESSORS
    }
}

/// The timing of a posted message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    /// Processor time of posting, in picoseconds.
    pub(crate) processor: u64,
    /// Time at which it has left, which completes a request of an unreliable transport.
    pub(crate) left: Nanos,
    /// Time at which it reaches its target.
    pub(crate) arrives: Nanos,
}

/// The timing of a message at its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// Time at which its bytes are visible, or were read.
    pub(crate) visible: Nanos,
    /// Time at which the completion of its RECV is visible.
    pub(crate) receive: Nanos,
    /// Time at which the answer reaches the initiator's NIC, which then processes it; `None` if it is
    /// computed when the answer leaves.
    pub(crate) answer: Option<Nanos>,
}

/// Returns the model's name of an opcode.
#[inline]
pub(crate) fn model_opcode(opcode: Opcode, immediate: bool) -> model::Opcode {
    match opcode {
        Opcode::Send => model::Opcode::Send,
        Opcode::Write if immediate => model::Opcode::WriteImmediate,
        Opcode::Write => model::Opcode::Write,
        Opcode::Read => model::Opcode::Read,
        _ => model::Opcode::Atomic,
    }
}

/// The timing of a run.
pub(crate) enum Timing {
    /// Random.
    Chance(ChanceTiming),
    /// Fixed rates.
    Fixed(Box<Fixed>),
    /// A model of the hardware.
    Model(Box<Model>),
}

/// Stages with fixed rates and their next-free times.
pub(crate) struct Fixed {
    settings: FixedTiming,
    prices: Prices,
    /// By machine.
    sends: Vec<Nanos>,
    receives: Vec<Nanos>,
}

/// The model's state.
pub(crate) struct Model {
    network: model::Network,
    within: Within,
    prices: Prices,
    control: Nanos,
}

/// Messages between processes of one machine, whose processors copy them: no NIC takes part. The initiator executes WRITEs
/// and SENDs by stores, READs and atomics by loads, at its own expense. A line that another core wrote last takes its
/// time on the way to the core that reads it.
#[derive(Clone, Copy, Debug)]
struct Within {
    /// The time of a line from core to core, in picoseconds: the price of [`Work::TakeLine`].
    line: u64,
    /// Copying a byte, in picoseconds: the price of [`Work::CopyBytes`].
    byte: u64,
}

impl Within {
    fn of(prices: &Prices) -> Within {
        let price = |work: Work| prices.work[work as usize];
        Within { line: price(Work::TakeLine), byte: price(Work::CopyBytes) }
    }

    fn post(self, now: Nanos, request: &model::Request) -> Posted {
        let copied = u64::from(request.bytes) * self.byte;
        let takes = match request.opcode {
            model::Opcode::Send | model::Opcode::Write | model::Opcode::WriteImmediate => copied,
            model::Opcode::Read | model::Opcode::Atomic => self.line + copied,
        };
        // A word that is taken back and forth is on the way once; stored lines are on the way to their reader.
        let arrives = now + (self.line + copied).div_ceil(1000);
        Posted { processor: takes, left: now + takes.div_ceil(1000), arrives }
    }
}

impl Fixed {
    #[inline(always)]
    fn stage(free: &mut Vec<Nanos>, machine: u32, now: Nanos, takes: Nanos) -> Nanos {
        let Some(free) = free.get_mut(machine as usize) else {
            return Fixed::first_of_stage(free, machine as usize, now + takes);
        };
        *free = (*free).max(now) + takes;
        *free
    }

    #[cold]
    fn first_of_stage(free: &mut Vec<Nanos>, machine: usize, done: Nanos) -> Nanos {
        free.resize(machine + 1, 0);
        free[machine] = done;
        done
    }

    #[inline(always)]
    fn takes(&self, bytes: u32) -> Nanos {
        self.settings.message + u64::from(bytes) * self.settings.byte_picoseconds / 1000
    }
}

impl Fixed {
    /// Returns the timing of an arrived message of `bytes` bytes.
    #[inline]
    pub(crate) fn arrive(&mut self, now: Nanos, machine: u32, bytes: u32) -> Arrived {
        let takes = self.takes(bytes);
        let visible = Fixed::stage(&mut self.receives, machine, now, takes);
        Arrived { visible, receive: visible, answer: None }
    }
}

impl Model {
    /// Returns the timing of a message that leaves. Not inlined, so that runs without a model need no stack
    /// space for it.
    #[inline(never)]
    fn post(&mut self, now: Nanos, message: impl FnOnce() -> Message) -> Posted {
        let message = message();
        if message.from.is_within() {
            return self.within.post(now, &message.request);
        }
        let Place { machine, nic } = message.from;
        let posted = self.network.post(now, machine as usize, nic as usize, &message.request);
        Posted {
            processor: posted.processor * 1000,
            left: posted.sent.unwrap_or(posted.arrives),
            arrives: posted.arrives,
        }
    }

    /// Returns the timing of an arrived message.
    #[inline]
    pub(crate) fn arrive(&mut self, now: Nanos, message: &Message) -> Arrived {
        if message.to.is_within() {
            return Arrived { visible: now, receive: now, answer: Some(now) };
        }
        let Place { machine, nic } = message.to;
        let arrived = self.network.arrive(now, machine as usize, nic as usize, &message.request);
        let receive = arrived.receive.unwrap_or(arrived.visible);
        let answer = Some(arrived.answer.unwrap_or(arrived.visible));
        Arrived { visible: arrived.visible, receive, answer }
    }
}

/// Not inlined, like everything that only some runs use: it would lengthen the path of every message.
#[inline(never)]
fn posted_by_chance(settings: &ChanceTiming, chance: &mut Random, now: Nanos) -> Posted {
    Posted {
        processor: 0,
        left: now + 100 + chance.below(200),
        arrives: now + settings.latency + chance.below(settings.jitter + 1),
    }
}

/// Not inlined for the same reason.
#[inline(never)]
fn noticed_by_chance(chance: &mut Random, busy: bool) -> Nanos {
    // A polling task sees a line within its loop; a sleeping task must be woken.
    if busy { 20 + chance.below(60) } else { 1000 + chance.below(2000) }
}

impl Timing {
    pub(crate) fn new(settings: &TimingSettings, prices: &Prices) -> Result<Self, ClusterError> {
        let prices = prices.clone();
        Ok(match settings {
            TimingSettings::Chance(chance) => Timing::Chance(chance.clone()),
            TimingSettings::Fixed(fixed) => {
                let (sends, receives) = (Vec::new(), Vec::new());
                Timing::Fixed(Box::new(Fixed { settings: fixed.clone(), prices, sends, receives }))
            }
            TimingSettings::Model(ModelTiming { machines, switch_ns, control_ns }) => {
                let shape = |(profile, nics): &(std::sync::Arc<model::Profile>, u16)| {
                    (std::sync::Arc::clone(profile), *nics)
                };
                let machines: Vec<_> = machines.iter().map(shape).collect();
                let hosts = machines
                    .iter()
                    .map(|(profile, nics)| model::HostShape { profile, nics: *nics })
                    .collect();
                let network = model::Network::new(&model::Cluster { hosts, switch_ns: *switch_ns })?;
                let within = Within::of(&prices);
                Timing::Model(Box::new(Model { network, within, prices, control: *control_ns }))
            }
        })
    }

    /// Returns whether the model decides, which needs the whole message.
    #[inline]
    pub(crate) fn is_modelled(&self) -> bool {
        matches!(self, Timing::Model(_))
    }

    /// Returns the counters of a NIC of the model.
    pub(crate) fn counters(&self, machine: usize, nic: usize) -> Option<model::Counters> {
        match self {
            Timing::Model(model) => Some(model.network.counters(machine, nic)),
            Timing::Chance(_) | Timing::Fixed(_) => None,
        }
    }

    /// Returns whether timing is random.
    #[inline]
    pub(crate) fn is_by_chance(&self) -> bool {
        matches!(self, Timing::Chance(_))
    }

    /// Returns the timing of a message of `bytes` bytes that leaves. Only the model evaluates `message`.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        chance: &mut Random,
        now: Nanos,
        (machine, bytes): (u32, u32),
        message: impl FnOnce() -> Message,
    ) -> Posted {
        match self {
            Timing::Chance(settings) => posted_by_chance(settings, chance, now),
            Timing::Fixed(fixed) => {
                let takes = fixed.takes(bytes);
                let left = Fixed::stage(&mut fixed.sends, machine, now, takes);
                Posted { processor: 0, left, arrives: left + fixed.settings.latency }
            }
            Timing::Model(model) => model.post(now, message),
        }
    }

    /// Returns when the initiator sees an answer that leaves the target now.
    #[inline]
    pub(crate) fn answer(&mut self, chance: &mut Random, now: Nanos) -> Nanos {
        match self {
            Timing::Chance(settings) => now + settings.latency + chance.below(settings.jitter + 1),
            Timing::Fixed(fixed) => now + fixed.settings.latency,
            Timing::Model(model) => now + model.control,
        }
    }

    /// Returns when the initiator sees an answer that is at its NIC now.
    #[inline]
    pub(crate) fn complete(&mut self, now: Nanos, initiator: Place, request: &model::Request) -> Nanos {
        match self {
            Timing::Chance(_) | Timing::Fixed(_) => now,
            Timing::Model(_) if initiator.is_within() => now,
            Timing::Model(model) => {
                let Place { machine, nic } = initiator;
                model.network.complete(now, machine as usize, nic as usize, request)
            }
        }
    }

    /// Sets the pages of a region.
    pub(crate) fn register(&mut self, machine: u32, region: u32, pages: model::Pages) {
        if let Timing::Model(model) = self {
            model.network.register(machine as usize, region, pages);
        }
    }

    /// Returns the one-way delay of a control message.
    pub(crate) fn travel(&mut self, chance: &mut Random) -> Nanos {
        match self {
            Timing::Chance(settings) => settings.latency + chance.below(settings.jitter + 1),
            Timing::Fixed(fixed) => fixed.settings.latency,
            Timing::Model(model) => model.control,
        }
    }

    fn prices(&self) -> Option<&Prices> {
        match self {
            Timing::Chance(_) => None,
            Timing::Fixed(fixed) => Some(&fixed.prices),
            Timing::Model(model) => Some(&model.prices),
        }
    }

    /// Returns the delay from spawning a thread to its first step.
    pub(crate) fn thread_start(&mut self, chance: &mut Random) -> Nanos {
        self.prices().map(|prices| prices.wake_up).unwrap_or_else(|| chance.below(1000))
    }

    /// Returns the delay from raising a signal to the sleeper's next step.
    pub(crate) fn wake_up(&mut self, chance: &mut Random) -> Nanos {
        self.prices().map(|prices| prices.wake_up).unwrap_or_else(|| 20 + chance.below(200))
    }

    /// Returns the delay from an arrival to the next step of a polling (`busy`) or sleeping task.
    #[inline]
    pub(crate) fn notice(&mut self, chance: &mut Random, busy: bool) -> Nanos {
        match self.prices() {
            None => noticed_by_chance(chance, busy),
            Some(prices) if busy => prices.notice,
            Some(prices) => prices.wake_up,
        }
    }
}
