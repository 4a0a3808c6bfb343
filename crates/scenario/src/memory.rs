//! Memory waits of handlers, and their overlap within a batch. A store that sees a batch before its first
//! call executes prefetches the lines of all its calls ([`Service::prepare`](dunlin_rpc::Service::prepare)),
//! limited by the core's outstanding misses.

use dunlin_fabric::{Fabric, Nanos};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::{Parameter, Profile};
use std::collections::VecDeque;

/// Instructions per cycle, as in the prices of profiles.
const INSTRUCTIONS_A_CYCLE: f64 = 2.0;

/// Uncached lines that a call needs. Each holds the address of the next: a bucket, then the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Number of lines.
    pub number: u32,
    /// Wait for each line, in nanoseconds.
    pub latency: Nanos,
    /// Instructions to prefetch one line before the call.
    pub asking: u32,
}

impl Lines {
    /// Returns the wait of a call that accesses all lines in sequence.
    pub fn one_by_one(self) -> Nanos {
        Nanos::from(self.number) * self.latency
    }
}

/// The parallelism and speed of a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Core {
    /// Cache-line misses that it can have outstanding.
    fill_buffers: usize,
    instruction_ns: f64,
}

impl Core {
    /// A core with one outstanding miss.
    pub(crate) const PLAIN: Core = Core { fill_buffers: 1, instruction_ns: 0.0 };

    /// Returns a core of a profile's hosts.
    pub(crate) fn of(profile: &Profile) -> Core {
        Core {
            fill_buffers: profile.number(Parameter::FillBuffers) as usize,
            instruction_ns: 1.0 / (INSTRUCTIONS_A_CYCLE * profile.number(Parameter::Clock)),
        }
    }
}

/// The prefetches of one worker.
#[derive(Debug)]
pub(crate) struct Ahead {
    core: Core,
    /// Arrival times of the lines in flight.
    coming: VecDeque<Nanos>,
    /// Arrival time of the last line prefetched for each call of the batch, in the order of the calls.
    asked: VecDeque<Nanos>,
    /// The present pass over the batch; `None` while its calls execute.
    pass: Option<usize>,
}

impl Ahead {
    pub(crate) fn new(core: Core) -> Self {
        Ahead { core, coming: VecDeque::new(), asked: VecDeque::new(), pass: None }
    }

    /// Prefetches the next line of the batch's next call, if it needs another. The first pass fetches the
    /// first line; later passes wait for the line before, which holds the address.
    pub(crate) fn ask(&mut self, sim: &Sim, pass: usize, lines: Lines) {
        let now = sim.time();
        let until = self.ask_at(now, pass, lines);
        sim.host().work(until.saturating_sub(now));
    }

    /// [`ask`](Ahead::ask) at time `now`; returns until when the core is busy.
    fn ask_at(&mut self, now: Nanos, pass: usize, lines: Lines) -> Nanos {
        if self.pass.is_none() {
            // Discards calls of the last batch that never executed.
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

    /// Returns the wait of the call that executes now: until its prefetched lines arrive, or for all lines in
    /// sequence.
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

    /// Returns when a batch of `calls` calls has been prefetched in both passes, and when the last line of
    /// its last call arrives.
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
        // The first bucket arrives 110 ns after the start; from then on an item follows every 10 ns.
        assert_eq!(asked(CORE, 8), (190, 290));
        // Prefetching takes longer than waiting.
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
        // A call that needs fewer lines prefetches no more.
        assert_eq!(ahead.ask_at(1_010, 1, Lines { number: 1, ..LINES }), 1_010);
        assert_eq!(ahead.asked, [1_110]);
    }
}
