//! A member: its home, its cache, and its messages to other members. All calls of the tier but those for whole regions are
//! here.

use crate::cache::Cache;
use crate::config::{MemoryConfig, PAGE, Push, Told};
use crate::core::home::{Answer, Home, Woken};
use crate::core::member::Write;
use crate::core::{Claim, Member, Page};
use crate::error::MemoryError;
use crate::message::{DONE, MAX_MESSAGE, Request};
use dunlin_fabric::{Host, Nanos, Signal, Task, WithSources, Work, nanos};
use dunlin_page_faults::{Fault, FaultMemory};
use dunlin_tier_node::{
    AnyCalls, AnyLists, AnyLmr, AnyOperation, AnyServices, AnyTier, EachCall, LockError, RequestError,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The function of a member's service.
pub(crate) const FUNCTION: u16 = 1;
/// The pause before a message that was not heard is repeated.
const REPEAT_AFTER: Nanos = 50_000_000;
/// The time of a wait for the lock of a member: several looks of the owner of the lock.
const LIFE_TIME: Duration = Duration::from_secs(1);
/// The time after which the thread that answers faults sees whether the memory is closed.
const FAULT_LOOKS: Duration = Duration::from_millis(20);
/// Messages that wait to be sent. Wake-ups beyond are not sent: members that wait ask again.
const MAX_OUTGOING: usize = 4096;
/// Reads and writes of pages in one list.
const MAX_LIST: usize = 256;
/// Reads of a page that another member changes, one after the other.
const MAX_READS: u32 = 1000;

/// A member, as the others see it.
pub(crate) struct Peer<L> {
    pub(crate) node: String,
    pub(crate) lmr: L,
}

struct Outgoing {
    to: Member,
    request: Request,
    /// It is repeated until it was heard, or the member has ended.
    is_owed: bool,
}

/// Numbers of a member's operations since it opened the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages read from their homes.
    pub fetched: u64,
    /// Bytes of pages written to their homes.
    pub pushed: u64,
    /// Messages to members about releases.
    pub told: u64,
    /// Copies that were dropped because another member released the page.
    pub invalidated: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) fetched: AtomicU64,
    pub(crate) pushed: AtomicU64,
    pub(crate) told: AtomicU64,
    invalidated: AtomicU64,
}

/// The life of a member, as this one knows it.
#[derive(Default)]
struct Life {
    has_ended: AtomicBool,
    /// A thread finds out.
    is_examined: AtomicBool,
    task: Mutex<Option<Task>>,
}

type SignalOf<T> = <<T as AnyTier>::Host as Host>::Signal;

pub(crate) struct Shared<T: AnyServices + AnyLists> {
    pub(crate) tier: T,
    pub(crate) config: MemoryConfig,
    home: Mutex<Home>,
    cache: Mutex<Cache>,
    pub(crate) mapped: Option<Arc<FaultMemory>>,
    /// The name of the own node, once this member serves.
    pub(crate) node: OnceLock<String>,
    /// Set once all members are there.
    pub(crate) peers: OnceLock<Vec<Peer<T::Lmr>>>,
    outgoing: Mutex<VecDeque<Outgoing>>,
    has_outgoing: SignalOf<T>,
    /// Raised when a claim that waits may have its pages.
    pub(crate) woken: SignalOf<T>,
    stop: AtomicBool,
    failure: Mutex<Option<MemoryError>>,
    lives: Vec<Life>,
    pub(crate) counters: Counters,
    claims: AtomicU64,
}

impl<T: AnyServices + AnyLists> Shared<T> {
    pub(crate) fn new(tier: &T, config: &MemoryConfig) -> Result<Self, MemoryError> {
        let mapped = match config.address {
            Some(address) => Some(Arc::new(FaultMemory::new(Some(address), config.pages as usize)?)),
            None => None,
        };
        let (needs_mark, has_twins) = (config.told == Told::Marked, config.push == Push::Changed);
        Ok(Shared {
            tier: tier.clone(),
            config: config.clone(),
            home: Mutex::new(Home::new(config.member, config.members, config.pages)),
            cache: Mutex::new(Cache::new(config.pages, needs_mark, has_twins, mapped.clone())),
            mapped,
            node: OnceLock::new(),
            peers: OnceLock::new(),
            outgoing: Mutex::default(),
            has_outgoing: tier.host().signal(),
            woken: tier.host().signal(),
            stop: AtomicBool::new(false),
            failure: Mutex::default(),
            lives: (0..config.members).map(|_| Life::default()).collect(),
            counters: Counters::default(),
            claims: AtomicU64::new(1),
        })
    }

    fn home(&self) -> MutexGuard<'_, Home> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { fetched, pushed, told, invalidated } = &self.counters;
        Counts { fetched: of(fetched), pushed: of(pushed), told: of(told), invalidated: of(invalidated) }
    }

    /// Returns the number of a new claim.
    pub(crate) fn claim(&self) -> Claim {
        Claim { member: self.config.member, number: self.claims.fetch_add(1, Ordering::Relaxed) }
    }

    /// Accounts for bytes that this member copies or compares.
    pub(crate) fn charge_copy(&self, bytes: usize) {
        self.tier.host().charge(Work::CopyBytes, bytes as u32);
    }

    pub(crate) fn now(&self) -> Nanos {
        self.tier.host().now()
    }

    pub(crate) fn until(&self, time: Duration) -> Nanos {
        self.now().saturating_add(nanos(time))
    }

    fn peer(&self, member: Member) -> Result<&Peer<T::Lmr>, MemoryError> {
        let peer = self.peers.get().and_then(|peers| peers.get(usize::from(member)));
        peer.ok_or(MemoryError::Answer { member })
    }

    pub(crate) fn lmr(&self, home: Member) -> Result<&T::Lmr, MemoryError> {
        Ok(&self.peer(home)?.lmr)
    }

    // --- Messages that arrive.

    /// Answers a request. Does not block.
    fn answer(&self, request: &Request) -> Vec<u8> {
        let woken = match request {
            Request::Ping => Vec::new(),
            Request::Acquire { claim, waits, pages } => {
                return self.home().acquire(*claim, pages, *waits).encode();
            }
            Request::Withdraw { claim, pages } => self.home().withdraw(*claim, pages),
            Request::Lose { claim, pages } => self.home().lose(*claim, pages),
            Request::Release { claim, pages } => self.home().release(*claim, pages),
            Request::Ended { member } => self.home().end(*member),
            Request::Told { pages } => {
                let mut cache = self.cache();
                for (page, version) in pages {
                    if cache.pages.told(*page, *version) {
                        cache.drop_copy(*page);
                        self.counters.invalidated.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Vec::new()
            }
            Request::Woken => {
                self.woken.raise();
                Vec::new()
            }
        };
        for Woken { claim } in woken {
            match claim.member == self.config.member {
                true => self.woken.raise(),
                false => self.later(claim.member, Request::Woken, false),
            }
        }
        DONE.to_vec()
    }

    /// Serves other members until the memory is closed.
    pub(crate) fn serve(&self, calls: &T::Calls) {
        let mut buffer = vec![0; MAX_MESSAGE];
        while !self.stop.load(Ordering::Relaxed) {
            let answer = |caller: &str, bytes: &[u8]| {
                let request = Request::parse(bytes).filter(|_| caller == self.tier.principal())?;
                Some(self.answer(&request))
            };
            if let Err(error) = calls.serve_one(&mut buffer, answer) {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(MemoryError::Receive(error.into()));
                self.woken.raise();
                return;
            }
        }
    }

    /// Returns the reason why this member gets no messages.
    pub(crate) fn check_service(&self) -> Result<(), MemoryError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    // --- Messages that leave.

    /// Has a message sent by another thread.
    pub(crate) fn later(&self, to: Member, request: Request, is_owed: bool) {
        if to == self.config.member {
            self.answer(&request);
            return;
        }
        let mut outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        if outgoing.len() >= MAX_OUTGOING {
            if is_owed {
                tracing::warn!(target: "dunlin::memory", "too many messages to members that do not answer");
            }
            return;
        }
        outgoing.push_back(Outgoing { to, request, is_owed });
        drop(outgoing);
        self.has_outgoing.raise();
    }

    /// Sends messages until the memory is closed.
    pub(crate) fn send_outgoing(&self) {
        let mut until = Nanos::MAX;
        loop {
            let seen = self.has_outgoing.seen();
            let count = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).len();
            let stops = self.stop.load(Ordering::Relaxed);
            let mut is_repeated = false;
            for _ in 0..count {
                let first = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some(Outgoing { to, request, is_owed }) = first else { break };
                if self.sent(to, &request, is_owed) || stops {
                    continue;
                }
                is_repeated = true;
                let again = Outgoing { to, request, is_owed };
                self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).push_back(again);
            }
            if stops {
                return;
            }
            if is_repeated {
                until = self.now().saturating_add(REPEAT_AFTER);
            }
            self.has_outgoing.wait(seen, until);
            until = Nanos::MAX;
        }
    }

    /// Sends one message; returns whether it need not be repeated.
    fn sent(&self, to: Member, request: &Request, is_owed: bool) -> bool {
        let Ok(peer) = self.peer(to) else { return true };
        let service = self.config.service(to);
        if !is_owed {
            let _ = self.tier.send((&peer.node, service.as_bytes(), FUNCTION), &request.encode());
            return true;
        }
        self.ask(to, request, self.config.patience).is_ok() || self.has_ended(to)
    }

    /// Sends a request to a member, this one included, and returns its answer. Blocks for `time` at most.
    pub(crate) fn ask(&self, to: Member, request: &Request, time: Duration) -> Result<Vec<u8>, RequestError> {
        if to == self.config.member {
            return Ok(self.answer(request));
        }
        let Ok(peer) = self.peer(to) else { return Err(RequestError::NoNode(String::new())) };
        let service = self.config.service(to);
        let mut answer = vec![0; MAX_MESSAGE];
        let function = (&*peer.node, service.as_bytes(), FUNCTION);
        let length = self.tier.call_within(time, function, &request.encode(), &mut answer)?;
        answer.truncate(length);
        Ok(answer)
    }

    /// Sends requests to members, this one included, at the same time. Blocks for `time` at most.
    pub(crate) fn ask_each(
        &self,
        requests: &[(Member, Request)],
        time: Duration,
    ) -> Result<Vec<Result<Vec<u8>, RequestError>>, MemoryError> {
        let others: Vec<_> = requests.iter().filter(|(to, _)| *to != self.config.member).collect();
        let messages: Vec<_> =
            others.iter().map(|(to, request)| (self.config.service(*to), request.encode())).collect();
        let mut calls = Vec::with_capacity(others.len());
        for ((to, _), (service, request)) in others.iter().zip(&messages) {
            let node = &*self.peer(*to)?.node;
            calls.push(EachCall { node, service: service.as_bytes(), function: FUNCTION, request });
        }
        let answers = match &*calls {
            [] => Vec::new(),
            // One call needs no other thread.
            [_] => others.iter().map(|(to, request)| self.ask(*to, request, time)).collect(),
            _ => self.tier.call_each(time, &calls).map_err(request("calls to members"))?,
        };
        let mut answers = answers.into_iter();
        let each = |(to, request): &(Member, Request)| match *to == self.config.member {
            true => Ok(self.answer(request)),
            false => answers.next().unwrap_or(Err(RequestError::Answer { node: String::new() })),
        };
        Ok(requests.iter().map(each).collect())
    }

    /// Returns whether a member is known to have ended.
    pub(crate) fn is_known_ended(&self, member: Member) -> bool {
        self.lives.get(usize::from(member)).is_some_and(|life| life.has_ended.load(Ordering::Relaxed))
    }

    /// Has another thread find out whether a member has ended; it raises `woken` then.
    pub(crate) fn examine(self: &Arc<Self>, member: Member) {
        let Some(life) = self.lives.get(usize::from(member)) else { return };
        if self.is_known_ended(member) || life.is_examined.swap(true, Ordering::Relaxed) {
            return;
        }
        let this = Arc::clone(self);
        let body = move || {
            if this.has_ended(member) {
                this.woken.raise();
            }
            if let Some(life) = this.lives.get(usize::from(member)) {
                life.is_examined.store(false, Ordering::Relaxed);
            }
        };
        let mut task = life.task.lock().unwrap_or_else(PoisonError::into_inner);
        // It has ended before.
        task.take().into_iter().for_each(Task::join);
        match self.tier.host().spawn("memory-examiner", Box::new(body)) {
            Ok(started) => *task = Some(started),
            // The next claim that waits tries again.
            Err(_) => life.is_examined.store(false, Ordering::Relaxed),
        }
    }

    /// Returns whether a member has ended: it does not hold its lock any more. The owner of a lock looks after its holder
    /// while somebody waits. Blocks for some seconds if it lives.
    pub(crate) fn has_ended(&self, member: Member) -> bool {
        if member == self.config.member || self.is_known_ended(member) {
            return member != self.config.member;
        }
        let name = self.config.life(member);
        let has_ended = match self.tier.lock_within(name.as_bytes(), LIFE_TIME) {
            Ok(_) => true,
            Err(LockError::Busy { .. } | LockError::Name(_)) => false,
            Err(_) => match self.tier.try_lock(name.as_bytes()) {
                Ok(guard) => guard.is_some(),
                // The owner of the lock does not answer: it may be the node of the member.
                Err(_) => matches!(
                    self.ask(member, &Request::Ping, LIFE_TIME),
                    Err(RequestError::Connect { .. } | RequestError::Call { .. })
                ),
            },
        };
        if has_ended && let Some(life) = self.lives.get(usize::from(member)) {
            life.has_ended.store(true, Ordering::Relaxed);
        }
        has_ended
    }

    /// Sends requests to members until each was heard, or its member has ended; returns those that have ended.
    pub(crate) fn insist(
        &self,
        mut requests: Vec<(Member, Request)>,
        until: Nanos,
    ) -> Result<Vec<Member>, MemoryError> {
        let (mut ended, mut pause) = (Vec::new(), 1_000_000);
        loop {
            let left = Duration::from_nanos(until.saturating_sub(self.now()));
            let answers = self.ask_each(&requests, left)?;
            let mut unheard = Vec::new();
            for ((to, request), answer) in requests.into_iter().zip(answers) {
                match answer {
                    Ok(bytes) if bytes == DONE => {}
                    Ok(_) => return Err(MemoryError::Answer { member: to }),
                    Err(_) if self.has_ended(to) => ended.push(to),
                    Err(source) => unheard.push((to, request, source)),
                }
            }
            if let Some(place) = unheard.first()
                && self.now() >= until
            {
                let member = place.0;
                let source = unheard.swap_remove(0).2.into();
                return Err(MemoryError::Unanswered { member, source });
            }
            requests = unheard.into_iter().map(|(to, request, _)| (to, request)).collect();
            if requests.is_empty() {
                return Ok(ended);
            }
            self.tier.host().sleep(self.now().saturating_add(pause).min(until));
            pause = (2 * pause).min(REPEAT_AFTER);
        }
    }

    // --- Pages.

    /// Sets a bit of this member in the words of pages, so that the next releases are told.
    fn mark(&self, pages: &[Page]) -> Result<(), MemoryError> {
        let bit = 1u64 << self.config.member;
        // The first word is a guess; a swap that fails tells the word.
        let mut left: Vec<(Page, u64)> = pages.iter().map(|page| (*page, 0)).collect();
        while !left.is_empty() {
            let swaps = left.iter().map(|(page, word)| (*page, *word, *word | bit));
            let olds = self.swap_words(&swaps.collect::<Vec<_>>())?;
            let unset = |((page, word), old): ((Page, u64), u64)| {
                (old != word && old & bit == 0).then_some((page, old))
            };
            left = left.into_iter().zip(olds).filter_map(unset).collect();
        }
        Ok(())
    }

    /// Swaps the words of pages, each if it has its expected value; returns the old words.
    pub(crate) fn swap_words(&self, swaps: &[(Page, u64, u64)]) -> Result<Vec<u64>, MemoryError> {
        let mut olds = Vec::with_capacity(swaps.len());
        for swaps in swaps.chunks(MAX_LIST) {
            if let [(page, expected, swap)] = swaps {
                let home = self.config.home(*page);
                let old = self.lmr(home)?.compare_swap(self.config.word(*page), *expected, *swap);
                olds.push(old.map_err(|source| MemoryError::Operation { home, source: source.into() })?);
                continue;
            }
            let mut list = Vec::with_capacity(swaps.len());
            for (page, expected, swap) in swaps {
                list.push(AnyOperation::CompareSwap {
                    lmr: self.lmr(self.config.home(*page))?,
                    offset: self.config.word(*page),
                    expected: *expected,
                    swap: *swap,
                });
            }
            let outcomes = self.tier.run_list(list).map_err(Box::new)?;
            for ((page, ..), outcome) in swaps.iter().zip(outcomes) {
                let home = self.config.home(*page);
                let done =
                    outcome.map_err(|source| MemoryError::Operation { home, source: source.into() })?;
                olds.push(done.old().unwrap_or_default());
            }
        }
        Ok(olds)
    }

    /// Reads the pages that have no copy: one READ, or lists of them.
    pub(crate) fn fetch(&self, pages: impl Iterator<Item = Page> + Clone) -> Result<(), MemoryError> {
        let mut restless = 0;
        for _ in 0..MAX_READS {
            let (mut unmarked, mut early) = (Vec::new(), Vec::new());
            {
                let cache = self.cache();
                for page in pages.clone().filter(|page| !cache.pages.has(*page)) {
                    if cache.pages.must_mark(page) {
                        unmarked.push(page);
                        early.push(cache.pages.begin(page));
                    }
                }
            }
            if !unmarked.is_empty() {
                self.mark(&unmarked)?;
            }
            let tickets: Vec<_> = {
                let mut cache = self.cache();
                early.into_iter().for_each(|ticket| cache.pages.end_mark(ticket));
                let absent = pages.clone().filter(|page| !cache.pages.has(*page));
                absent.map(|page| cache.pages.begin(page)).collect()
            };
            let mut changed = None;
            for tickets in tickets.chunks(MAX_LIST) {
                let mut landing = self.cache().landing(tickets.len());
                self.read_pages(tickets.iter().map(|ticket| ticket.page), landing.pages())?;
                self.counters.fetched.fetch_add(tickets.len() as u64, Ordering::Relaxed);
                self.charge_copy(tickets.len() * PAGE);
                changed = self.cache().install(tickets, landing).or(changed);
            }
            match changed {
                None => return Ok(()),
                Some(page) => restless = page,
            }
        }
        Err(MemoryError::Restless { page: restless })
    }

    /// Reads pages from their homes. Reads whose time is over are repeated for the patience of the memory, and at least
    /// once: a repeated read changes nothing, and if the machine stood still, nobody had time to answer.
    fn read_pages(
        &self,
        pages: impl ExactSizeIterator<Item = Page> + Clone,
        mut places: Vec<&mut [u8]>,
    ) -> Result<(), MemoryError> {
        let (until, mut is_again) = (self.until(self.config.patience), false);
        loop {
            match self.read_once(pages.clone(), &mut places) {
                Err(error) if error.is_deadline() && (!is_again || self.now() < until) => is_again = true,
                read => return read,
            }
        }
    }

    fn read_once(
        &self,
        pages: impl ExactSizeIterator<Item = Page>,
        places: &mut [&mut [u8]],
    ) -> Result<(), MemoryError> {
        let (count, mut list) = (pages.len(), Vec::with_capacity(pages.len()));
        let mut homes = Vec::with_capacity(count);
        for (page, into) in pages.zip(places) {
            let home = self.config.home(page);
            let (lmr, offset) = (self.lmr(home)?, self.config.offset(page));
            if count == 1 {
                let read = lmr.read(offset, into);
                return read.map_err(|source| MemoryError::Operation { home, source: source.into() });
            }
            homes.push(home);
            list.push(AnyOperation::Read { lmr, offset, into });
        }
        let outcomes = self.tier.run_list(list).map_err(Box::new)?;
        for (home, outcome) in homes.into_iter().zip(outcomes) {
            outcome.map_err(|source| MemoryError::Operation { home, source: source.into() })?;
        }
        Ok(())
    }

    /// Writes bytes of pages to their homes: each with its page, its offset in the page, and its bytes.
    pub(crate) fn push(&self, changes: &[(Page, usize, Vec<u8>)]) -> Result<(), MemoryError> {
        for changes in changes.chunks(MAX_LIST) {
            let mut list = Vec::with_capacity(changes.len());
            for (page, at, from) in changes {
                let (lmr, offset) =
                    (self.lmr(self.config.home(*page))?, self.config.offset(*page) + *at as u64);
                list.push(AnyOperation::Write { lmr, offset, from });
            }
            let outcomes = self.tier.run_list(list).map_err(Box::new)?;
            for ((page, _, from), outcome) in changes.iter().zip(outcomes) {
                let home = self.config.home(*page);
                outcome.map_err(|source| MemoryError::Operation { home, source: source.into() })?;
                self.counters.pushed.fetch_add(from.len() as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Answers page faults until the memory is closed.
    pub(crate) fn answer_faults(&self, memory: &FaultMemory) {
        while !self.stop.load(Ordering::Relaxed) {
            let answered = match memory.next(FAULT_LOOKS) {
                Ok(None) => continue,
                Ok(Some(Fault::Absent(page))) => self.bring(memory, page as Page),
                Ok(Some(Fault::Protected(page))) => self.permit(memory, page as Page),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = answered {
                tracing::error!(target: "dunlin::memory", error = %WithSources(&error), "a page fault is not answered");
            }
        }
    }

    /// A thread loads from, or stores to, a page that is absent. If it cannot be read, the thread gets SIGSEGV: as with a
    /// mapped file that cannot be read, there is no other way to tell it.
    fn bring(&self, memory: &FaultMemory, page: Page) -> Result<(), MemoryError> {
        let fetched = self.fetch(page..page + 1);
        match &fetched {
            // It was there already, perhaps.
            Ok(()) => memory.wake(page as usize)?,
            Err(_) => memory.forbid(page as usize)?,
        }
        fetched
    }

    /// A thread stores to a page that is protected. If this member does not hold the page, the thread gets SIGSEGV, as for
    /// a store to memory that may be read only.
    fn permit(&self, memory: &FaultMemory, page: Page) -> Result<(), MemoryError> {
        let opened = self.cache().open(page);
        match opened {
            Write::First if self.config.push == Push::Changed => self.charge_copy(PAGE),
            // The thread tries again: the page was opened by another thread, or is gone and is brought.
            Write::First => {}
            Write::Again | Write::Absent => memory.wake(page as usize)?,
            Write::NotHeld if !self.cache().pages.has(page) => memory.wake(page as usize)?,
            Write::NotHeld => {
                memory.forbid(page as usize)?;
                return Err(MemoryError::NotAcquired { page });
            }
        }
        Ok(())
    }

    /// Ends the threads of this member.
    pub(crate) fn close(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.has_outgoing.raise();
        if let Some(node) = self.node.get() {
            // The thread looks at the flag after each request. If the node has ended, so has the thread.
            let service = self.config.service(self.config.member);
            let own = (&**node, service.as_bytes(), FUNCTION);
            let _ = self.tier.call_within(self.config.patience, own, &Request::Ping.encode(), &mut [0; 8]);
        }
        for life in &self.lives {
            let task = life.task.lock().unwrap_or_else(PoisonError::into_inner).take();
            task.into_iter().for_each(Task::join);
        }
    }
}

/// Returns an error of the tier.
pub(crate) fn request(what: &'static str) -> impl FnOnce(RequestError) -> MemoryError {
    move |source| MemoryError::Request { what, source: source.into() }
}

/// Returns the answer of a home to a claim.
pub(crate) fn parse_answer(home: Member, bytes: &[u8], pages: &[Page]) -> Result<Answer, MemoryError> {
    Answer::parse(bytes, pages).ok_or(MemoryError::Answer { member: home })
}
