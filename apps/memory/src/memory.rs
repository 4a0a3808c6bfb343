//! A shared memory, as one of its members sees it.

use crate::acquired::Acquired;
use crate::config::{HEADER, MemoryConfig, PAGE, Push, header, parse_header};
use crate::core::Page;
use crate::core::member::Write;
use crate::error::MemoryError;
use crate::shared::{Counts, FUNCTION, Peer, Shared, request};
use dunlin_fabric::{Host, Task};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{
    AnyGuard, AnyLists, AnyLmr, AnyServices, AnyTier, LockError, RequestError, Rights, Spec,
};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Fetches of a page that is gone again before it is read.
const MAX_TRIES: u32 = 1000;

/// A shared memory: the same pages at several members, each a process or a node, of which one at a time writes a page.
/// All methods may be called from any thread.
///
/// A page that a member reads is copied from its home, and read from the copy until a release of another member. Bytes
/// that were released before the release of another member was heard of, by any means, are seen: a barrier or a lock of
/// the tier orders members. Bytes of a page that is being written may be seen in part.
///
/// Dropping it ends the member. Pages whose home it is can be read as long as its node lives, and nobody can acquire them.
pub struct Memory<T: AnyServices + AnyLists> {
    shared: Arc<Shared<T>>,
    /// The lock that others find free when this member has ended.
    life: Mutex<Option<<T as AnyTier>::Guard>>,
    threads: Vec<Task>,
}

impl<T: AnyServices + AnyLists> std::fmt::Debug for Memory<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// A region that is freed unless it is kept.
struct Made<T: AnyTier> {
    tier: T,
    name: Option<String>,
}

impl<T: AnyTier> Drop for Made<T> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // A node that has ended has taken its regions with it.
            let _ = self.tier.map(name.as_bytes(), Rights::ALL).and_then(AnyLmr::free);
        }
    }
}

fn locked(what: &'static str) -> impl FnOnce(LockError) -> MemoryError {
    move |source| MemoryError::Lock { what, source: source.into() }
}

impl<T: AnyServices + AnyLists> Memory<T> {
    /// Opens a memory as one of its members: makes the region of the pages whose home this member is, and waits for the
    /// other members. Blocks for the patience of the memory at most. All bytes are zero.
    ///
    /// # Errors
    /// A setting makes no sense, the name is taken, other members have other settings or do not come, or the tier fails.
    pub fn open(tier: &T, config: &MemoryConfig) -> Result<Self, MemoryError> {
        config.check()?;
        let region = config.region(config.member);
        let service = config.service(config.member);
        let taken = || MemoryError::Taken { region: region.clone() };
        let calls = tier.register(service.as_bytes(), FUNCTION).map_err(|error| match error {
            RequestError::Registered { .. } => taken(),
            error => request("the service of a member")(error),
        })?;
        // The own node comes first, and has this member's service.
        let node =
            tier.servers(service.as_bytes()).map_err(request("a look for servers"))?.into_iter().next();
        let node = node.ok_or(MemoryError::Answer { member: config.member })?;
        let spec = Spec::here().named(&region);
        let lmr = tier.malloc(config.length(config.member), spec).map_err(|error| match error {
            RequestError::Refused { source: Refusal::Record(RecordError::Taken), .. } => taken(),
            error => request("the region of a member's pages")(error),
        })?;
        let mut made = Made { tier: tier.clone(), name: Some(region.clone()) };
        lmr.write(0, &header(config.agreement(), &node))
            .map_err(|source| MemoryError::Operation { home: config.member, source: source.into() })?;
        let life = tier
            .lock_within(config.life(config.member).as_bytes(), config.patience)
            .map_err(locked("the lock of a member cannot be had"))?;
        let shared = Arc::new(Shared::new(tier, config)?);
        let _ = shared.node.set(node);
        let mut memory =
            Memory { shared: Arc::clone(&shared), life: Mutex::new(Some(life)), threads: Vec::new() };
        let own = Arc::clone(&shared);
        memory.spawn("memory-home", move || own.serve(&calls))?;
        let own = Arc::clone(&shared);
        memory.spawn("memory-sender", move || own.send_outgoing())?;
        memory.meet("open", "the other members did not open the memory in time")?;
        if let Some(mapped) = shared.mapped.clone() {
            let own = Arc::clone(&shared);
            memory.spawn("memory-faults", move || own.answer_faults(&mapped))?;
        }
        let peers = (0..config.members).map(|member| memory.map(member)).collect::<Result<Vec<_>, _>>()?;
        let _ = shared.peers.set(peers);
        made.name = None;
        Ok(memory)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), MemoryError> {
        let task = self.shared.tier.host().spawn(name, Box::new(body)).map_err(MemoryError::Thread)?;
        self.threads.push(task);
        Ok(())
    }

    /// Waits for all members.
    fn meet(&self, place: &str, what: &'static str) -> Result<(), MemoryError> {
        let config = &self.shared.config;
        let living = config.members - self.ended().len() as u16;
        // Callers of one barrier name the same number.
        let name = config.meeting(&format!("{place}/{living}"));
        self.shared.tier.barrier_within(name.as_bytes(), living, config.patience).map_err(locked(what))
    }

    /// Returns the members of which this one knows that they have ended: it found that out when it waited for them, or when
    /// it told them of a release.
    pub fn ended(&self) -> Vec<u16> {
        (0..self.shared.config.members).filter(|member| self.shared.is_known_ended(*member)).collect()
    }

    /// Waits until all members wait here but those that are known to have ended ([`ended`](Memory::ended)), of which all
    /// have to know. Blocks for the patience of the memory at most.
    ///
    /// # Errors
    /// Other members did not come in time, or one of them ended while it waited.
    pub fn barrier(&self) -> Result<(), MemoryError> {
        self.meet("barrier", "the other members did not come to the barrier in time")
    }

    /// Maps the pages of a member.
    fn map(&self, member: u16) -> Result<Peer<T::Lmr>, MemoryError> {
        let (tier, config) = (&self.shared.tier, &self.shared.config);
        let rights = Rights::READ.with(Rights::WRITE);
        let lmr = tier
            .map(config.region(member).as_bytes(), rights)
            .map_err(request("the region of another member's pages"))?;
        let mut bytes = [0; HEADER];
        let length = HEADER.min(lmr.len() as usize);
        lmr.read(0, &mut bytes[..length])
            .map_err(|source| MemoryError::Operation { home: member, source: source.into() })?;
        match parse_header(&bytes, config.agreement()) {
            Some(node) if lmr.len() == config.length(member) => Ok(Peer { node, lmr }),
            _ => Err(MemoryError::Disagree { member }),
        }
    }

    /// Returns the settings.
    pub fn config(&self) -> &MemoryConfig {
        &self.shared.config
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.shared.config.size()
    }

    /// Returns the memory as words at [`MemoryConfig::address`]; `None` without an address. A load from a page without a
    /// copy reads it from its home, and the first store to a page that was acquired makes it one that is pushed. A store to
    /// a page that this member does not hold, and a page that cannot be read, end the process by SIGSEGV, after a message in
    /// the log. A system call on a page without a copy fails with EFAULT: [`prefetch`](Memory::prefetch) it.
    pub fn words(&self) -> Option<&[AtomicU64]> {
        self.shared.mapped.as_ref().map(|memory| memory.words())
    }

    /// Returns the numbers of this member's operations.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Returns the pages of a range of bytes.
    fn pages(&self, range: &Range<u64>) -> Result<Range<Page>, MemoryError> {
        let (offset, size) = (range.start, self.size());
        let length = range.end.saturating_sub(range.start);
        if range.end < range.start || range.end > size {
            return Err(MemoryError::Bounds { offset, length, size });
        }
        Ok((offset / PAGE as u64) as Page..range.end.div_ceil(PAGE as u64) as Page)
    }

    fn range(offset: u64, length: usize) -> Range<u64> {
        offset..offset.saturating_add(length as u64)
    }

    /// Calls `each` with the parts of an operation: page, offset in the page, and place in the bytes.
    fn parts(offset: u64, length: usize) -> impl Iterator<Item = (Page, usize, Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let within = (at % PAGE as u64) as usize;
            let part = (PAGE - within).min(length - done);
            let place = done..done + part;
            done += part;
            (part > 0).then_some(((at / PAGE as u64) as Page, within, place))
        })
    }

    /// Reads bytes. Pages without a copy are read from their homes: one with one READ, several in lists of READs. Blocks
    /// as operations of the tier do, if a page is read; a READ whose time is over is repeated for the patience of the
    /// memory, and at least once.
    ///
    /// # Errors
    /// The range is outside of the memory, or the tier fails.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        let pages = self.pages(&Self::range(offset, into.len()))?;
        for (page, at, place) in Self::parts(offset, into.len()) {
            let mut tries = 0..MAX_TRIES;
            while !self.shared.cache().read(page, at, &mut into[place.clone()]) {
                // Another member has released the page between the fetch and the read.
                tries.next().ok_or(MemoryError::Restless { page })?;
                self.shared.fetch(page..pages.end)?;
            }
        }
        self.shared.charge_copy(into.len());
        Ok(())
    }

    /// Reads the pages of a range that have no copy, in lists of up to 256 READs. The copies may be gone before they are
    /// read, by releases of other members.
    ///
    /// # Errors
    /// As [`read`](Memory::read).
    pub fn prefetch(&self, range: Range<u64>) -> Result<(), MemoryError> {
        let pages = self.pages(&range)?;
        self.shared.fetch(pages)
    }

    /// Drops the copies of a range, but those of pages that this member holds: for pages that are not read again.
    ///
    /// # Errors
    /// The range is outside of the memory.
    pub fn forget(&self, range: Range<u64>) -> Result<(), MemoryError> {
        let pages = self.pages(&range)?;
        let mut cache = self.shared.cache();
        for page in pages {
            if cache.pages.forget(page) {
                cache.drop_copy(page);
            }
        }
        Ok(())
    }

    /// Acquires the pages of a range of bytes for writing: all of them, or none. One round trip to all homes at the same
    /// time, if nobody holds one of them; otherwise waits behind those that asked before, for the patience of the memory
    /// at most. A thread that holds pages and acquires more may wait for a member that waits for it: acquire all at once.
    ///
    /// # Errors
    /// [`MemoryError::Held`] if the time is over, [`MemoryError::AlreadyAcquired`] for a page that this member holds,
    /// [`MemoryError::HomeEnded`] if nobody can acquire a page any more, and errors of the tier.
    pub fn acquire(&self, range: Range<u64>) -> Result<Acquired<'_, T>, MemoryError> {
        self.acquire_within(range, self.shared.config.patience)
    }

    /// As [`acquire`](Memory::acquire), and waits for `time` at most.
    ///
    /// # Errors
    /// As [`acquire`](Memory::acquire).
    pub fn acquire_within(&self, range: Range<u64>, time: Duration) -> Result<Acquired<'_, T>, MemoryError> {
        self.acquire_all_within(&[range], time)
    }

    /// As [`acquire`](Memory::acquire), for the pages of several ranges.
    ///
    /// # Errors
    /// As [`acquire`](Memory::acquire).
    pub fn acquire_all(&self, ranges: &[Range<u64>]) -> Result<Acquired<'_, T>, MemoryError> {
        self.acquire_all_within(ranges, self.shared.config.patience)
    }

    /// As [`acquire_all`](Memory::acquire_all), and waits for `time` at most.
    ///
    /// # Errors
    /// As [`acquire`](Memory::acquire).
    pub fn acquire_all_within(
        &self,
        ranges: &[Range<u64>],
        time: Duration,
    ) -> Result<Acquired<'_, T>, MemoryError> {
        let mut pages = Vec::new();
        for range in ranges {
            let range = self.pages(range)?;
            // A refusal needs no list of millions of pages.
            pages.extend(range.take(crate::message::MAX_PAGES + 1));
        }
        pages.sort_unstable();
        pages.dedup();
        Acquired::new(&self.shared, pages, time)
    }

    /// Writes bytes to pages that this member holds. They are read by this member at once, and by others after the
    /// release. Blocks as operations of the tier do, if a page has no copy.
    ///
    /// # Errors
    /// [`MemoryError::NotAcquired`] for a page that this member does not hold; nothing was written.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        let pages = self.pages(&Self::range(offset, from.len()))?;
        {
            let cache = self.shared.cache();
            if let Some(page) = pages.clone().find(|page| !cache.pages.may_write(*page)) {
                return Err(MemoryError::NotAcquired { page });
            }
        }
        self.shared.charge_copy(from.len());
        for (page, at, place) in Self::parts(offset, from.len()) {
            // The copy of a page that is held stays.
            loop {
                let written = self.shared.cache().write(page, at, &from[place.clone()]);
                match written {
                    Write::First => {
                        if self.shared.config.push == Push::Changed {
                            // The twin.
                            self.shared.charge_copy(PAGE);
                        }
                        break;
                    }
                    Write::Again => break,
                    Write::Absent => self.shared.fetch(page..pages.end)?,
                    // Another thread has released it meanwhile.
                    Write::NotHeld => return Err(MemoryError::NotAcquired { page }),
                }
            }
        }
        Ok(())
    }

    /// Ends the memory: waits for all members that have not ended, and frees the pages whose home this member is. Without it they stay until
    /// the end of the node, or until `dunlin tier free`.
    ///
    /// # Errors
    /// Other members have not closed the memory in time, or have ended. The pages of this member are freed all the same.
    pub fn close(self) -> Result<(), MemoryError> {
        let name = Some(self.shared.config.region(self.shared.config.member));
        let made = Made { tier: self.shared.tier.clone(), name };
        let met = self.meet("close", "the other members did not close the memory in time");
        drop(self);
        drop(made);
        met
    }
}

impl<T: AnyServices + AnyLists> Drop for Memory<T> {
    fn drop(&mut self) {
        self.shared.close();
        self.threads.drain(..).for_each(Task::join);
        if let Some(life) = self.life.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // A node that has ended has taken its locks with it.
            let _ = life.unlock();
        }
    }
}
