//! Which of several servers is their time server: ScaleRPC's global synchronisation (section 4.2) with fail-over, as a
//! pure state machine.
//!
//! The paper names the time server in a configuration. Here a *claim* names it: a term and the server's place in the
//! list of servers. Every answer carries the claim that its sender follows, and the better one of two claims holds: the
//! one of the higher term, and in one term that of the earlier server. Questions carry none: anybody may ask, and a server
//! believes only those that it has asked itself, at the addresses of its settings.
//!
//! | state | asks | changes when |
//! |---|---|---|
//! | joining | all others by turns | it hears a claim, which it follows; or nobody tells of one for [`JOINING`] intervals, and more for later servers: it claims the first term |
//! | following | its time server, once an interval | that gives no good answer for [`SILENCE`] intervals: it searches |
//! | searching | all others by turns | it hears a better claim; or some more intervals pass, more for later servers: it claims the next term |
//! | leading | all others by turns | it hears a better claim |
//!
//! A server keeps its estimate of the common clock in all states, so a follower that hears nothing goes on by its clock
//! and its drift, and a new time server continues the common time. One that hears nobody at all leads itself in the end.
//! A server that is started again never continues a claim of its own, since it has lost the common time.

use super::common_clock::{ClockFilter, Estimate, Exchange, Verdict};
use dunlin_fabric::Nanos;

/// Intervals for which the first server waits for news of a claim when it starts.
const JOINING: Nanos = 3;
/// Intervals after which a time server counts as silent.
const SILENCE: Nanos = 5;
/// Intervals that each later server waits longer.
const STAGGER: Nanos = 2;
/// Intervals for which claims of a server that lied are ignored.
const DISTRUST: Nanos = 50;
/// A time server is not trusted if this number is reached: each lie counts 2, and each good answer takes 1 off.
const LIES: u32 = 8;
/// Exchanges at the beginning follow each other in this part of an interval, so that drift is known soon.
const HURRY: Nanos = 32;
/// A claim whose term is further ahead is not credible to a server that has heard one.
const TERMS_AHEAD: u32 = 1024;

/// The claim of a server to be the time server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Grows with each change of the time server. At least 1.
    pub(crate) term: u32,
    /// The server's place in the list of servers.
    pub(crate) server: u16,
}

impl Claim {
    fn beats(self, other: Claim) -> bool {
        (self.term, other.server) > (other.term, self.server)
    }
}

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask this server, and report the outcome.
    Ask(u16),
    /// Nothing until this time on the own clock.
    Wait(Nanos),
}

/// One server of several that share a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    /// The own place in the list.
    own: u16,
    servers: u16,
    interval: Nanos,
    clock: ClockFilter,
    claim: Option<Claim>,
    /// The common time is known.
    has_time: bool,
    /// When the time server gave a good answer last, or the state began.
    heard: Nanos,
    next: Nanos,
    /// The server that is asked next if all are asked by turns.
    turn: u16,
    lies: u32,
    /// By server: until when its claims are ignored.
    distrusted: Vec<Nanos>,
    /// The highest term heard of.
    highest: u32,
}

impl Leadership {
    /// Begins as the server at place `own` of `servers`, which exchange stamps once in `interval` nanoseconds.
    pub(crate) fn new((own, servers): (u16, u16), interval: Nanos, now: Nanos) -> Self {
        let servers = servers.max(own.saturating_add(1));
        Leadership {
            own,
            servers,
            interval: interval.max(HURRY),
            clock: ClockFilter::new(),
            claim: None,
            has_time: false,
            heard: now,
            next: now,
            turn: own,
            lies: 0,
            distrusted: vec![0; usize::from(servers)],
            highest: 0,
        }
    }

    /// Returns the claim that the server follows.
    pub(crate) fn claim(&self) -> Option<Claim> {
        self.claim
    }

    /// Returns whether the server is the time server.
    pub(crate) fn leads(&self) -> bool {
        self.claim.is_some_and(|claim| claim.server == self.own)
    }

    /// Returns the estimate of the common clock, if there is one.
    pub(crate) fn estimate(&self) -> Option<Estimate> {
        self.has_time.then(|| self.clock.estimate())
    }

    fn is_searching(&self, now: Nanos) -> bool {
        !self.leads() && now.saturating_sub(self.heard) > SILENCE * self.interval
    }

    /// Returns the time without an answer after which the server claims a term.
    fn patience(&self) -> Nanos {
        let base = if self.claim.is_some() { SILENCE } else { JOINING };
        (base + STAGGER * (1 + Nanos::from(self.own))) * self.interval
    }

    /// Returns the next server, by turns.
    fn others(&mut self) -> Option<u16> {
        for _ in 0..self.servers {
            self.turn = (self.turn + 1) % self.servers;
            if self.turn != self.own {
                return Some(self.turn);
            }
        }
        None
    }

    /// Returns the next step.
    pub(crate) fn step(&mut self, now: Nanos) -> Step {
        if !self.leads() && now.saturating_sub(self.heard) > self.patience() {
            self.lead(now);
        }
        if now < self.next {
            return Step::Wait(self.next);
        }
        let searches = self.claim.is_none() || self.is_searching(now);
        let hurry = searches || (!self.leads() && !self.clock.is_settled());
        self.next = now + if hurry { self.interval / HURRY } else { self.interval };
        let whom = match self.claim {
            Some(claim) if !searches && claim.server != self.own => Some(claim.server),
            _ => self.others(),
        };
        whom.map_or(Step::Wait(self.next), Step::Ask)
    }

    /// Claims the next term. The common time goes on as the server knows it.
    fn lead(&mut self, now: Nanos) {
        self.highest = self.highest.saturating_add(1);
        self.claim = Some(Claim { term: self.highest, server: self.own });
        (self.has_time, self.heard, self.next) = (true, now, now);
    }

    /// Takes note of the claim of another server.
    fn on_claim(&mut self, claim: Option<Claim>, now: Nanos) {
        let Some(claim) = claim else { return };
        let is_other = claim.server < self.servers && claim.server != self.own;
        let is_credible = self.highest == 0 || claim.term <= self.highest.saturating_add(TERMS_AHEAD);
        if !is_credible || claim.term == 0 {
            return;
        }
        if !is_other {
            // The own claim from before a restart. Those who follow it search soon: one of them has the time.
            if self.claim.is_none() && claim.server == self.own {
                self.highest = self.highest.max(claim.term);
                self.heard = now;
            }
            return;
        }
        if self.trusts(claim.server, now) && self.claim.is_none_or(|own| claim.beats(own)) {
            self.highest = self.highest.max(claim.term);
            // A further claim of the time server does not excuse its lies.
            if self.claim.replace(claim).is_none_or(|before| before.server != claim.server) {
                self.clock.change_server();
                (self.heard, self.next, self.lies) = (now, now, 0);
            }
        }
    }

    /// Takes note of an answer of `server`, with the claim that it follows. Stamps of others than the time server say
    /// nothing.
    pub(crate) fn on_answer(&mut self, server: u16, claim: Option<Claim>, exchange: Exchange, now: Nanos) {
        self.on_claim(claim, now);
        let is_leader = self.claim.is_some_and(|own| own.server == server && claim == Some(own));
        if !is_leader || server == self.own || !self.trusts(server, now) {
            return;
        }
        match self.clock.on_exchange(exchange) {
            Verdict::Used => {
                (self.has_time, self.heard, self.lies) = (true, now, self.lies.saturating_sub(1));
            }
            Verdict::Late => {}
            Verdict::Lie => {
                self.lies += 2;
                if self.lies >= LIES {
                    self.distrust(server, now);
                }
            }
        }
    }

    fn trusts(&self, server: u16, now: Nanos) -> bool {
        self.distrusted.get(usize::from(server)).is_some_and(|until| now >= *until)
    }

    /// Gives up a time server that lies. The common time goes on, and another server leads.
    fn distrust(&mut self, server: u16, now: Nanos) {
        if let Some(until) = self.distrusted.get_mut(usize::from(server)) {
            *until = now.saturating_add(DISTRUST * self.interval);
        }
        self.lies = 0;
        // It counts as silent from now on.
        self.heard = self.heard.min(now.saturating_sub(SILENCE * self.interval + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Nanos = 1_000_000;
    const INTERVAL: Nanos = 100 * MILLISECOND;
    const CENTURY: Nanos = 3_155_760_000_000_000_000;

    /// The behaviour of a server towards the others.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Manner {
        Honest,
        Dead,
        /// Each of its stamps is wrong by another century.
        Forges,
        /// Its answers take 50 ms.
        Late,
        /// It asks nobody, and answers nothing.
        Silent,
        /// It follows nobody and claims every term that it hears of.
        Claims,
    }

    struct Server {
        machine: Leadership,
        manner: Manner,
        offset: i64,
        millionths: i64,
    }

    impl Server {
        fn clock(&self, at: Nanos) -> Nanos {
            let drifted = at as i64 / 1_000_000 * self.millionths;
            at.wrapping_add(self.offset as u64).wrapping_add(drifted as u64)
        }

        fn common(&self, at: Nanos) -> Option<Nanos> {
            Some(self.machine.estimate()?.common(self.clock(at)))
        }
    }

    /// Servers with clocks of their own, in one true time.
    struct World {
        servers: Vec<Server>,
        now: Nanos,
        random: u64,
        /// Pairs of servers that do not reach each other.
        parted: Vec<(usize, usize)>,
    }

    impl World {
        fn new(seed: u64, count: u16) -> World {
            let now = 10_000_000_000;
            let mut world = World { servers: Vec::new(), now, random: seed, parted: Vec::new() };
            for own in 0..count {
                let offset = 5_000_000_000 + (i64::from(own) - 1) * 1_000_000_000;
                let millionths = [200, -200, 0, 100][usize::from(own) % 4];
                let machine = Leadership::new((own, count), INTERVAL, 0);
                world.servers.push(Server { machine, manner: Manner::Honest, offset, millionths });
            }
            (0..usize::from(count)).for_each(|own| world.start(own));
            world
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.random =
                self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) % limit
        }

        fn start(&mut self, own: usize) {
            let now = self.servers[own].clock(self.now);
            let count = self.servers.len() as u16;
            self.servers[own].machine = Leadership::new((own as u16, count), INTERVAL, now);
            self.servers[own].manner = Manner::Honest;
        }

        /// Lets the servers run for a time.
        fn run(&mut self, time: Nanos) {
            let until = self.now + time;
            while self.now < until {
                for own in 0..self.servers.len() {
                    self.act(own);
                }
                self.now += MILLISECOND / 2 + self.below(MILLISECOND / 10);
            }
        }

        fn act(&mut self, own: usize) {
            let now = self.servers[own].clock(self.now);
            if matches!(self.servers[own].manner, Manner::Dead | Manner::Silent) {
                return;
            }
            let Step::Ask(other) = self.servers[own].machine.step(now) else { return };
            let other = usize::from(other);
            assert_ne!(other, own);
            let is_parted = self.parted.iter().any(|&pair| pair == (own, other) || pair == (other, own));
            if is_parted || matches!(self.servers[other].manner, Manner::Dead | Manner::Silent) {
                return;
            }
            let (there, back) = (1_000 + self.below(2_000), 1_000 + self.below(2_000));
            let late = if self.servers[other].manner == Manner::Late { 50 * MILLISECOND } else { 0 };
            let (taken, answered) = (self.now + there, self.now + there + 500);
            let heard = answered + back + late;
            let claim = self.servers[own].machine.claim();
            let (mut said, mut stamps) = (self.servers[other].machine.claim(), [taken, answered]);
            stamps = stamps.map(|at| self.servers[other].common(at).unwrap_or(0));
            match self.servers[other].manner {
                Manner::Forges => {
                    let by = self.below(3) * CENTURY;
                    stamps = stamps.map(|stamp| stamp.wrapping_add(by));
                }
                Manner::Claims => {
                    said = claim.or(said).map(|claim| Claim { term: claim.term + 1, server: other as u16 });
                    let by = self.below(3) * CENTURY;
                    stamps = stamps.map(|stamp| stamp.wrapping_add(by));
                }
                _ => {}
            }
            let [taken, answered] = stamps;
            let (asked, heard) = (now, self.servers[own].clock(heard));
            let exchange = Exchange { asked, taken, answered, heard };
            self.servers[own].machine.on_answer(other as u16, said, exchange, heard);
        }

        fn living(&self) -> impl Iterator<Item = &Server> {
            self.servers.iter().filter(|server| server.manner == Manner::Honest)
        }

        /// Returns the only claim that honest servers follow, and the largest difference of their common times.
        fn agreed(&self) -> (Claim, u64) {
            let claims: Vec<_> = self.living().map(|server| server.machine.claim()).collect();
            assert!(claims.iter().all(|claim| claim.is_some() && *claim == claims[0]), "{claims:?}");
            let times: Vec<_> = self.living().map(|server| server.common(self.now).unwrap()).collect();
            let apart = |time: &Nanos| (time.wrapping_sub(times[0]) as i64).unsigned_abs();
            (claims[0].unwrap(), times.iter().map(apart).max().unwrap())
        }
    }

    #[test]
    fn the_first_server_leads_and_all_have_its_time() {
        for seed in 0..20 {
            let mut world = World::new(seed, 3);
            world.run(3_000 * MILLISECOND);
            for _ in 0..20 {
                world.run(137 * MILLISECOND);
                let (claim, apart) = world.agreed();
                assert_eq!(claim, Claim { term: 1, server: 0 });
                assert!(apart < 1_500, "{seed}: {apart} ns");
            }
        }
    }

    /// The time server dies: the next one goes on with the common time, and nobody's jumps. When it comes back, it follows.
    #[test]
    fn the_common_time_outlives_its_server() {
        for seed in 0..20 {
            let mut world = World::new(seed, 3);
            world.run(4_000 * MILLISECOND);
            let reference = world.servers[2].common(world.now).unwrap();
            let since = world.now;
            world.servers[0].manner = Manner::Dead;
            for _ in 0..30 {
                world.run(100 * MILLISECOND);
                // The rate is that of the dead server, which is ahead by 200 millionths, in all states.
                let passed = world.now - since;
                let due = reference.wrapping_add(passed + passed / 1_000_000 * 200);
                for server in world.living() {
                    let apart = (server.common(world.now).unwrap().wrapping_sub(due) as i64).unsigned_abs();
                    assert!(apart < 25_000, "{seed}: {apart} ns after {passed}");
                }
            }
            let (claim, apart) = world.agreed();
            assert_eq!(claim, Claim { term: 2, server: 1 });
            assert!(apart < 1_500, "{seed}: {apart} ns");
            let before = world.servers[1].common(world.now).unwrap();
            let since = world.now;
            world.start(0);
            world.run(3_000 * MILLISECOND);
            let (claim, apart) = world.agreed();
            assert_eq!(claim, Claim { term: 2, server: 1 }, "a server that comes back takes nothing over");
            assert!(apart < 1_500, "{seed}: {apart} ns");
            let passed = world.servers[1].common(world.now).unwrap().wrapping_sub(before);
            assert!(passed.abs_diff(world.now - since) < 3_000_000, "no jump");
        }
    }

    /// A time server that is started again before anybody missed it has lost the common time, and does not lead by its old
    /// claim.
    #[test]
    fn a_quick_restart_does_not_move_the_time() {
        for seed in 0..20 {
            let mut world = World::new(seed, 3);
            world.run(4_000 * MILLISECOND);
            let (before, since) = (world.servers[1].common(world.now).unwrap(), world.now);
            world.start(0);
            world.run(3_000 * MILLISECOND);
            let (claim, apart) = world.agreed();
            assert!(claim.term == 2 && claim.server != 0 && apart < 1_500, "{seed}: {claim:?}, {apart} ns");
            let passed = world.servers[1].common(world.now).unwrap().wrapping_sub(before);
            assert!(passed.abs_diff(world.now - since) < 3_000_000, "{seed}: no jump");
        }
    }

    /// Time servers that lie, are late, or say nothing are replaced by an honest one, and the common time goes on.
    #[test]
    fn bad_time_servers_are_replaced() {
        for seed in 0..20 {
            for manner in [Manner::Forges, Manner::Late, Manner::Silent, Manner::Dead] {
                let mut world = World::new(seed, 3);
                world.run(4_000 * MILLISECOND);
                let (before, since) = (world.servers[1].common(world.now).unwrap(), world.now);
                world.servers[0].manner = manner;
                world.run(3_000 * MILLISECOND);
                let (claim, apart) = world.agreed();
                assert!(claim.server != 0 && apart < 1_500, "{seed} {manner:?}: {claim:?}, {apart} ns");
                let passed = world.servers[1].common(world.now).unwrap().wrapping_sub(before);
                assert!(passed.abs_diff(world.now - since) < 3_000_000, "{seed} {manner:?}: no jump");
            }
        }
    }

    /// A server that claims whatever it hears of is followed until its stamps contradict each other, and ignored then.
    #[test]
    fn a_false_claim_does_not_last() {
        for seed in 0..20 {
            let mut world = World::new(seed, 3);
            world.run(4_000 * MILLISECOND);
            world.servers[2].manner = Manner::Claims;
            world.run(4_000 * MILLISECOND);
            let (claim, apart) = world.agreed();
            assert!(claim.server != 2 && apart < 1_500, "{seed}: {claim:?}, {apart} ns");
        }
    }

    /// Two that lead at the same time, because they could not reach each other, agree when they meet.
    #[test]
    fn two_claims_become_one() {
        for seed in 0..20 {
            let mut world = World::new(seed, 3);
            world.parted = vec![(0, 2), (1, 2)];
            world.run(4_000 * MILLISECOND);
            assert!(world.servers[0].machine.leads() && world.servers[2].machine.leads());
            world.parted.clear();
            world.run(4_000 * MILLISECOND);
            assert!(world.agreed().1 < 1_500, "{seed}");
            // One that reaches nobody goes on by its clock and drift, and leads itself in the end.
            world.parted = vec![(0, 1), (0, 2)];
            world.run(4_000 * MILLISECOND);
            assert!(world.servers[0].machine.leads());
            let times = [0, 1].map(|own| world.servers[own].common(world.now).unwrap());
            assert!(times[0].abs_diff(times[1]) < 20_000, "{seed}: {times:?}");
            world.parted.clear();
            world.run(4_000 * MILLISECOND);
            assert!(world.agreed().1 < 1_500, "{seed}");
        }
    }

    /// Servers that die, come back, part and meet in any order agree soon after the last event.
    #[test]
    fn any_order_of_events_ends_in_agreement() {
        for seed in 0..60 {
            let mut world = World::new(seed, 4);
            for _ in 0..12 {
                let one = world.below(4) as usize;
                let other = world.below(4) as usize;
                match world.below(5) {
                    0 => world.servers[one].manner = Manner::Dead,
                    1 => world.servers[one].manner = Manner::Late,
                    2 => world.start(one),
                    3 if one != other => world.parted.push((one, other)),
                    _ => world.parted.clear(),
                }
                let time = 1 + world.below(1_500);
                world.run(time * MILLISECOND);
            }
            world.parted.clear();
            for own in 0..4 {
                if world.servers[own].manner != Manner::Honest {
                    world.start(own);
                }
            }
            world.run(12_000 * MILLISECOND);
            assert!(world.agreed().1 < 1_500, "{seed}");
        }
    }

    #[test]
    fn a_server_by_itself_leads_itself() {
        let mut machine = Leadership::new((0, 1), INTERVAL, 7);
        assert!(matches!(machine.step(7), Step::Wait(_)));
        machine.step(7 + 10 * INTERVAL);
        assert!(machine.leads() && machine.estimate() == Some(Estimate::OWN));
    }

    /// A claim from far ahead would let its sender lead for ever.
    #[test]
    fn terms_from_far_ahead_are_not_credible() {
        let mut machine = Leadership::new((0, 3), INTERVAL, 0);
        machine.on_claim(Some(Claim { term: 7, server: 1 }), 1);
        for claim in [(u32::MAX, 2), (0, 2), (9, 0), (9, 3), (7, 2), (6, 0)] {
            machine.on_claim(Some(Claim { term: claim.0, server: claim.1 }), 1);
            assert_eq!(machine.claim(), Some(Claim { term: 7, server: 1 }), "{claim:?}");
        }
        machine.on_claim(Some(Claim { term: 8, server: 2 }), 1);
        assert_eq!(machine.claim(), Some(Claim { term: 8, server: 2 }));
    }
}
