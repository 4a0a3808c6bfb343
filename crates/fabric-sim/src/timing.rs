//! What things take: by chance, to make them happen in different orders; by fixed rates; or by a model of the hardware, to
//! tell how fast it would be.
//!
//! Everything that the simulator knows about time passes through here; the rest of it knows order only.

use crate::random::Random;
use crate::settings::{ChanceTiming, FixedTiming, ModelTiming, Prices, TimingSettings};
use dunlin_fabric::{Nanos, Opcode, Transport};
use dunlin_rnic_model::{self as model, ClusterError};

/// A message on its way from one machine to another.
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

/// A NIC of a machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) machine: u32,
    pub(crate) nic: u32,
}

/// A message that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    /// What posting takes of the poster's processor, in picoseconds.
    pub(crate) processor: u64,
    /// When it has left (what ends a request of an unreliable transport).
    pub(crate) left: Nanos,
    /// When it reaches its target.
    pub(crate) arrives: Nanos,
}

/// What a message does at its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// When its bytes can be seen, or were read.
    pub(crate) visible: Nanos,
    /// When the completion of its RECV can be seen.
    pub(crate) receive: Nanos,
    /// When the answer is at the initiator's NIC, which then has work with it; `None` if that is told when it leaves.
    pub(crate) answer: Option<Nanos>,
}

/// What the model calls it.
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

/// How a run keeps time.
pub(crate) enum Timing {
    /// By chance.
    Chance(ChanceTiming),
    /// By rates.
    Fixed(Box<Fixed>),
    /// By a model of the hardware.
    Model(Box<Model>),
}

/// Stages with fixed rates, each with the time at which it is free next.
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
    prices: Prices,
    control: Nanos,
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
    /// A message of so many bytes has arrived at a machine.
    #[inline]
    pub(crate) fn arrive(&mut self, now: Nanos, machine: u32, bytes: u32) -> Arrived {
        let takes = self.takes(bytes);
        let visible = Fixed::stage(&mut self.receives, machine, now, takes);
        Arrived { visible, receive: visible, answer: None }
    }
}

impl Model {
    /// A message leaves. Not inline: what is known of it would take room on the stack where there is no model, too.
    #[inline(never)]
    fn post(&mut self, now: Nanos, message: impl FnOnce() -> Message) -> Posted {
        let message = message();
        let Place { machine, nic } = message.from;
        let posted = self.network.post(now, machine as usize, nic as usize, &message.request);
        Posted {
            processor: posted.processor * 1000,
            left: posted.sent.unwrap_or(posted.arrives),
            arrives: posted.arrives,
        }
    }

    /// A message has arrived.
    #[inline]
    pub(crate) fn arrive(&mut self, now: Nanos, message: &Message) -> Arrived {
        let Place { machine, nic } = message.to;
        let arrived = self.network.arrive(now, machine as usize, nic as usize, &message.request);
        let receive = arrived.receive.unwrap_or(arrived.visible);
        let answer = Some(arrived.answer.unwrap_or(arrived.visible));
        Arrived { visible: arrived.visible, receive, answer }
    }
}

/// Not inline, as all that only some runs do: every message would pass over it.
#[inline(never)]
fn posted_by_chance(settings: &ChanceTiming, chance: &mut Random, now: Nanos) -> Posted {
    Posted {
        processor: 0,
        left: now + 100 + chance.below(200),
        arrives: now + settings.latency + chance.below(settings.jitter + 1),
    }
}

/// As above.
#[inline(never)]
fn noticed_by_chance(chance: &mut Random, busy: bool) -> Nanos {
    // A poller sees a line within its loop; a sleeper has to be woken.
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
                Timing::Model(Box::new(Model { network, prices, control: *control_ns }))
            }
        })
    }

    /// Whether a model decides, which wants to know all of a message.
    #[inline]
    pub(crate) fn is_modelled(&self) -> bool {
        matches!(self, Timing::Model(_))
    }

    /// Whether chance decides.
    #[inline]
    pub(crate) fn is_by_chance(&self) -> bool {
        matches!(self, Timing::Chance(_))
    }

    /// A message leaves, which carries so many bytes. What else is known of it is asked for by a model only.
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

    /// The way of an answer that leaves the target now: when the initiator can see it.
    #[inline]
    pub(crate) fn answer(&mut self, chance: &mut Random, now: Nanos) -> Nanos {
        match self {
            Timing::Chance(settings) => now + settings.latency + chance.below(settings.jitter + 1),
            Timing::Fixed(fixed) => now + fixed.settings.latency,
            Timing::Model(model) => now + model.control,
        }
    }

    /// An answer is at the initiator's NIC: when the initiator can see it.
    #[inline]
    pub(crate) fn complete(&mut self, now: Nanos, initiator: Place, request: &model::Request) -> Nanos {
        match self {
            Timing::Chance(_) | Timing::Fixed(_) => now,
            Timing::Model(model) => {
                let Place { machine, nic } = initiator;
                model.network.complete(now, machine as usize, nic as usize, request)
            }
        }
    }

    /// One way of a message of the control path, in small steps.
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

    /// From making a thread to its first step.
    pub(crate) fn thread_start(&mut self, chance: &mut Random) -> Nanos {
        self.prices().map(|prices| prices.wake_up).unwrap_or_else(|| chance.below(1000))
    }

    /// From raising a signal to the sleeper's next step.
    pub(crate) fn wake_up(&mut self, chance: &mut Random) -> Nanos {
        self.prices().map(|prices| prices.wake_up).unwrap_or_else(|| 20 + chance.below(200))
    }

    /// From an arrival to the next step of who polls for it (`busy`) or sleeps.
    #[inline]
    pub(crate) fn notice(&mut self, chance: &mut Random, busy: bool) -> Nanos {
        match self.prices() {
            None => noticed_by_chance(chance, busy),
            Some(prices) if busy => prices.notice,
            Some(prices) => prices.wake_up,
        }
    }
}
