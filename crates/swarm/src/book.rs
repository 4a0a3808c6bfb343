//! The record of every call's end and execution, and the first violation found.

use dunlin_fabric::Nanos;
use dunlin_rpc::GroupCounters;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Distance between the call numbers of two threads of a client.
pub(super) const THREADS_APART: u64 = 100_000;

/// How a call ended for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With its result.
    Answered,
    /// It was executed, and its result is lost.
    Executed,
    /// It may have been executed.
    Maybe,
    /// It was not executed.
    Not,
    /// The caller has gone or lost interest.
    Abandoned,
}

#[derive(Default)]
struct Call {
    end: Option<End>,
    executed: u32,
    /// When it must have begun, in the run's time.
    deadline: Option<Nanos>,
}

#[derive(Default)]
struct Pages {
    calls: BTreeMap<u64, Call>,
    kills: u64,
    leases: u64,
    switches: u64,
    /// Call numbers of clients that are gone: first and end.
    gone: Vec<(u64, u64)>,
    violation: Option<String>,
    /// By how much a call may begin late; `None` if by any time.
    lateness: Option<Nanos>,
    /// Clients whose threads' calls begin in order: first and end of the call numbers, and the longest request of such a
    /// call.
    in_order: Vec<(u64, u64, usize)>,
    /// The last call of each such thread that has begun at each worker.
    begun: BTreeMap<(u64, usize), u64>,
}

impl Pages {
    /// Returns whether a call is one of a client that is gone.
    fn is_gone(&self, number: u64) -> bool {
        self.gone.iter().any(|(first, end)| (*first..*end).contains(&number))
    }

    /// Returns the entry of a call. One of a client that is gone is abandoned: a killed task may still write before it
    /// ends.
    fn call(&mut self, number: u64) -> &mut Call {
        let gone = self.is_gone(number);
        let call = self.calls.entry(number).or_default();
        if gone {
            call.end.get_or_insert(End::Abandoned);
        }
        call
    }
}

/// The book of a run. Clones share the same book.
#[derive(Clone, Default)]
pub(super) struct CallLedger(Arc<Mutex<Pages>>);

/// Totals of a book.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) maybe: u64,
    pub(super) not_executed: u64,
    pub(super) kills: u64,
    pub(super) leases: u64,
    pub(super) switches: u64,
}

impl CallLedger {
    pub(super) fn new() -> Self {
        CallLedger::default()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a violation; only the first is kept.
    pub(super) fn violate(&self, what: String) {
        self.pages().violation.get_or_insert(what);
    }

    pub(super) fn first_violation(&self) -> Option<String> {
        self.pages().violation.clone()
    }

    /// Records a call that the engine accepted.
    pub(super) fn sent(&self, number: u64) {
        // The call may have been executed already.
        self.pages().call(number);
    }

    /// Sets by how much a call may begin after its deadline, if that is limited.
    pub(super) fn may_be_late_by(&self, lateness: Option<Nanos>) {
        self.pages().lateness = lateness;
    }

    /// Sets that the calls of each thread with numbers from `first` to before `end` begin in order, as far as their
    /// requests are no longer than `most`: longer ones are READ meanwhile.
    pub(super) fn has_order(&self, first: u64, end: u64, most: usize) {
        self.pages().in_order.push((first, end, most));
    }

    /// Checks that a call of a thread begins after those that it made earlier at the same worker.
    pub(super) fn begins_at(&self, number: u64, bytes: usize, worker: usize) {
        let mut pages = self.pages();
        let keeps =
            |(first, end, most): &(u64, u64, usize)| (*first..*end).contains(&number) && bytes <= *most;
        // A call that its thread has given up may be left behind on another connection.
        let is_over = pages.calls.get(&number).is_some_and(|call| call.end.is_some());
        if is_over || !pages.in_order.iter().any(keeps) {
            return;
        }
        let before = pages.begun.insert((number / THREADS_APART, worker), number).unwrap_or(0);
        if before > number {
            pages
                .violation
                .get_or_insert(format!("call {number} began after the later call {before} of its thread"));
        }
    }

    /// Records the deadline of a call that is about to be made.
    pub(super) fn must_begin(&self, number: u64, deadline: Nanos) {
        self.pages().call(number).deadline = Some(deadline);
    }

    /// Removes a call that was not made.
    pub(super) fn not_made(&self, number: u64) {
        let mut pages = self.pages();
        if pages.calls.get(&number).is_some_and(|call| call.executed == 0) {
            pages.calls.remove(&number);
        }
    }

    /// Records that a call begins at this time of the run.
    pub(super) fn executed(&self, number: u64, now: Nanos) {
        let mut pages = self.pages();
        let allowed = pages.lateness;
        let call = pages.call(number);
        call.executed += 1;
        let (executed, end) = (call.executed, call.end);
        let late = call.deadline.map_or(0, |deadline| now.saturating_sub(deadline));
        if allowed.is_some_and(|allowed| late > allowed) {
            pages.violation.get_or_insert(format!("call {number} began {late} ns after its deadline"));
        }
        if executed > 1 {
            pages.violation.get_or_insert(format!("call {number} was executed {executed} times"));
        }
        if end == Some(End::Not) {
            pages.violation.get_or_insert(format!(
                "call {number} was executed after its caller was told that it was not"
            ));
        }
    }

    pub(super) fn ended(&self, number: u64, end: End) {
        let mut pages = self.pages();
        if pages.call(number).end == Some(End::Abandoned) && pages.is_gone(number) {
            // A killed task has gone on until its next wait.
            return;
        }
        let call = pages.calls.entry(number).or_default();
        let (before, executed) = (call.end.replace(end), call.executed);
        if let Some(before) = before {
            pages.violation.get_or_insert(format!("call {number} ended twice: {before:?}, then {end:?}"));
        }
        match end {
            End::Not if executed > 0 => {
                pages.violation.get_or_insert(format!(
                    "call {number} was executed, and its caller told that it was not"
                ));
            }
            End::Answered if executed == 0 => {
                pages.violation.get_or_insert(format!("call {number} was answered, and not executed"));
            }
            End::Executed if executed == 0 => {
                pages.violation.get_or_insert(format!(
                    "call {number} was not executed, and its caller told that it was"
                ));
            }
            End::Answered | End::Executed | End::Maybe | End::Not | End::Abandoned => {}
        }
    }

    /// Abandons the open calls of the client with numbers from `first` to before `end`, which is gone.
    pub(super) fn abandon(&self, first: u64, end: u64) {
        let mut pages = self.pages();
        pages.gone.push((first, end));
        for (_, call) in pages.calls.range_mut(first..end) {
            call.end.get_or_insert(End::Abandoned);
        }
    }

    pub(super) fn killed(&self) {
        self.pages().kills += 1;
    }

    /// Adds the leases of a server that ends, and its switches between groups.
    pub(super) fn had_groups(&self, counters: GroupCounters) {
        let mut pages = self.pages();
        pages.leases += counters.leases;
        pages.switches += counters.switches;
    }

    /// Returns the violation that remains once the run is over.
    pub(super) fn check(&self) -> Option<String> {
        let pages = self.pages();
        let open = pages.calls.iter().find(|(_, call)| call.end.is_none());
        open.map(|(number, _)| format!("call {number} never ended"))
    }

    pub(super) fn counts(&self) -> Counts {
        let pages = self.pages();
        let sent = pages.calls.len() as u64;
        let Pages { kills, leases, switches, .. } = *pages;
        let mut counts = Counts { sent, kills, leases, switches, ..Counts::default() };
        for call in pages.calls.values() {
            match call.end {
                Some(End::Answered) => counts.answered += 1,
                Some(End::Executed | End::Maybe | End::Abandoned) => counts.maybe += 1,
                Some(End::Not) => counts.not_executed += 1,
                None => {}
            }
        }
        counts
    }
}

/// Returns the request of a call: its bytes follow from its number, which is appended.
pub(super) fn request(number: u64, size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..size as u64).map(|i| (i * 31 + (i >> 8) * 7 + number * 17) as u8).collect();
    bytes.extend(number.to_le_bytes());
    bytes
}

/// Returns the number of a call whose request matches to the byte.
pub(super) fn number_of(payload: &[u8]) -> Result<u64, String> {
    let number = payload.last_chunk().map(|number| u64::from_le_bytes(*number));
    match number {
        Some(number) if payload == request(number, payload.len() - 8) => Ok(number),
        Some(number) => {
            Err(format!("a request of {} bytes is wrong; it says it is call {number}", payload.len()))
        }
        None => Err(format!("a request of {} bytes is too short", payload.len())),
    }
}

/// Returns the answer to a request: its bytes differ, so that neither can pass for the other.
pub(super) fn answer_to(request: &[u8]) -> Vec<u8> {
    request.iter().map(|byte| byte ^ 0xa5).collect()
}
