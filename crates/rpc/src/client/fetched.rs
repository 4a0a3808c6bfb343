//! The client's end of a lane whose results are READ or written back: takes fetched results, decides when
//! READs are due, and asks the server to write results back after all (`path/half/hybrid.rs`).

use super::lane::ClientLane;
use super::slots::Sink;
use crate::path::half::fetch::Fetcher;
use crate::path::half::hybrid::{MODE_WORD, Patience, Tuning};
use crate::path::{Cx, Incoming, Scratch, Violation};
use dunlin_fabric::{Fabric, Nanos};

impl<F: Fabric> ClientLane<F> {
    /// Takes a fetched result of a lane that may also write back. Returns the number of messages.
    #[inline(never)]
    pub(super) fn progress_fetched(
        &mut self,
        cx: &mut Cx<'_, F>,
        scratch: &mut Scratch,
        sink: &mut impl Sink,
    ) -> Result<usize, Violation> {
        let Some(hybrid) = &mut self.hybrid else { return Ok(0) };
        let mut messages = 0;
        if hybrid.rx.is_waiting() {
            if let Some(Incoming::Buffer(buffer, range)) = hybrid.rx.poll(cx.fabric, scratch)? {
                hybrid.hit();
                messages = 1;
                self.on_message(cx, &buffer[range], sink)?;
                if let Some(fetcher) = self.fetcher() {
                    fetcher.give_back(buffer);
                }
            } else if hybrid.missed() == Patience::Over {
                self.give_over(cx);
            }
        }
        if self.hybrid.as_ref().is_some_and(|hybrid| hybrid.rx.head_overdue()) {
            self.report_head(cx);
        }
        Ok(messages)
    }

    /// Asks the server to write back the answers of all requests sent so far. A full send queue delays this
    /// until the next empty READ.
    fn give_over(&mut self, cx: &mut Cx<'_, F>) {
        let sent = self.tx.end.next_sequence();
        let given =
            self.tx.end.write_word(cx, (self.control_line.0, self.control_line.1 + MODE_WORD), sent, None);
        if let (Ok(()), Some(hybrid)) = (given, &mut self.hybrid) {
            hybrid.given_over();
        }
    }

    /// Returns the fetching end, if this lane has one.
    #[inline]
    pub(crate) fn fetcher(&mut self) -> Option<&mut Fetcher<F>> {
        match &mut self.hybrid {
            Some(hybrid) => hybrid.fetcher(),
            None => self.rx.fetcher(),
        }
    }

    /// As [`fetcher`](ClientLane::fetcher), but only if a READ may be due.
    #[inline]
    pub(crate) fn fetcher_with_work(&mut self, now: impl FnOnce() -> Nanos) -> Option<&mut Fetcher<F>> {
        match &mut self.hybrid {
            Some(hybrid) if hybrid.is_fetching() && hybrid.is_due(now) => hybrid.fetcher_for_next(),
            Some(_) => None,
            None => self.rx.fetcher(),
        }
    }

    /// Returns whether a READ may be in flight or due.
    #[inline]
    pub(crate) fn may_have_fetched(&self) -> bool {
        self.hybrid.as_ref().is_none_or(|hybrid| hybrid.is_fetching() || hybrid.rx.is_reading())
    }

    /// Returns whether the lane waits for a result, and its next READ is neither posted nor due later. Nothing would
    /// end a wait for it.
    pub(crate) fn has_read_to_post(&self) -> bool {
        let idle = match &self.hybrid {
            Some(hybrid) => hybrid.is_fetching() && !hybrid.rx.is_reading() && hybrid.due() == 0,
            None => self.rx.is_idle_fetcher(),
        };
        idle && self.broken.is_none() && self.slots.in_flight() > 0
    }

    /// Returns the time of the next READ, if one is needed later and none is in flight.
    #[inline]
    pub(crate) fn fetch_due(&self) -> Option<Nanos> {
        let hybrid = self.hybrid.as_ref().filter(|hybrid| hybrid.is_fetching() && !hybrid.rx.is_reading())?;
        Some(hybrid.due()).filter(|due| *due > 0)
    }

    /// Returns the current tuning; `None` if the plan leaves no choice between fetching and writing back.
    pub(crate) fn tuning(&self) -> Option<Tuning> {
        match (&self.hybrid, &self.written_by_rates) {
            (Some(hybrid), _) => Some(hybrid.tuning()),
            (None, Some(tuner)) => Some(Tuning::written_by_rates(tuner, self.tx.end.next_sequence())),
            (None, None) => None,
        }
    }

    /// Returns whether a lane that may also write back is fetching results.
    pub(crate) fn is_fetching(&self) -> bool {
        self.hybrid.as_ref().is_some_and(|hybrid| hybrid.is_fetching())
    }
}
