//! All runs of a home and a few members: every order of messages and reads, a death at any place, and the mistakes that
//! the rules exclude.

use super::home::{Answer, Home};
use super::member::{Fetched, Leaving, Pages, Ticket, Write};
use super::{Claim, Page};
use std::collections::HashSet;

/// A deviation from the protocol. Exploration must find a run that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A fetch that met a release is installed.
    OldFetch,
    /// A member keeps its copy of a page that it acquires, whatever its version.
    CopyKept,
    /// A member believes that every message about a release is new.
    AnyTold,
    /// The home has the page back before other members know of the release.
    EarlyUnlock,
    /// The page is pushed after its home has it back.
    LatePush,
    /// Nobody tells the home of a death.
    DeathUnnoticed,
    /// The home forgets that the last writer has died.
    LossForgotten,
    /// A member reads before it marks.
    ReadBeforeMark,
    /// A releaser takes the marks before it pushes.
    EarlyMarks,
    /// A member keeps its mark when it is told.
    MarkKept,
    /// A releaser relies on marks that a dead one may have taken.
    LostMarks,
}

/// Mistakes that need no marks, and those that do.
const BUGS: [Bug; 7] = [
    Bug::OldFetch,
    Bug::CopyKept,
    Bug::AnyTold,
    Bug::EarlyUnlock,
    Bug::LatePush,
    Bug::DeathUnnoticed,
    Bug::LossForgotten,
];
const MARK_BUGS: [Bug; 5] =
    [Bug::OldFetch, Bug::ReadBeforeMark, Bug::EarlyMarks, Bug::MarkKept, Bug::LostMarks];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Read(Page),
    /// Acquires both pages, writes the one or both, and releases.
    Update(&'static [Page]),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// The claim has not reached the home.
    Claiming,
    /// The claim waits at the home.
    Queued,
    Granted(Answer),
    /// A page is fetched: marked or not, read or not.
    Fetching {
        ticket: Ticket,
        is_marked: bool,
        value: Option<u64>,
    },
    /// The pages are written.
    Inside,
    /// Pages to push, pages whose marks are to be taken, and members to tell of pages.
    Pushing {
        left: Vec<Leaving>,
        marks: Vec<Leaving>,
        tell: Vec<(usize, Page, u64)>,
    },
    Unlocking {
        late: Vec<Leaving>,
    },
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Told {
    to: usize,
    page: Page,
    version: u64,
    from: usize,
    /// A copy that nobody waits for.
    is_extra: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct One {
    pages: Pages,
    copies: Vec<u64>,
    at: At,
    /// Tasks that are left, the next one last.
    tasks: Vec<Task>,
    claims: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    home: Home,
    /// The bytes of each page at its home: how often it was written.
    bytes: Vec<u64>,
    marks: Vec<u8>,
    members: Vec<One>,
    told: Vec<Told>,
    /// The bytes of the last release of each page that has ended.
    released: Vec<u64>,
    /// A member died with the page, and nobody has released it since.
    lost: Vec<bool>,
    dead: Option<usize>,
    may_die: bool,
    may_repeat: bool,
}

type Found = Result<(), &'static str>;

impl Run {
    fn new(pages: u32, needs_mark: bool, tasks: &[&[Task]], may_die: bool, may_repeat: bool) -> Run {
        let one = |tasks: &&[Task]| One {
            pages: Pages::new(pages, needs_mark),
            copies: vec![0; pages as usize],
            at: At::Idle,
            tasks: tasks.iter().rev().copied().collect(),
            claims: 0,
        };
        Run {
            home: Home::new(0, 1, pages),
            bytes: vec![0; pages as usize],
            marks: vec![0; pages as usize],
            members: tasks.iter().map(one).collect(),
            told: Vec::new(),
            released: vec![0; pages as usize],
            lost: vec![false; pages as usize],
            dead: None,
            may_die,
            may_repeat,
        }
    }

    fn claim(&self, at: usize) -> Claim {
        Claim { member: at as u16, number: self.members[at].claims }
    }

    fn wake(&mut self, woken: Vec<super::home::Woken>) {
        for one in woken {
            let member = usize::from(one.claim.member);
            // It asks again.
            if self.members[member].at == At::Queued && self.claim(member) == one.claim {
                self.members[member].at = At::Claiming;
            }
        }
    }

    /// No copy that may be read is older than the last release.
    fn check(&self) -> Found {
        for one in self.members.iter().filter(|one| one.at != At::Dead) {
            for (page, released) in (0..).zip(&self.released) {
                if one.pages.has(page) && !one.pages.is_held(page) && one.copies[page as usize] < *released {
                    return Err("a member reads bytes from before a release that has ended");
                }
            }
        }
        Ok(())
    }

    fn check_end(&self) -> Found {
        let is_over = |one: &One| one.at == At::Dead || one.at == At::Idle && one.tasks.is_empty();
        if self.members.iter().all(is_over) { Ok(()) } else { Err("a member waits for ever") }
    }

    /// Pages of the task that have no copy.
    fn absent(&self, at: usize) -> Option<Page> {
        let one = &self.members[at];
        match one.tasks.last()? {
            Task::Read(page) => Some(*page).filter(|page| !one.pages.has(*page)),
            Task::Update(pages) => pages.iter().copied().find(|page| !one.pages.has(*page)),
        }
    }

    /// The next step after a copy is there.
    fn go_on(&mut self, bug: Bug, at: usize) -> Found {
        if let Some(page) = self.absent(at) {
            let one = &mut self.members[at];
            let is_marked = !one.pages.must_mark(page) || bug == Bug::ReadBeforeMark;
            one.at = At::Fetching { ticket: one.pages.begin(page), is_marked, value: None };
            return Ok(());
        }
        let one = &mut self.members[at];
        match one.tasks.last() {
            Some(Task::Update(pages)) => {
                for page in *pages {
                    if one.pages.write(*page) != Write::First {
                        return Err("a page that was acquired cannot be written");
                    }
                    if one.copies[*page as usize] != self.bytes[*page as usize] {
                        return Err("a writer begins with old bytes");
                    }
                    one.copies[*page as usize] += 1;
                }
                one.at = At::Inside;
            }
            _ => {
                one.tasks.pop();
                one.at = At::Idle;
            }
        }
        Ok(())
    }

    fn steps(&self, bug: Bug) -> Result<Vec<Run>, &'static str> {
        let mut next = Vec::new();
        for at in 0..self.members.len() {
            let mut run = self.clone();
            if self.members[at].at != At::Dead && run.step(bug, at)? {
                next.push(run);
            }
            if self.may_die && !matches!(self.members[at].at, At::Dead) {
                let mut run = self.clone();
                run.may_die = false;
                run.dead = Some(at);
                for page in 0..run.lost.len() {
                    if run.members[at].pages.is_held(page as Page) {
                        // Its last page may be back at the home already.
                        run.lost[page] =
                            run.bytes[page] != run.released[page] || run.members[at].at == At::Inside;
                    }
                }
                run.members[at].at = At::Dead;
                next.push(run);
            }
        }
        for (place, told) in self.told.iter().enumerate() {
            let mut run = self.clone();
            run.told.remove(place);
            let one = &mut run.members[told.to];
            if one.at != At::Dead {
                let known = one.pages.known(told.page);
                let version = if bug == Bug::AnyTold { told.version.max(known + 1) } else { told.version };
                one.pages.told(told.page, version);
                if bug == Bug::MarkKept {
                    let ticket = one.pages.begin(told.page);
                    one.pages.end_mark(ticket);
                }
            }
            if self.may_repeat && !told.is_extra {
                let mut again = run.clone();
                again.may_repeat = false;
                again.told.push(Told { is_extra: true, ..*told });
                again.told.sort_unstable();
                next.push(again);
            }
            next.push(run);
        }
        if let Some(dead) = self.dead
            && bug != Bug::DeathUnnoticed
        {
            let mut run = self.clone();
            run.dead = None;
            let woken = run.home.end(dead as u16);
            run.wake(woken);
            next.push(run);
        }
        next.iter().try_for_each(Run::check)?;
        Ok(next)
    }

    /// A step of a member; returns whether it can do one.
    fn step(&mut self, bug: Bug, at: usize) -> Result<bool, &'static str> {
        let claim = self.claim(at);
        match self.members[at].at.clone() {
            At::Dead | At::Queued => return Ok(false),
            At::Idle => match self.members[at].tasks.last().copied() {
                None => return Ok(false),
                Some(Task::Read(_)) => self.go_on(bug, at)?,
                Some(Task::Update(pages)) => {
                    let one = &mut self.members[at];
                    one.claims += 1;
                    one.pages.claim(one.claims, pages).map_err(|_| "a page is held after its release")?;
                    one.at = At::Claiming;
                }
            },
            At::Claiming => {
                let Some(Task::Update(pages)) = self.members[at].tasks.last().copied() else {
                    return Ok(false);
                };
                let mut answer = self.home.acquire(claim, pages, true);
                if let Answer::Granted(grants) = &mut answer
                    && bug == Bug::LossForgotten
                {
                    grants.iter_mut().for_each(|grant| grant.lost = None);
                }
                self.members[at].at = match answer {
                    Answer::Queued(..) => At::Queued,
                    granted => At::Granted(granted),
                };
            }
            At::Granted(Answer::Granted(mut grants)) => {
                if grants.iter().any(|grant| self.lost[grant.page as usize] && grant.lost.is_none()) {
                    return Err("a writer does not hear that the last one has died");
                }
                let others = self.members.iter().enumerate().filter(|(other, _)| *other != at);
                if others
                    .filter(|(_, one)| one.at == At::Inside)
                    .any(|(_, one)| grants.iter().any(|grant| one.pages.is_held(grant.page)))
                {
                    return Err("two members write a page");
                }
                if bug == Bug::CopyKept {
                    grants.iter_mut().for_each(|grant| grant.version = 0);
                }
                let number = claim.number;
                self.members[at].pages.granted(number, &grants);
                self.go_on(bug, at)?;
            }
            At::Granted(_) => return Err("a claim is refused"),
            At::Fetching { ticket, is_marked: false, value } => {
                self.marks[ticket.page as usize] |= 1 << at;
                let one = &mut self.members[at];
                one.pages.end_mark(ticket);
                let is_marked = !one.pages.must_mark(ticket.page);
                // The mark may be gone already.
                let ticket = if value.is_none() { one.pages.begin(ticket.page) } else { ticket };
                one.at = At::Fetching { ticket, is_marked, value };
            }
            At::Fetching { ticket, is_marked: true, value: None } => {
                let value = Some(self.bytes[ticket.page as usize]);
                let is_marked = bug != Bug::ReadBeforeMark || !self.members[at].pages.must_mark(ticket.page);
                self.members[at].at = At::Fetching { ticket, is_marked, value };
            }
            At::Fetching { ticket, value: Some(value), .. } => {
                let one = &mut self.members[at];
                let mut fetched = one.pages.end_fetch(ticket);
                if fetched == Fetched::Again && bug == Bug::OldFetch {
                    let ticket = one.pages.begin(ticket.page);
                    one.pages.end_mark(ticket);
                    fetched = one.pages.end_fetch(ticket);
                }
                if fetched == Fetched::Install {
                    one.copies[ticket.page as usize] = value;
                }
                self.go_on(bug, at)?;
            }
            At::Inside => {
                let Some(Task::Update(pages)) = self.members[at].tasks.last().copied() else {
                    return Ok(false);
                };
                let one = &mut self.members[at];
                let left = one.pages.leave(claim.number, pages);
                one.at = At::Pushing { marks: left.clone(), left, tell: Vec::new() };
                if bug == Bug::LatePush {
                    let late = one.pages.leave(claim.number, pages);
                    one.at = At::Unlocking { late };
                }
            }
            At::Pushing { mut left, mut marks, mut tell } => {
                if let Some(leaving) = left.pop().filter(|_| bug != Bug::EarlyMarks || marks.is_empty()) {
                    self.bytes[leaving.page as usize] = self.members[at].copies[leaving.page as usize];
                    self.members[at].at = At::Pushing { left, marks, tell };
                } else if let Some(leaving) = marks.pop() {
                    let by_mark = !leaving.to_all || bug == Bug::LostMarks;
                    let told = self.marks[leaving.page as usize];
                    self.marks[leaving.page as usize] &= 1 << at;
                    let others = (0..self.members.len()).filter(|other| *other != at);
                    let others = others.filter(|other| !by_mark || told & (1 << other) != 0);
                    tell.extend(others.map(|other| (other, leaving.page, leaving.version)));
                    let left = if bug == Bug::EarlyMarks { self.unpushed(at) } else { left };
                    self.members[at].at = At::Pushing { left, marks, tell };
                } else if !tell.is_empty() {
                    let sent = |(to, page, version): (usize, Page, u64)| Told {
                        to,
                        page,
                        version,
                        from: at,
                        is_extra: false,
                    };
                    self.told.extend(tell.into_iter().map(sent));
                    self.told.sort_unstable();
                    self.members[at].at = At::Pushing { left, marks, tell: Vec::new() };
                    if bug == Bug::EarlyUnlock {
                        self.members[at].at = At::Unlocking { late: Vec::new() };
                    }
                } else if self.told.iter().any(|told| told.from == at && !told.is_extra) {
                    return Ok(false);
                } else {
                    self.members[at].at = At::Unlocking { late: Vec::new() };
                    self.ended(at);
                }
            }
            At::Unlocking { late } => {
                let Some(Task::Update(pages)) = self.members[at].tasks.last().copied() else {
                    return Ok(false);
                };
                if late.is_empty() {
                    self.ended(at);
                }
                let one = &mut self.members[at];
                let leaving = one.pages.leave(claim.number, pages);
                let versions: Vec<_> = leaving.iter().map(|one| (one.page, one.version)).collect();
                one.pages.left(claim.number, pages);
                one.tasks.pop();
                one.at = At::Idle;
                for page in pages {
                    self.lost[*page as usize] = false;
                }
                let woken = self.home.release(claim, &versions);
                self.wake(woken);
                if !late.is_empty() {
                    self.members[at].at = At::Pushing { left: late, marks: Vec::new(), tell: Vec::new() };
                }
            }
        }
        Ok(true)
    }

    /// Pages of the task whose bytes the home does not have.
    fn unpushed(&self, at: usize) -> Vec<Leaving> {
        let Some(Task::Update(pages)) = self.members[at].tasks.last().copied() else { return Vec::new() };
        let mut one = self.members[at].pages.clone();
        let leaving = one.leave(self.members[at].claims, pages).into_iter();
        leaving
            .filter(|one| self.bytes[one.page as usize] < self.members[at].copies[one.page as usize])
            .collect()
    }

    /// The release of a member may be relied on.
    fn ended(&mut self, at: usize) {
        if let Some(Task::Update(pages)) = self.members[at].tasks.last() {
            for page in *pages {
                self.released[*page as usize] = self.members[at].copies[*page as usize];
            }
        }
    }
}

/// Explores all runs; returns the number of their states, or the last state of one that is wrong.
fn explore(bug: Bug, first: Run) -> Result<usize, String> {
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

const BOTH: &[Page] = &[0, 1];
const FIRST: &[Page] = &[0];

/// Small memories that show the mistakes.
fn small(needs_mark: bool) -> [Run; 3] {
    let update = Task::Update;
    [
        Run::new(
            2,
            needs_mark,
            &[&[Task::Read(0), update(BOTH), Task::Read(1)], &[Task::Read(1), update(BOTH)]],
            true,
            true,
        ),
        Run::new(
            1,
            needs_mark,
            &[&[update(FIRST)], &[Task::Read(0), update(FIRST)], &[Task::Read(0)]],
            true,
            false,
        ),
        Run::new(
            1,
            needs_mark,
            &[&[update(FIRST), update(FIRST)], &[Task::Read(0), update(FIRST), Task::Read(0)]],
            true,
            true,
        ),
    ]
}

#[test]
fn no_run_is_wrong_if_all_members_are_told() {
    for first in small(false) {
        let states = explore(Bug::None, first).unwrap();
        assert!(states > 1000, "{states}");
    }
}

#[test]
fn no_run_is_wrong_if_marked_members_are_told() {
    for first in small(true) {
        let states = explore(Bug::None, first).unwrap();
        assert!(states > 1000, "{states}");
    }
}

#[test]
fn every_bug_is_found() {
    for (bugs, needs_mark) in [(&BUGS[..], false), (&MARK_BUGS[..], true)] {
        for bug in bugs {
            let is_found = small(needs_mark).into_iter().any(|first| explore(*bug, first).is_err());
            assert!(is_found, "{bug:?}");
        }
    }
}
