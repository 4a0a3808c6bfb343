//! Lists of operations of a process, cut into requests.

use crate::attachment::Failed;
use crate::lmr::Lmr;
use dunlin_fabric::{Fabric, Nanos};
use dunlin_fabric_shm::ShmFabric;
use dunlin_tier::process::list::{ListedChange, ListedOperation, MAX_LISTED};
use dunlin_tier::process::{MAX_MOVED, Problem, ProcessRequest, RUN, list};
use dunlin_tier::{AccessError, Priority, Rights};
use dunlin_tier_node::{Done, ListError, OperationError, Outcomes, RequestError, check_list_size};
use std::sync::Arc;
use std::time::Duration;

/// The change or the bytes of an operation.
#[derive(Debug)]
enum Action<'a> {
    Read(&'a mut [u8]),
    Change(ListedChange<'a>),
}

/// An operation of a list.
#[derive(Debug)]
struct Entry<'a, P: Fabric> {
    lmr: &'a Lmr<P>,
    offset: u64,
    action: Action<'a>,
    /// A part of it was executed.
    is_begun: bool,
    outcome: Option<Result<Done, OperationError>>,
}

/// A part of an operation that one request has.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The place of the operation.
    place: usize,
    at: usize,
    length: usize,
}

impl<P: Fabric> Entry<'_, P> {
    /// Returns the number of bytes.
    fn length(&self) -> usize {
        match &self.action {
            Action::Read(into) => into.len(),
            Action::Change(ListedChange::Write(from)) => from.len(),
            Action::Change(_) => 8,
        }
    }

    fn is_read(&self) -> bool {
        matches!(self.action, Action::Read(_))
    }

    fn check(&self) -> Result<(), AccessError> {
        let needs = if self.is_read() { Rights::READ } else { Rights::WRITE };
        self.lmr.check(needs, self.offset, self.length() as u64)?;
        let is_atomic =
            matches!(self.action, Action::Change(ListedChange::Add(_) | ListedChange::Swap { .. }));
        if is_atomic && !self.offset.is_multiple_of(8) {
            return Err(AccessError::Misaligned(self.offset));
        }
        Ok(())
    }

    fn fail(&mut self, error: OperationError) {
        let error = if self.is_begun { error.after_parts() } else { error };
        self.outcome = Some(Err(error));
    }
}

impl<'a, P: Fabric> Entry<'a, P> {
    /// Returns a part as it travels. The bytes to write are those of the caller.
    fn part(&self, part: Part) -> ListedOperation<'a> {
        let Part { at, length, .. } = part;
        let change = match &self.action {
            Action::Read(_) => ListedChange::Read(length as u32),
            Action::Change(ListedChange::Write(from)) => ListedChange::Write(&from[at..at + length]),
            Action::Change(change) => *change,
        };
        ListedOperation { handle: self.lmr.opened.handle, offset: self.offset + at as u64, change }
    }
}

/// A list of operations on regions of one attachment, at most 1024 that move 64 MiB.
///
/// [`run`](Operations::run) checks the rights and bounds of all operations before any is executed. The operations have
/// no order among each other, and nothing is atomic but each atomic: a read may see a write of the same list, or not. A
/// list whose reads or writes have 256 KiB at most is one request to the node; a longer one is several, one after the
/// other.
#[derive(Debug)]
#[must_use = "a list does nothing until Operations::run"]
pub struct Operations<'a, P: Fabric = ShmFabric> {
    entries: Vec<Entry<'a, P>>,
    time: Option<Duration>,
    /// `None` for the least one of the handles.
    priority: Option<Priority>,
}

impl<P: Fabric> Default for Operations<'_, P> {
    fn default() -> Self {
        Operations { entries: Vec::new(), time: None, priority: None }
    }
}

impl<'a, P: Fabric> Operations<'a, P> {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a read of bytes at `offset`: [`Lmr::read`].
    pub fn read(self, lmr: &'a Lmr<P>, offset: u64, into: &'a mut [u8]) -> Self {
        self.add(lmr, offset, Action::Read(into))
    }

    /// Adds a write of bytes at `offset`: [`Lmr::write`].
    pub fn write(self, lmr: &'a Lmr<P>, offset: u64, from: &'a [u8]) -> Self {
        self.add(lmr, offset, Action::Change(ListedChange::Write(from)))
    }

    /// Adds an addition to the word at `offset`: [`Lmr::fetch_add`].
    pub fn fetch_add(self, lmr: &'a Lmr<P>, offset: u64, add: u64) -> Self {
        self.add(lmr, offset, Action::Change(ListedChange::Add(add)))
    }

    /// Adds a swap of the word at `offset`: [`Lmr::compare_swap`].
    pub fn compare_swap(self, lmr: &'a Lmr<P>, offset: u64, expected: u64, swap: u64) -> Self {
        self.add(lmr, offset, Action::Change(ListedChange::Swap { expected, swap }))
    }

    fn add(mut self, lmr: &'a Lmr<P>, offset: u64, action: Action<'a>) -> Self {
        self.entries.push(Entry { lmr, offset, action, is_begun: false, outcome: None });
        self
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sets the time of the whole list, in place of [`AttachConfig::timeout`](crate::AttachConfig::timeout).
    pub fn within(self, time: Duration) -> Self {
        Operations { time: Some(time), ..self }
    }

    /// Sets the priority of the whole list, in place of the least one of its regions' handles.
    pub fn with_priority(self, priority: Priority) -> Self {
        Operations { priority: Some(priority), ..self }
    }

    /// Runs the list. Blocks until all operations are complete, or until the deadline. The list runs with the least
    /// priority of its regions' handles, unless it has [its own](Operations::with_priority).
    ///
    /// # Errors
    /// The list is refused as a whole. Nothing of it was executed.
    pub fn run(mut self) -> Result<Outcomes, ListError> {
        check_list_size(self.entries.iter().map(|entry| entry.length() as u64))?;
        let Some(first) = self.entries.first() else { return Ok(Vec::new()) };
        let attachment = Arc::clone(&first.lmr.attachment);
        for (place, entry) in self.entries.iter().enumerate() {
            if !Arc::ptr_eq(&attachment, &entry.lmr.attachment) {
                return Err(ListError::OtherTier { place });
            }
            entry.check().map_err(|error| ListError::Refused { place, source: error.into() })?;
        }
        if let Some(priority) = self.priority {
            attachment.check_priority(priority).map_err(|error| ListError::NotBegun(error.into()))?;
        }
        let until = attachment.begin(self.time).map_err(ListError::NotBegun)?;
        let lengths = self.entries.iter().map(|entry| (entry.is_read(), entry.length()));
        for (number, mut request) in requests(lengths).into_iter().enumerate() {
            loop {
                request.retain(|part| self.entries[part.place].outcome.is_none());
                if request.is_empty() {
                    break;
                }
                match self.ask(&request, until) {
                    Ok(()) => break,
                    Err(failed) if number == 0 => match not_begun(&request, failed) {
                        Ok(error) => return Err(error),
                        Err(failed) => self.fail(&request, Err(failed)),
                    },
                    Err(failed) => self.fail(&request, in_list(&request, failed)),
                }
            }
        }
        // All parts of an operation without an outcome were executed.
        Ok(self.entries.into_iter().map(|entry| entry.outcome.unwrap_or(Ok(Done::Moved))).collect())
    }

    /// Makes a request of these parts, and notes what became of them.
    fn ask(&mut self, request: &[Part], until: Nanos) -> Result<(), Failed> {
        let entries = &mut self.entries;
        let Some(first) = entries.first() else { return Ok(()) };
        let attachment = Arc::clone(&first.lmr.attachment);
        let operations: Vec<_> = request.iter().map(|part| entries[part.place].part(*part)).collect();
        let least = entries.iter().map(|entry| entry.lmr.priority()).min().unwrap_or_default();
        let priority = self.priority.unwrap_or(least);
        let message = ProcessRequest::Run { priority, operations: operations.clone() };
        attachment.call_until(RUN, &message, until, |answer| {
            let list::Outcomes { mut read, outcomes } = list::Outcomes::parse(answer, &operations)?;
            for (Part { place, at, length }, outcome) in request.iter().zip(outcomes) {
                let entry = &mut entries[*place];
                let bytes = match &entry.action {
                    // The answer has the bytes of each read.
                    Action::Read(_) => read.split_off(..*length).unwrap_or_default(),
                    Action::Change(_) => &[],
                };
                match outcome {
                    Err(problem) => {
                        entry.fail(problem.into());
                    }
                    Ok(old) => {
                        entry.is_begun = true;
                        if let Action::Read(into) = &mut entry.action {
                            into[*at..*at + *length].copy_from_slice(bytes);
                        }
                        if let Some(old) = old {
                            entry.outcome = Some(Ok(Done::Old(old)));
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Notes that a request failed: one of its operations was refused, or all of them have an error.
    fn fail(&mut self, request: &[Part], failed: Result<(usize, Problem), OperationError>) {
        match failed {
            Ok((refused, problem)) => {
                let handle = self.entries[refused].lmr.opened.handle;
                // A region that is gone is gone for all of them.
                let of_region = matches!(
                    problem,
                    Problem::Access(
                        AccessError::Gone | AccessError::Moved | AccessError::Revoked | AccessError::NoHandle
                    )
                );
                for Part { place, .. } in request {
                    let entry = &mut self.entries[*place];
                    let same = of_region && entry.lmr.opened.handle == handle;
                    if entry.outcome.is_none() && (*place == refused || same) {
                        entry.fail(problem.clone().into());
                    }
                }
            }
            Err(error) => {
                let (is_deadline, may_have_executed) = (error.is_deadline(), error.may_have_executed());
                let text = error.to_string();
                for Part { place, .. } in request {
                    let entry = &mut self.entries[*place];
                    if entry.outcome.is_none() {
                        entry.fail(match is_deadline {
                            true => OperationError::Deadline { node: None, may_have_executed },
                            false => {
                                let text = text.clone();
                                Box::new(RequestError::Reported { text, may_have_executed }).into()
                            }
                        });
                    }
                }
            }
        }
    }
}

/// Returns the operation of a request that was refused, and why; or the error of the whole request.
fn in_list(request: &[Part], failed: Failed) -> Result<(usize, Problem), OperationError> {
    match failed {
        Failed::Problem(Problem::InList { place, problem }) => match request.get(usize::from(place)) {
            Some(part) => Ok((part.place, *problem)),
            None => Err(Failed::Problem(Problem::Malformed).into()),
        },
        failed => Err(failed.into()),
    }
}

/// Returns the error of a list whose first request failed, if nothing of it was executed.
fn not_begun(request: &[Part], failed: Failed) -> Result<ListError, OperationError> {
    match in_list(request, failed) {
        Ok((place, problem)) => Ok(ListError::Refused { place, source: problem.into() }),
        Err(error) if error.may_have_executed() => Err(error),
        Err(error) => Ok(ListError::NotBegun(error)),
    }
}

/// Cuts operations, each a read or not and a number of bytes, into requests: each with at most [`MAX_MOVED`] bytes to
/// read and as many to write, in the order of the list.
fn requests(operations: impl Iterator<Item = (bool, usize)>) -> Vec<Vec<Part>> {
    let most = MAX_MOVED as usize;
    let (mut requests, mut request) = (Vec::new(), Vec::new());
    // Bytes to write and to read.
    let mut room = [most; 2];
    for (place, (is_read, whole)) in operations.enumerate() {
        let mut at = 0;
        loop {
            let length = (whole - at).min(most);
            if room[usize::from(is_read)] < length || request.len() == MAX_LISTED {
                requests.push(std::mem::take(&mut request));
                room = [most; 2];
            }
            room[usize::from(is_read)] -= length;
            request.push(Part { place, at, length });
            at += length;
            if at == whole {
                break;
            }
        }
    }
    requests.push(request);
    requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The parts are the operations, in order; no request exceeds its bounds.
        #[test]
        fn requests_cover_the_list_exactly(
            operations in prop::collection::vec((any::<bool>(), prop_oneof![0usize..300, 0usize..900_000]), 0..60),
        ) {
            let (mut place, mut at) = (0, 0);
            for request in requests(operations.iter().copied()) {
                prop_assert!(request.len() <= MAX_LISTED);
                let mut moved = [0; 2];
                for part in request {
                    if part.place != place {
                        prop_assert_eq!((part.place, at), (place + 1, operations[place].1));
                        (place, at) = (part.place, 0);
                    }
                    prop_assert_eq!(part.at, at);
                    at += part.length;
                    moved[usize::from(operations[place].0)] += part.length;
                }
                prop_assert!(moved.iter().all(|moved| *moved <= MAX_MOVED as usize));
            }
            if let Some((_, last)) = operations.last() {
                prop_assert_eq!((place, at), (operations.len() - 1, *last));
            }
        }
    }

    #[test]
    fn a_short_list_is_one_request() {
        assert_eq!(requests([(true, 64); 16].into_iter()).len(), 1);
        assert_eq!(requests([(false, 256); 1024].into_iter()).len(), 1);
        assert_eq!(requests([(false, 257); 1024].into_iter()).len(), 2);
        assert_eq!(requests([(false, MAX_MOVED as usize), (true, MAX_MOVED as usize)].into_iter()).len(), 1);
    }
}
