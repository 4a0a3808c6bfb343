//! What things take: by chance, to make them happen in different orders, or by rates, to tell how fast they would be.
//!
//! Everything that the simulator knows about time passes through here; the rest of it knows order only.

use crate::random::Random;
use crate::settings::{ChanceTiming, FixedTiming, Prices, TimingSettings};
use dunlin_fabric::Nanos;

/// What a message asks of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The machines.
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Bytes that travel there, and back.
    pub(crate) bytes: u32,
    pub(crate) back: u32,
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

/// How a run keeps time.
#[derive(Debug)]
pub(crate) enum Timing {
    /// By chance.
    Chance(ChanceTiming),
    /// By rates.
    Fixed(Fixed),
}

/// Stages with fixed rates, each with the time at which it is free next.
#[derive(Debug)]
pub(crate) struct Fixed {
    settings: FixedTiming,
    prices: Prices,
    /// By machine.
    sends: Vec<Nanos>,
    receives: Vec<Nanos>,
}

impl Fixed {
    fn stage(free: &mut Vec<Nanos>, machine: u32, now: Nanos, takes: Nanos) -> Nanos {
        let machine = machine as usize;
        if free.len() <= machine {
            free.resize(machine + 1, 0);
        }
        let start = free[machine].max(now);
        free[machine] = start + takes;
        start + takes
    }

    fn takes(&self, bytes: u32) -> Nanos {
        self.settings.message + u64::from(bytes) * self.settings.byte_picoseconds / 1000
    }
}

impl Timing {
    pub(crate) fn new(settings: &TimingSettings, prices: &Prices) -> Self {
        match settings {
            TimingSettings::Chance(chance) => Timing::Chance(chance.clone()),
            TimingSettings::Fixed(fixed) => Timing::Fixed(Fixed {
                settings: fixed.clone(),
                prices: prices.clone(),
                sends: Vec::new(),
                receives: Vec::new(),
            }),
        }
    }

    /// Whether chance decides.
    pub(crate) fn is_by_chance(&self) -> bool {
        matches!(self, Timing::Chance(_))
    }

    /// A message leaves.
    #[inline]
    pub(crate) fn post(&mut self, chance: &mut Random, now: Nanos, request: &Request) -> Posted {
        match self {
            Timing::Chance(settings) => Posted {
                processor: 0,
                left: now + 100 + chance.below(200),
                arrives: now + settings.latency + chance.below(settings.jitter + 1),
            },
            Timing::Fixed(fixed) => {
                let takes = fixed.takes(request.bytes);
                let left = Fixed::stage(&mut fixed.sends, request.from, now, takes);
                Posted { processor: 0, left, arrives: left + fixed.settings.latency }
            }
        }
    }

    /// A message has arrived: when its target has taken it in.
    #[inline]
    pub(crate) fn arrive(&mut self, now: Nanos, request: &Request) -> Nanos {
        match self {
            Timing::Chance(_) => now,
            Timing::Fixed(fixed) => {
                let takes = fixed.takes(request.bytes.max(request.back));
                Fixed::stage(&mut fixed.receives, request.to, now, takes)
            }
        }
    }

    /// The way of an answer: when what left the target at a time is known to the initiator.
    #[inline]
    pub(crate) fn answer(&mut self, chance: &mut Random, now: Nanos, _request: &Request) -> Nanos {
        match self {
            Timing::Chance(settings) => now + settings.latency + chance.below(settings.jitter + 1),
            Timing::Fixed(fixed) => now + fixed.settings.latency,
        }
    }

    /// One way of a message of the control path, in small steps.
    pub(crate) fn travel(&mut self, chance: &mut Random) -> Nanos {
        match self {
            Timing::Chance(settings) => settings.latency + chance.below(settings.jitter + 1),
            Timing::Fixed(fixed) => fixed.settings.latency,
        }
    }

    /// From making a thread to its first step.
    pub(crate) fn thread_start(&mut self, chance: &mut Random) -> Nanos {
        match self {
            Timing::Chance(_) => chance.below(1000),
            Timing::Fixed(fixed) => fixed.prices.wake_up,
        }
    }

    /// From raising a signal to the sleeper's next step.
    pub(crate) fn wake_up(&mut self, chance: &mut Random) -> Nanos {
        match self {
            Timing::Chance(_) => 20 + chance.below(200),
            Timing::Fixed(fixed) => fixed.prices.wake_up,
        }
    }

    /// From an arrival to the next step of who polls for it (`busy`) or sleeps.
    #[inline]
    pub(crate) fn notice(&mut self, chance: &mut Random, busy: bool) -> Nanos {
        match self {
            // A poller sees a line within its loop; a sleeper has to be woken.
            Timing::Chance(_) if busy => 20 + chance.below(60),
            Timing::Chance(_) => 1000 + chance.below(2000),
            Timing::Fixed(fixed) if busy => fixed.prices.notice,
            Timing::Fixed(fixed) => fixed.prices.wake_up,
        }
    }
}
