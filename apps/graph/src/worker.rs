//! A thread of a member: gather, apply and scatter over a range of vertices.

use crate::edges::Edges;
use crate::engine::{Inbox, Member};
use crate::error::GraphError;
use crate::layout::{Header, MESSAGE};
use crate::local::{Local, is_sparse};
use crate::partition::overlap;
use crate::program::{Message, Plain, Program};
use crate::regions::Region;
use crate::threads::Stop;
use dunlin_tier_node::AnyTier;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// Vertices with messages are listed if they are fewer than one in this number of a region's.
const FEW: u32 = 16;
/// A thread of a member.
pub(crate) struct Worker<'a, T: AnyTier, P: Program> {
    member: &'a Member<T, P>,
    thread: usize,
    local: Local<P>,
    buffer: Vec<u8>,
}

impl<'a, T: AnyTier, P: Program> Worker<'a, T, P> {
    /// Runs a thread to the end of the job.
    pub(crate) fn run(member: &'a Member<T, P>, thread: u16, edges: Arc<Edges>) -> Result<(), Stop> {
        let thread = usize::from(thread);
        let range = member.ranges[usize::from(member.job.member * member.job.threads) + thread].clone();
        let local = Local::start(&member.program, &edges, range)?;
        drop(edges);
        let mut worker = Worker { member, thread, local, buffer: Vec::new() };
        member.meeting.meet(|| {
            member.totals().built = member.now();
            Ok(())
        })?;
        let mut step = 0;
        while member.program.steps().is_none_or(|steps| step < steps) {
            step += 1;
            worker.publish(step)?;
            member.meeting.meet(|| member.barrier("step"))?;
            worker.receive(step)?;
            member.meeting.meet(|| member.begin(step))?;
            let scattering = member.scattering.load(Ordering::Relaxed);
            if P::CACHES && scattering == 0 {
                break;
            }
            let begun = worker.local.gathered;
            if is_sparse::<P>(scattering, member.cells.len() as u64) {
                worker.push();
            } else {
                worker.local.pull(&member.program, |source| message(&member.cells, source));
            }
            member.watch.worked(worker.local.gathered - begun, worker.local.data.len() as u64);
        }
        worker.end()
    }

    /// Returns the regions that hold vertices of this thread, with the common part.
    fn own(&self) -> impl Iterator<Item = (&'a Region<T::Lmr>, Range<u32>)> + use<'a, T, P> {
        let range = self.local.rows.range.clone();
        let part = move |region: &'a Region<T::Lmr>| (region, overlap(&region.range, &range));
        self.member.regions.iter().map(part).filter(|(_, part)| !part.is_empty())
    }

    /// Returns the regions that this thread reads for its member.
    fn turns(&self) -> impl Iterator<Item = (usize, &'a Region<T::Lmr>)> + use<'a, T, P> {
        let threads = usize::from(self.member.job.threads);
        self.member.regions.iter().enumerate().skip(self.thread).step_by(threads)
    }

    /// Scatters: writes the messages of this thread's vertices for all members.
    fn publish(&mut self, step: u32) -> Result<(), GraphError> {
        let begin = self.local.rows.range.start;
        for (region, part) in self.own() {
            let messages = &self.local.outbox[(part.start - begin) as usize..(part.end - begin) as usize];
            let is_sent = |message: &P::Message| !P::CACHES || *message != P::NONE;
            let first = messages.iter().position(is_sent).unwrap_or(0);
            let end = messages.iter().rposition(is_sent).map_or(first, |last| last + 1);
            let count = messages[first..end].iter().filter(|message| is_sent(message)).count() as u32;
            // The part between the messages of two threads is read as well, so each writes all of its own.
            let written = if region.access.is_shared { 0..messages.len() } else { first..end };
            let at = part.start - region.range.start;
            if !written.is_empty() {
                self.buffer.resize(written.len() * MESSAGE as usize, 0);
                let places = self.buffer.chunks_exact_mut(MESSAGE as usize);
                for (place, message) in places.zip(&messages[written.clone()]) {
                    message.to_bits().put(place);
                }
                region.write_messages(step, at + written.start as u32, &self.buffer)?;
            }
            let (first, end) = if count > 0 { (at + first as u32, at + end as u32) } else { (0, 0) };
            let header = Header { agreement: self.member.agreement, step, count, first, end };
            region.announce(&self.member.tier, header)?;
        }
        Ok(())
    }

    /// Reads the messages of this thread's share of the regions for all threads of the member.
    fn receive(&mut self, step: u32) -> Result<(), GraphError> {
        let member = self.member;
        for (number, region) in self.turns() {
            let header = region.announced(step, member.agreement)?;
            let mut inbox = member.inboxes[number].write().unwrap_or_else(PoisonError::into_inner);
            if P::CACHES {
                clear::<P>(&member.cells, &inbox);
            }
            let base = region.range.start;
            self.buffer.resize((u64::from(header.end - header.first) * MESSAGE) as usize, 0);
            if header.count > 0 {
                region.read_messages(step, header.first, &mut self.buffer)?;
            }
            let is_few = P::CACHES && header.count < region.layout.vertices.div_ceil(FEW);
            let mut few = inbox.few.take().unwrap_or_default();
            few.clear();
            let window = base + header.first..base + header.end;
            let cells = &member.cells[window.start as usize..window.end as usize];
            for (cell, bits) in cells.iter().zip(self.buffer.chunks_exact(MESSAGE as usize)) {
                cell.store(P::Message::from_bits(u64::take(bits)).to_bits(), Ordering::Relaxed);
            }
            if is_few {
                let is_sent =
                    |vertex: &u32| P::Message::from_bits(message(&member.cells, *vertex)) != P::NONE;
                few.extend(window.clone().filter(is_sent));
            }
            *inbox = Inbox { count: header.count, window, few: is_few.then_some(few) };
        }
        Ok(())
    }

    /// Gathers over the edges of the vertices that scatter, and applies at their targets.
    fn push(&mut self) {
        let member = self.member;
        let senders = |one: &mut dyn FnMut(u32)| {
            for inbox in &member.inboxes {
                let inbox = inbox.read().unwrap_or_else(PoisonError::into_inner);
                match &inbox.few {
                    Some(few) => few.iter().copied().for_each(&mut *one),
                    None => inbox.window.clone().for_each(&mut *one),
                }
            }
        };
        self.local.push(&member.program, senders, |source| message(&member.cells, source));
    }

    /// Writes the data of this thread's vertices, and reads those of all if the member collects.
    fn end(mut self) -> Result<(), Stop> {
        let (member, begin) = (self.member, self.local.rows.range.start);
        {
            let mut totals = member.totals();
            totals.gathered += self.local.gathered;
            totals.stepped = totals.stepped.max(member.now());
        }
        for (region, part) in self.own() {
            let data = &self.local.data[(part.start - begin) as usize..(part.end - begin) as usize];
            self.buffer.resize(data.len() * P::Data::BYTES, 0);
            for (place, data) in self.buffer.chunks_exact_mut(P::Data::BYTES).zip(data) {
                data.put(place);
            }
            region.write_data(part.start - region.range.start, &self.buffer)?;
        }
        member.meeting.meet(|| member.barrier("data"))?;
        if member.job.collects {
            for (_, region) in self.turns() {
                let bytes = region.read_data()?;
                let data = bytes.chunks_exact(P::Data::BYTES).map(P::Data::take).collect();
                member.totals().data.push((region.range.clone(), data));
            }
        } else {
            member.totals().data.push((self.local.rows.range.clone(), std::mem::take(&mut self.local.data)));
        }
        // Nobody frees a region before all have read it.
        member.meeting.meet(|| member.barrier("end"))?;
        Ok(())
    }
}

// It is called for each edge, by code that is compiled in the crate of the program.
#[inline]
fn message(cells: &[AtomicU64], source: u32) -> u64 {
    cells[source as usize].load(Ordering::Relaxed)
}

/// Takes the messages of the step before out of the cells.
fn clear<P: Program>(cells: &[AtomicU64], inbox: &Inbox) {
    for cell in &cells[inbox.window.start as usize..inbox.window.end as usize] {
        cell.store(P::NONE.to_bits(), Ordering::Relaxed);
    }
}
