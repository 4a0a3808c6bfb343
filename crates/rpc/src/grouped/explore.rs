//! A breadth-first exploration of two clients, their server and its pool, with WRITEs that arrive as late as the
//! connection allows.
//!
//! The state machines are those that the engine runs. Around them stand the smallest memory, connections and loops
//! that can show an error:
//!
//! * Each client is a group, and the groups share one zone.
//! * A message is one line of a ring and has three parts that arrive one after the other: the first tag, the middle
//!   and the last tag. WRITEs of one connection arrive in order; parts of WRITEs of two connections mix in every way.
//! * The server looks, READs, executes and switches at any time. A switch without need happens once.
//! * A client may die between any two steps. Its posted WRITEs may arrive until its queue pair ends, which the server
//!   sees later.
//!
//! Every call must be executed once and answered, no torn message may pass for a whole one, and neither end may take
//! the other one for a liar. Each planted [`Mistake`] must be found.

use super::member::Member;
use super::tenant::{Tenant, Transmission};
use super::zones::Zones;
use super::{Mark, Word};
use std::collections::{BTreeSet, VecDeque};

/// A planted mistake of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mistake {
    None,
    /// A zone is given out again before the word of its last tenant.
    NoWord,
    /// The word of an earlier lease counts as the word of the last one.
    AnyWord,
    /// A lease does not raise the epoch.
    SameEpoch,
    /// A switch counts the requests in the zone as taken, and does not execute them.
    Forgets,
    /// After a switch the server READs again from the head of before the lease.
    ReadsAgain,
    /// The server READs announced requests during a lease.
    ReadsUnderLease,
    /// The beginning of a lease is not told.
    BeginsSilently,
    /// The end of a lease is not told.
    Silent,
    /// The zone of a dead client is given out again before the queue pair is destroyed.
    ZoneFirst,
}

/// Lines of a ring, and of the zone.
const LINES: u32 = 2;

/// The tag of a message: client, epoch, sequence. One message is one line, so a sequence is also a tail or head.
type Tag = (usize, u32, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Write {
    /// A message for the zone; the number counts the parts that have arrived.
    Message(Tag, usize),
    Word(Word),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Answer {
    mark: Mark,
    head: u32,
    /// The sequence of the request that is answered.
    of: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Client {
    tenant: Tenant,
    to_call: u32,
    tail: u32,
    head: u32,
    answered: u32,
    /// WRITEs on their way to the server.
    writes: VecDeque<Write>,
    is_dead: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lane {
    member: Member,
    word: Word,
    /// Requests that were READ or taken from the zone.
    head: u32,
    /// The head when the last lease began.
    head_before: u32,
    /// The head and the tail of a READ in flight.
    reading: Option<(u32, u32)>,
    /// Requests that were READ and not executed.
    read: VecDeque<u32>,
    /// How often each request was executed.
    executed: Vec<u8>,
    /// Answers on their way to the client.
    answers: VecDeque<Answer>,
    /// The client is known to be dead.
    is_gone: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    clients: [Client; 2],
    lanes: [Lane; 2],
    zones: Zones,
    /// The parts of each line of the zone.
    zone: [[Option<Tag>; 3]; LINES as usize],
    running: usize,
    switches_without_need: u32,
    /// Clients that may still die.
    deaths: u32,
    mistake: Mistake,
}

/// An error that the exploration found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Torn,
    Twice,
    Stuck,
    Lie,
}

impl World {
    fn new(calls: [u32; 2], deaths: u32, mistake: Mistake) -> Self {
        let client = |calls| Client {
            tenant: Tenant::new(),
            to_call: calls,
            tail: 0,
            head: 0,
            answered: 0,
            writes: VecDeque::new(),
            is_dead: false,
        };
        let lane = |calls: u32| Lane {
            member: Member::with(mistake),
            word: Word::default(),
            head: 0,
            head_before: 0,
            reading: None,
            read: VecDeque::new(),
            executed: vec![0; calls as usize],
            answers: VecDeque::new(),
            is_gone: false,
        };
        World {
            clients: calls.map(client),
            lanes: calls.map(lane),
            zones: Zones::new(1),
            zone: [[None; 3]; LINES as usize],
            running: 0,
            switches_without_need: 1,
            deaths,
            mistake,
        }
    }

    fn is_over(&self) -> bool {
        let is_over = |client: &Client| client.to_call == 0 && client.answered == client.tail;
        self.clients.iter().all(|client| client.is_dead || is_over(client))
    }

    /// Returns all states that one step leads to. Adds the errors of steps to `found`.
    fn steps(&self, found: &mut BTreeSet<Found>) -> Vec<World> {
        let mut next = Vec::new();
        for of in 0..2 {
            self.call(of, &mut next);
            self.arrive(of, &mut next);
            found.extend(self.hear(of, &mut next).err());
            found.extend(self.look(of, &mut next).err());
            self.complete(of, &mut next);
            self.die(of, &mut next);
            self.bury(of, &mut next);
        }
        found.extend(self.execute(&mut next).err());
        found.extend(self.switch(&mut next).err());
        next
    }

    /// A client makes a call.
    fn call(&self, of: usize, next: &mut Vec<World>) {
        let client = &self.clients[of];
        if client.is_dead || client.to_call == 0 || client.tail - client.head == LINES {
            return;
        }
        let mut world = self.clone();
        let client = &mut world.clients[of];
        client.to_call -= 1;
        client.tail += 1;
        match client.tenant.built() {
            Transmission::Write => {
                let tag = (of, client.tenant.epoch(), client.tail - 1);
                client.writes.push_back(Write::Message(tag, 0));
            }
            Transmission::Announce => client.writes.push_back(Write::Word(client.tenant.word(client.tail))),
        }
        next.push(world);
    }

    /// A part of a client's next WRITE arrives.
    fn arrive(&self, of: usize, next: &mut Vec<World>) {
        let mut world = self.clone();
        match world.clients[of].writes.front_mut() {
            None => return,
            Some(Write::Message(tag, part)) => {
                world.zone[(tag.2 % LINES) as usize][*part] = Some(*tag);
                *part += 1;
                if *part == 3 {
                    world.clients[of].writes.pop_front();
                }
            }
            Some(Write::Word(word)) => {
                world.lanes[of].word = *word;
                world.clients[of].writes.pop_front();
            }
        }
        next.push(world);
    }

    /// A client takes its next answer.
    fn hear(&self, of: usize, next: &mut Vec<World>) -> Result<(), Found> {
        if self.clients[of].is_dead {
            return Ok(());
        }
        let mut world = self.clone();
        let Some(answer) = world.lanes[of].answers.pop_front() else { return Ok(()) };
        let client = &mut world.clients[of];
        client.answered += u32::from(answer.of.is_some());
        client.head = answer.head;
        let outcome =
            client.tenant.on_mark(answer.mark, client.tail > client.head).map_err(|_| Found::Lie)?;
        if outcome.granted.is_some() {
            for sequence in client.head..client.tail {
                client.writes.push_back(Write::Message((of, client.tenant.epoch(), sequence), 0));
            }
        }
        if outcome.ended {
            client.writes.push_back(Write::Word(client.tenant.word(client.tail)));
        }
        next.push(world);
        Ok(())
    }

    /// The server looks at a client's word, and READs what it announces.
    fn look(&self, of: usize, next: &mut Vec<World>) -> Result<(), Found> {
        if self.lanes[of].is_gone {
            return Ok(());
        }
        let mut world = self.clone();
        let (lane, zones) = (&mut world.lanes[of], &mut world.zones);
        let announced = lane.member.on_word(lane.word, lane.head, LINES, zones).map_err(|_| Found::Lie)?;
        if announced > 0 && !lane.member.is_reading() {
            lane.member.begin_read();
            lane.reading = Some((lane.head, lane.head + announced));
        }
        next.push(world);
        Ok(())
    }

    /// A READ completes.
    fn complete(&self, of: usize, next: &mut Vec<World>) {
        let mut world = self.clone();
        let lane = &mut world.lanes[of];
        let Some((from, to)) = lane.reading.take() else { return };
        lane.member.end_read();
        lane.read.extend(from..to);
        lane.head += to - from;
        next.push(world);
    }

    /// A client dies. Some of the WRITEs that it has posted are still on their way.
    fn die(&self, of: usize, next: &mut Vec<World>) {
        if self.deaths == 0 || self.clients[of].is_dead {
            return;
        }
        for left in 0..=self.clients[of].writes.len() {
            let mut world = self.clone();
            world.deaths -= 1;
            world.clients[of].is_dead = true;
            // A WRITE of which parts have arrived may stay as it is.
            world.clients[of].writes.truncate(left);
            next.push(world);
        }
    }

    /// The server hears of a client's death: the queue pair goes, and then the zone.
    fn bury(&self, of: usize, next: &mut Vec<World>) {
        if !self.clients[of].is_dead || self.lanes[of].is_gone {
            return;
        }
        let mut world = self.clone();
        if self.mistake != Mistake::ZoneFirst {
            world.clients[of].writes.clear();
        }
        let lane = &mut world.lanes[of];
        lane.is_gone = true;
        lane.member.gone(&mut world.zones);
        lane.reading = None;
        lane.read.clear();
        lane.answers.clear();
        next.push(world);
    }

    /// The server executes the next request of the running client, READ or from the zone.
    fn execute(&self, next: &mut Vec<World>) -> Result<(), Found> {
        let mut world = self.clone();
        let Some(sequence) = world.take()? else { return Ok(()) };
        world.answer(Some(sequence), false);
        next.push(world);
        Ok(())
    }

    /// Takes the next request of the running client.
    fn take(&mut self) -> Result<Option<u32>, Found> {
        let of = self.running;
        let lane = &mut self.lanes[of];
        if lane.is_gone {
            return Ok(None);
        }
        let sequence = match lane.read.pop_front() {
            Some(sequence) => {
                if lane.member.begin_lease(&mut self.zones) {
                    lane.head_before = lane.head - lane.read.len() as u32 - 1;
                }
                sequence
            }
            None if lane.member.is_leased() => {
                let expected = Some((of, lane.member.epoch(), lane.head));
                let [first, middle, last] = self.zone[(lane.head % LINES) as usize];
                if first != expected || last != expected {
                    return Ok(None);
                }
                if middle != expected {
                    return Err(Found::Torn);
                }
                lane.head += 1;
                lane.head - 1
            }
            None => return Ok(None),
        };
        let Some(executed) = lane.executed.get_mut(sequence as usize) else { return Err(Found::Lie) };
        *executed += 1;
        if *executed > 1 { Err(Found::Twice) } else { Ok(Some(sequence)) }
    }

    fn answer(&mut self, of: Option<u32>, ends: bool) {
        let lane = &mut self.lanes[self.running];
        let mark = match self.mistake {
            Mistake::BeginsSilently if lane.member.is_leased() && !ends => {
                Mark::new(lane.member.epoch() - 1, 0, false)
            }
            _ => lane.member.mark(ends),
        };
        lane.answers.push_back(Answer { mark, head: lane.head, of });
    }

    /// The server switches to the other client.
    fn switch(&self, next: &mut Vec<World>) -> Result<(), Found> {
        let mut world = self.clone();
        let other = 1 - self.running;
        let waits = |lane: &Lane| {
            !lane.read.is_empty()
                || lane.reading.is_some()
                || (!lane.is_gone && lane.word.tail.wrapping_sub(lane.head) as i32 > 0)
        };
        if !waits(&self.lanes[other]) {
            let Some(left) = self.switches_without_need.checked_sub(1) else { return Ok(()) };
            world.switches_without_need = left;
        }
        // The last look at the zone.
        if self.mistake == Mistake::Forgets && world.lanes[self.running].read.is_empty() {
            let before = world.lanes[self.running].head;
            while world.take()?.is_some() {}
            let taken = before as usize..world.lanes[self.running].head as usize;
            world.lanes[self.running].executed[taken].fill(0);
        }
        while let Some(sequence) = world.take()? {
            world.answer(Some(sequence), false);
        }
        let lane = &mut world.lanes[world.running];
        if lane.member.is_leased() {
            if self.mistake == Mistake::Silent {
                lane.member.end_lease(&mut world.zones);
            } else {
                world.answer(None, true);
                world.lanes[world.running].member.end_lease(&mut world.zones);
            }
        }
        if self.mistake == Mistake::ReadsAgain {
            let lane = &mut world.lanes[world.running];
            lane.head = lane.head_before;
        }
        world.running = other;
        next.push(world);
        Ok(())
    }
}

/// The states and steps that an exploration has seen.
#[derive(Debug, Default)]
struct Seen {
    found: BTreeSet<Found>,
    states: usize,
    /// States in which a WRITE of an ended lease is under way.
    late: usize,
    /// States in which both clients had a lease already.
    both: usize,
    ended: usize,
}

/// Explores all states that no error leads to.
fn explore(calls: [u32; 2], deaths: u32, mistake: Mistake) -> Seen {
    let mut seen = BTreeSet::new();
    let mut queue = VecDeque::from([World::new(calls, deaths, mistake)]);
    let mut counts = Seen::default();
    while let Some(world) = queue.pop_front() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let late = |of: usize| {
            let ended = |write: &Write| {
                matches!(write, Write::Message(tag, _) if tag.1 < world.lanes[of].member.epoch()
                || !world.lanes[of].member.is_leased())
            };
            world.clients[of].writes.iter().any(ended)
        };
        counts.late += usize::from((0..2).any(late));
        counts.both += usize::from(world.lanes.iter().all(|lane| lane.member.epoch() > 0));
        let before = counts.found.len();
        let next = world.steps(&mut counts.found);
        let is_last = next.iter().all(|next| *next == world);
        // A state whose steps all fail is not stuck.
        if is_last && !world.is_over() && counts.found.len() == before {
            counts.found.insert(Found::Stuck);
        }
        counts.ended += usize::from(is_last);
        queue.extend(next.into_iter().filter(|next| !seen.contains(next)));
    }
    counts.states = seen.len();
    counts
}

/// The calls of the two clients: three, and two each, with which both can WRITE in one place of the zone.
const CALLS: [[u32; 2]; 3] = [[2, 1], [1, 2], [2, 2]];

#[test]
fn no_order_of_events_loses_repeats_or_tears_a_request() {
    for calls in CALLS {
        let seen = explore(calls, 0, Mistake::None);
        assert!(seen.found.is_empty(), "{calls:?}: {seen:?}");
        assert!(seen.late > 0 && seen.both > 0 && seen.ended > 0, "{calls:?}: {seen:?}");
        println!("{calls:?}: {seen:?}");
    }
}

/// One client dies between any two steps: the calls of the other one are executed once and answered.
#[test]
fn the_death_of_a_client_at_any_step_harms_no_other() {
    for calls in CALLS {
        let seen = explore(calls, 1, Mistake::None);
        assert!(seen.found.is_empty(), "{calls:?}: {seen:?}");
        println!("{calls:?}, one death: {seen:?}");
    }
}

#[test]
fn every_planted_mistake_is_found() {
    // Two calls of each client meet in one place of the zone; the other mistakes need fewer.
    let mistakes = [
        ([2, 2], Mistake::ZoneFirst, Found::Torn),
        ([2, 2], Mistake::NoWord, Found::Torn),
        ([2, 2], Mistake::AnyWord, Found::Torn),
        ([2, 1], Mistake::SameEpoch, Found::Lie),
        ([2, 1], Mistake::Forgets, Found::Stuck),
        ([2, 1], Mistake::ReadsAgain, Found::Twice),
        ([2, 1], Mistake::ReadsUnderLease, Found::Twice),
        ([2, 1], Mistake::BeginsSilently, Found::Stuck),
        ([2, 1], Mistake::Silent, Found::Stuck),
    ];
    std::thread::scope(|scope| {
        for (calls, mistake, expected) in mistakes {
            scope.spawn(move || {
                let deaths = u32::from(mistake == Mistake::ZoneFirst);
                let found = explore(calls, deaths, mistake).found;
                assert!(found.contains(&expected), "{mistake:?}: {found:?}");
            });
        }
    });
}
