//! What handlers wait for in memory, and how calls of a batch wait for it together: a store that is shown a batch before the first of its
//! calls asks for the lines of all of them ([`Service::prepare`](dunlin_rpc::Service::prepare)), as many at a time as a core can.

use dunlin_fabric::{Fabric, Nanos};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::{Parameter, Profile};
use std::collections::VecDeque;

/// Instructions of a cycle, as in the prices of profiles.
const INSTRUCTIONS_A_CYCLE: f64 = 2.0;

/// Lines that a call needs and that no cache has. Each is named by the one before it: a bucket, then the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// How many.
    pub number: u32,
    /// What each is waited for, in nanoseconds.
    pub latency: Nanos,
    /// Instructions of asking for one ahead of the call.
    pub asking: u32,
}

impl Lines {
    /// What a call waits for all of them, one after the other.
    pub(crate) fn one_by_one(self) -> Nanos {
        Nanos::from(self.number) * self.latency
    }
}

/// What a core can do beside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Core {
    /// Lines that it can wait for at a time.
    fill_buffers: usize,
    instruction_ns: f64,
}

impl Core {
    /// One that waits for a line at a time.
    pub(crate) const PLAIN: Core = Core { fill_buffers: 1, instruction_ns: 0.0 };

    /// A core of a profile's hosts.
    pub(crate) fn of(profile: &Profile) -> Core {
        Core {
            fill_buffers: profile.number(Parameter::FillBuffers) as usize,
            instruction_ns: 1.0 / (INSTRUCTIONS_A_CYCLE * profile.number(Parameter::Clock)),
        }
    }
}

/// What one worker has asked for.
#[derive(Debug)]
pub(crate) struct Ahead {
    core: Core,
    /// When the lines under way are there.
    coming: VecDeque<Nanos>,
    /// When the last line that each call of the batch has asked for is there, in the order of the calls.
    asked: VecDeque<Nanos>,
    /// The pass over the batch; none while it is called.
    pass: Option<usize>,
}

impl Ahead {
    pub(crate) fn new(core: Core) -> Self {
        Ahead { core, coming: VecDeque::new(), asked: VecDeque::new(), pass: None }
    }

    /// The next call of a batch asks for its next line, if it needs another: in the first pass for the first one, later for what the
    /// one before names, as soon as that is there.
    pub(crate) fn ask(&mut self, sim: &Sim, pass: usize, lines: Lines) {
        let now = sim.time();
        let until = self.ask_at(now, pass, lines);
        sim.host().work(until.saturating_sub(now));
    }

    /// As above, at some time; until when the core is busy with it.
    fn ask_at(&mut self, now: Nanos, pass: usize, lines: Lines) -> Nanos {
        if self.pass.is_none() {
            // Calls of the last batch that never came.
            self.asked.clear();
        }
        self.pass = Some(pass);
        let named = if pass == 0 { Some(now) } else { self.asked.pop_front() };
        let Some(named) = named else { return now };
        if pass >= lines.number as usize {
            self.asked.push_back(named);
            return now;
        }
        let instructions = f64::from(lines.asking) * self.core.instruction_ns;
        let mut from = now.max(named) + instructions.round() as Nanos;
        while self.coming.front().is_some_and(|there| *there <= from) {
            self.coming.pop_front();
        }
        if self.coming.len() >= self.core.fill_buffers {
            from = from.max(self.coming.pop_front().unwrap_or(0));
        }
        self.coming.push_back(from + lines.latency);
        self.asked.push_back(from + lines.latency);
        from
    }

    /// What the call that has now come waits for its lines: those that it has asked for until they are there, others one by one.
    pub(crate) fn wait(&mut self, sim: &Sim, lines: Lines) -> Nanos {
        self.pass = None;
        match self.asked.pop_front() {
            Some(there) => there.saturating_sub(sim.time()),
            None => lines.one_by_one(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: Lines = Lines { number: 2, latency: 100, asking: 40 };
    const CORE: Core = Core { fill_buffers: 10, instruction_ns: 0.25 };

    /// When a batch of so many calls has been asked for in both passes, and when the last line of its last call is there.
    fn asked(core: Core, calls: usize) -> (Nanos, Nanos) {
        let (mut ahead, mut now) = (Ahead::new(core), 1_000);
        for pass in 0..2 {
            for _ in 0..calls {
                now = ahead.ask_at(now, pass, LINES);
            }
        }
        assert_eq!(ahead.asked.len(), calls);
        (now - 1_000, ahead.asked.back().unwrap() - 1_000)
    }

    #[test]
    fn lines_of_many_calls_come_together_and_a_calls_own_one_after_the_other() {
        assert_eq!(asked(CORE, 1), (120, 220), "a call by itself is no sooner");
        // The first bucket is there 110 ns after the start; from then on an item each 10 ns.
        assert_eq!(asked(CORE, 8), (190, 290));
        // Asking takes longer than waiting.
        assert_eq!(asked(CORE, 50), (1_000, 1_100));
    }

    #[test]
    fn no_more_lines_come_at_a_time_than_a_core_has_room_for() {
        let two = Core { fill_buffers: 2, ..CORE };
        assert!(asked(two, 50).1 >= 50 * LINES.one_by_one() / 2);
        let (_, last) = asked(Core::PLAIN, 50);
        assert_eq!(last, 50 * LINES.one_by_one());
    }

    #[test]
    fn calls_that_never_came_are_forgotten_with_the_next_batch() {
        let mut ahead = Ahead::new(CORE);
        ahead.ask_at(0, 0, LINES);
        ahead.ask_at(0, 0, LINES);
        ahead.pass = None;
        ahead.ask_at(1_000, 0, LINES);
        assert_eq!(ahead.asked, [1_110]);
        // Who needs fewer lines is not asked for again.
        assert_eq!(ahead.ask_at(1_010, 1, Lines { number: 1, ..LINES }), 1_010);
        assert_eq!(ahead.asked, [1_110]);
    }
}
