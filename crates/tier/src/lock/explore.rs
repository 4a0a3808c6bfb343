//! All runs of a lock with members that take it by turns, at most one death and one waiter that gives up: messages in
//! any order, atomics that land late, an owner whose swaps meet those of members. A death is that of a member, or that
//! of a holder whose member lives. A member takes the lock by its word, or has the owner try.

#![allow(clippy::disallowed_types)]

use super::{Event, Member, Plan, Queue, WAITERS, Waiter, Word};
use std::collections::HashSet;

/// A deviation from the protocol. Exploration must find a run that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The owner queues a waiter without marking the word.
    NoMark,
    /// The owner counts a swap that failed.
    SwapForgotten,
    /// A waiter that gives up does not give back what it was granted.
    AbandonedGrantKept,
    /// The owner believes every unlock.
    AnyUnlock,
    /// Nobody hears of a death.
    DeathUnnoticed,
    /// A member does not tell the owner that it could not free the lock by itself.
    UnlockNotTold,
    /// A grant keeps the fence number of the last one.
    FenceKept,
    /// The next holder does not hear that the last one has died.
    PoisonForgotten,
    /// A member gives a lock back whose holder has died as if it lived.
    PoisonNotTold,
    /// A member that gives up a call without waiting does not tell the owner.
    TryNotAbandoned,
}

const BUGS: [Bug; 10] = [
    Bug::NoMark,
    Bug::SwapForgotten,
    Bug::AbandonedGrantKept,
    Bug::AnyUnlock,
    Bug::DeathUnnoticed,
    Bug::UnlockNotTold,
    Bug::FenceKept,
    Bug::PoisonForgotten,
    Bug::PoisonNotTold,
    Bug::TryNotAbandoned,
];

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// It wants the lock as many times, and knows the word as of some time.
    Away,
    /// A swap is under way, to take the lock.
    Taking(Word),
    /// It waits for the answer to this call.
    Waiting(u64),
    /// It waits to hear whether the lock was free.
    Trying(u64),
    /// It has given its call up, and tells the owner.
    GivingUp,
    /// It has the lock.
    Inside(Word),
    /// A swap is under way, to give the lock back.
    Leaving(Word),
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Reserve(u16, u64),
    Try(u16, u64),
    /// The owner answers that the lock is not free.
    Held(u16, u64),
    Unlock(u16, u64),
    Poison(u16, u64),
    Abandon(u16, u64),
    Granted(u16, u64, u64, bool),
    /// The owner has carried out what the member said.
    Heard(u16),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    word: Word,
    queue: Queue,
    /// The event that the owner carries out, and the word as it read it.
    owner: Option<(Event, Word)>,
    members: Vec<At>,
    left: Vec<u8>,
    known: Vec<Word>,
    calls: u64,
    /// Sorted.
    messages: Vec<Message>,
    /// Swaps of a dead member that have not landed.
    late: Option<(Word, Word)>,
    may_die: bool,
    may_give_up: bool,
    /// The largest fence number of a holder.
    fence: u64,
    /// A member died inside, and nobody was told yet.
    poisoned: bool,
}

fn member(index: usize) -> Member {
    Member::new(index as u16 + 1).unwrap()
}

fn index(number: u16) -> usize {
    usize::from(number) - 1
}

impl Run {
    fn new(members: usize, rounds: u8) -> Run {
        Run {
            word: Word::default(),
            queue: Queue::default(),
            owner: None,
            members: vec![At::Away; members],
            left: vec![rounds; members],
            known: vec![Word::default(); members],
            calls: 0,
            messages: Vec::new(),
            late: None,
            may_die: true,
            may_give_up: true,
            fence: 0,
            poisoned: false,
        }
    }

    fn send(&mut self, message: Message) {
        self.messages.push(message);
        self.messages.sort_unstable();
    }

    /// Lets a member in. Returns the reason why the run is wrong.
    fn enter(&mut self, at: usize, word: Word, poisoned: bool) -> Result<(), &'static str> {
        let inside = |at: &At| matches!(at, At::Inside(_));
        if self.members.iter().any(inside) {
            return Err("two members are inside");
        }
        if word.fence() <= self.fence {
            return Err("a fence number does not grow");
        }
        if self.poisoned && !poisoned {
            return Err("nobody heard that the last holder has died");
        }
        (self.fence, self.poisoned) = (word.fence(), false);
        self.members[at] = At::Inside(word);
        Ok(())
    }

    fn plan(&self, bug: Bug, word: Word, event: Event) -> Plan {
        let mut plan = match (bug, event) {
            (Bug::AnyUnlock, Event::Unlock(_)) if word.holder().is_some() => self.queue.pass_on(word, false),
            (Bug::AbandonedGrantKept, Event::Abandon(waiter)) => {
                Plan { word, swap: None, effect: super::Effect::Remove(waiter) }
            }
            _ => self.queue.plan(word, event),
        };
        match (bug, plan.swap) {
            (Bug::NoMark, Some(swap)) if swap.bits() == word.bits() | WAITERS => plan.swap = None,
            (Bug::FenceKept, Some(swap)) if swap.fence() > word.fence() => {
                plan.swap = Some(Word(swap.0 - (1 << super::FENCE_SHIFT)));
            }
            _ => {}
        }
        plan
    }

    /// All runs after one more step, or the reason why a step is wrong.
    fn steps(&self, bug: Bug) -> Result<Vec<Run>, &'static str> {
        let mut next = Vec::new();
        for at in 0..self.members.len() {
            self.member_steps(bug, at, &mut next)?;
        }
        if let Some((expected, new)) = self.late {
            let mut run = Run { late: None, ..self.clone() };
            if run.word == expected {
                run.word = new;
            }
            next.push(run);
        }
        match self.owner {
            Some((event, read)) => next.push(self.owner_step(bug, event, read)?),
            None => self.deliveries(bug, &mut next),
        }
        for (place, message) in self.messages.iter().enumerate() {
            let mut run = self.clone();
            run.messages.remove(place);
            if let Message::Heard(number) = *message {
                if run.members[index(number)] == At::GivingUp {
                    run.members[index(number)] = At::Away;
                }
                next.push(run);
            } else if let Message::Held(number, call) = *message {
                if run.members[index(number)] == At::Trying(call) {
                    run.members[index(number)] = At::Away;
                }
                next.push(run);
            } else if let Message::Granted(number, call, word, poisoned) = *message {
                // A member that has given up hears nothing of the answer.
                if matches!(run.members[index(number)], At::Waiting(own) | At::Trying(own) if own == call) {
                    run.enter(index(number), Word::from_bits(word), poisoned)?;
                }
                next.push(run);
            }
        }
        Ok(next)
    }

    fn deliveries(&self, bug: Bug, next: &mut Vec<Run>) {
        for (place, message) in self.messages.iter().enumerate() {
            let event = match *message {
                Message::Reserve(number, call) => {
                    Event::Reserve(Waiter { member: member(index(number)), call })
                }
                Message::Try(number, call) => Event::Try(Waiter { member: member(index(number)), call }),
                Message::Abandon(number, call) => {
                    Event::Abandon(Waiter { member: member(index(number)), call })
                }
                Message::Unlock(_, word) => Event::Unlock(Word::from_bits(word)),
                Message::Poison(_, word) => Event::Poison(Word::from_bits(word)),
                Message::Granted(..) | Message::Heard(_) | Message::Held(..) => continue,
            };
            let mut run = self.clone();
            run.messages.remove(place);
            run.owner = Some((event, run.word));
            next.push(run);
        }
        // The owner looks whether the holder lives if somebody waits.
        let dead = |holder: &Member| self.members[index(holder.number())] == At::Dead;
        if let Some(holder) = self.word.holder().filter(dead)
            && self.queue.waiting().len() > 0
            && bug != Bug::DeathUnnoticed
        {
            let mut run = self.clone();
            run.owner = Some((Event::Dead(holder), run.word));
            next.push(run);
        }
    }

    /// The owner swaps the word as planned with the value that it read, or reads it again.
    fn owner_step(&self, bug: Bug, event: Event, read: Word) -> Result<Run, &'static str> {
        let mut run = self.clone();
        let plan = run.plan(bug, read, event);
        if plan.swap.is_some() && run.word != read && bug != Bug::SwapForgotten {
            run.owner = Some((event, run.word));
            return Ok(run);
        }
        if run.word == read {
            run.word = plan.swap.unwrap_or(read);
        }
        run.owner = None;
        if let Event::Abandon(waiter) = event {
            run.send(Message::Heard(waiter.member.number()));
        }
        if let Some(grant) = run.queue.apply(plan) {
            let Waiter { member, call } = grant.waiter;
            let poisoned = grant.poisoned && bug != Bug::PoisonForgotten;
            run.send(Message::Granted(member.number(), call, grant.word.bits(), poisoned));
        } else if let Event::Try(waiter) = event {
            run.send(Message::Held(waiter.member.number(), waiter.call));
        }
        Ok(run)
    }

    fn member_steps(&self, bug: Bug, at: usize, next: &mut Vec<Run>) -> Result<(), &'static str> {
        let number = member(at).number();
        let mut run = self.clone();
        match self.members[at] {
            At::Dead => return Ok(()),
            At::GivingUp => {
                self.die(at, next);
                return Ok(());
            }
            At::Away if self.left[at] == 0 => {
                // Its last message may still be under way.
                self.die(at, next);
                return Ok(());
            }
            At::Away => {
                run.left[at] -= 1;
                // At once by the owner, without a wait.
                let mut tries = run.clone();
                tries.calls += 1;
                tries.members[at] = At::Trying(tries.calls);
                tries.send(Message::Try(number, tries.calls));
                next.push(tries);
                // A member that knows the lock as held guesses that it is free by now.
                run.members[at] = At::Taking(run.known[at].if_free());
            }
            At::Taking(expected) if self.word == expected => {
                run.word = expected.taken_by(member(at)).unwrap();
                run.enter(at, run.word, expected.is_poisoned() && bug != Bug::PoisonForgotten)?;
            }
            At::Taking(_) if self.word.holder().is_none() => run.members[at] = At::Taking(self.word),
            At::Taking(_) => {
                run.calls += 1;
                run.members[at] = At::Waiting(run.calls);
                run.send(Message::Reserve(number, run.calls));
            }
            At::Waiting(call) | At::Trying(call) => {
                if !self.may_give_up {
                    self.die(at, next);
                    return Ok(());
                }
                run.may_give_up = false;
                if bug == Bug::TryNotAbandoned && matches!(self.members[at], At::Trying(_)) {
                    run.members[at] = At::Away;
                } else {
                    run.members[at] = At::GivingUp;
                    run.send(Message::Abandon(number, call));
                }
            }
            At::Inside(word) => {
                run.members[at] = At::Leaving(word);
                if self.may_die {
                    // The holder dies, and its member lives.
                    let mut poisons = Run { may_die: false, ..self.clone() };
                    poisons.members[at] = At::Away;
                    poisons.poisoned = true;
                    poisons.send(match bug {
                        Bug::PoisonNotTold => Message::Unlock(number, word.bits()),
                        _ => Message::Poison(number, word.bits()),
                    });
                    next.push(poisons);
                }
            }
            At::Leaving(word) => {
                run.known[at] = self.word;
                run.members[at] = At::Away;
                if let Some(free) = word.given_back().filter(|_| self.word == word) {
                    (run.word, run.known[at]) = (free, free);
                } else if bug != Bug::UnlockNotTold {
                    run.send(Message::Unlock(number, word.bits()));
                }
            }
        }
        next.push(run);
        self.die(at, next);
        Ok(())
    }

    fn die(&self, at: usize, next: &mut Vec<Run>) {
        if !self.may_die {
            return;
        }
        let mut run = Run { may_die: false, ..self.clone() };
        let wrote = match self.members[at] {
            At::Taking(expected) => expected.taken_by(member(at)).map(|new| (expected, new)),
            At::Leaving(word) => word.given_back().map(|free| (word, free)),
            _ => None,
        };
        run.poisoned = matches!(self.members[at], At::Inside(_));
        (run.members[at], run.late) = (At::Dead, wrote);
        next.push(run);
    }

    /// Checks a run in which nothing can happen any more.
    fn check_end(&self) -> Result<(), &'static str> {
        let is_over = |(at, left): (&At, &u8)| *at == At::Dead || *at == At::Away && *left == 0;
        if !self.members.iter().zip(&self.left).all(is_over) {
            return Err("a member waits for ever");
        }
        match self.word.holder() {
            Some(holder) if self.members[index(holder.number())] != At::Dead => {
                Err("the lock is held by a member that does not know it")
            }
            _ => Ok(()),
        }
    }
}

/// Explores all runs; returns the number of their states, or the last states of one that is wrong.
fn explore(bug: Bug, members: usize, rounds: u8) -> Result<usize, String> {
    let first = Run::new(members, rounds);
    let (mut seen, mut open) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(run) = open.pop() {
        let wrong = |reason| format!("{reason}: {run:?}");
        let next = run.steps(bug).map_err(wrong)?;
        if next.is_empty() {
            run.check_end().map_err(wrong)?;
        }
        for run in next {
            if !seen.contains(&run) {
                seen.insert(run.clone());
                open.push(run);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_run_of_two_members_is_wrong() {
    let states = explore(Bug::None, 2, 2).unwrap();
    assert!(states > 1000, "{states}");
}

#[test]
fn no_run_of_three_members_is_wrong() {
    let states = explore(Bug::None, 3, 1).unwrap();
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_bug_is_found() {
    for bug in BUGS {
        let found = explore(bug, 2, 2).and_then(|_| explore(bug, 3, 1));
        assert!(found.is_err(), "{bug:?}");
    }
}
