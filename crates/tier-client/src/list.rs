//! Lists of operations of a process, cut into requests.

use crate::attachment::Failed;
use crate::buffer::{Buffer, goes_on};
use crate::lmr::Lmr;
use dunlin_fabric::{Fabric, Nanos};
use dunlin_fabric_shm::ShmFabric;
use dunlin_tier::process::list::{BufferPart, ListedChange, ListedOperation, MAX_LISTED};
use dunlin_tier::process::{MAX_CHANGED, MAX_MOVED, Problem, ProcessRequest, RUN, list};
use dunlin_tier::{AccessError, Priority, Rights};
use dunlin_tier_node::{Done, ListError, OperationError, Outcomes, Position, RequestError, check_list_size};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The change or the bytes of an operation.
#[derive(Debug)]
enum Action<'a, P: Fabric> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    /// A change of a word.
    Change(ListedChange<'a>),
    Set {
        length: u64,
        value: u8,
    },
    Copy {
        length: u64,
        to: Position<'a, Lmr<P>>,
    },
    InPlace {
        is_write: bool,
        /// The place of the buffer among those of the list.
        buffer: usize,
        start: usize,
        length: usize,
    },
}

/// The bytes of a request that count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// Bytes in the answer, and words.
    Read,
    /// Bytes in the request.
    Written,
    /// Bytes that the node moves without the process.
    Changed,
}

impl Room {
    const ALL: [Room; 3] = [Room::Read, Room::Written, Room::Changed];

    fn most(self) -> usize {
        match self {
            Room::Read | Room::Written => MAX_MOVED as usize,
            Room::Changed => MAX_CHANGED as usize,
        }
    }
}

/// An operation as requests have it.
#[derive(Clone, Copy, Debug)]
struct Whole {
    room: Room,
    length: usize,
    /// Its parts run from the last one to the first.
    backwards: bool,
}

/// An operation of a list.
#[derive(Debug)]
struct Entry<'a, P: Fabric> {
    lmr: &'a Lmr<P>,
    offset: u64,
    action: Action<'a, P>,
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
    fn length(&self) -> u64 {
        match &self.action {
            Action::Read(into) => into.len() as u64,
            Action::Write(from) => from.len() as u64,
            Action::Change(_) => 8,
            Action::Set { length, .. } | Action::Copy { length, .. } => *length,
            Action::InPlace { length, .. } => *length as u64,
        }
    }

    /// Returns the operation as requests have it. Its length is bounded already.
    fn whole(&self) -> Whole {
        let room = match &self.action {
            Action::Read(_) => Room::Read,
            Action::Write(_) | Action::Change(_) => Room::Written,
            Action::Set { .. } | Action::Copy { .. } | Action::InPlace { .. } => Room::Changed,
        };
        let backwards = match &self.action {
            Action::Copy { to, .. } => self.lmr.overlaps_behind(self.offset, *to),
            _ => false,
        };
        Whole { room, length: self.length() as usize, backwards }
    }

    fn check(&self) -> Result<(), AccessError> {
        let needs = match self.action {
            Action::Read(_) | Action::Copy { .. } | Action::InPlace { is_write: false, .. } => Rights::READ,
            _ => Rights::WRITE,
        };
        self.lmr.check(needs, self.offset, self.length())?;
        match &self.action {
            Action::Copy { length, to } => to.lmr.check(Rights::WRITE, to.offset, *length),
            Action::Change(_) if !self.offset.is_multiple_of(8) => Err(AccessError::Misaligned(self.offset)),
            _ => Ok(()),
        }
    }

    fn fail(&mut self, error: OperationError) {
        let error = if self.is_begun { error.after_parts() } else { error };
        self.outcome = Some(Err(error));
    }
}

impl<'a, P: Fabric> Entry<'a, P> {
    /// Returns a part as it travels. The bytes to write are those of the caller.
    fn part(&self, part: Part, buffers: &[&'a mut Buffer]) -> ListedOperation<'a> {
        let Part { at, length, .. } = part;
        let bytes = length as u32;
        let change = match &self.action {
            Action::Read(_) => ListedChange::Read(bytes),
            Action::Write(from) => ListedChange::Write(&from[at..at + length]),
            Action::Change(change) => *change,
            Action::Set { value, .. } => ListedChange::Set { length: bytes, value: *value },
            Action::Copy { to, .. } => {
                let target = to.offset + at as u64;
                ListedChange::Copy { length: bytes, to: to.lmr.opened.handle, target }
            }
            Action::InPlace { is_write, buffer, start, .. } => {
                // No handle is 0: a buffer without memory is refused by the node.
                let buffer = buffers.get(*buffer).and_then(|buffer| buffer.handle()).unwrap_or_default();
                let part = BufferPart { length: bytes, buffer, at: (start + at) as u64 };
                if *is_write { ListedChange::WriteFrom(part) } else { ListedChange::ReadInto(part) }
            }
        };
        ListedOperation { handle: self.lmr.opened.handle, offset: self.offset + at as u64, change }
    }
}

/// A list of operations on regions of one attachment, at most 1024 that move, set and copy 64 MiB.
///
/// [`run`](Operations::run) checks the rights and bounds of all operations before any is executed. The operations have
/// no order among each other, and nothing is atomic but each atomic: a read may see a write of the same list, or not. A
/// list whose reads and whose writes have 256 KiB each at most, and whose other operations have 4 MiB, is one request to the
/// node; a longer one is several, one after the other. In each request, `memset` and `memcpy` follow when the others are
/// complete, one after the other, in the order of the list.
#[derive(Debug)]
#[must_use = "a list does nothing until Operations::run"]
pub struct Operations<'a, P: Fabric = ShmFabric> {
    entries: Vec<Entry<'a, P>>,
    buffers: Vec<&'a mut Buffer>,
    /// The first operation that cannot be one, and why.
    wrong: Option<(usize, OperationError)>,
    time: Option<Duration>,
    /// `None` for the least one of the handles.
    priority: Option<Priority>,
}

impl<P: Fabric> Default for Operations<'_, P> {
    fn default() -> Self {
        Operations { entries: Vec::new(), buffers: Vec::new(), wrong: None, time: None, priority: None }
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
        self.add(lmr, offset, Action::Write(from))
    }

    /// Adds an addition to the word at `offset`: [`Lmr::fetch_add`].
    pub fn fetch_add(self, lmr: &'a Lmr<P>, offset: u64, add: u64) -> Self {
        self.add(lmr, offset, Action::Change(ListedChange::Add(add)))
    }

    /// Adds a swap of the word at `offset`: [`Lmr::compare_swap`].
    pub fn compare_swap(self, lmr: &'a Lmr<P>, offset: u64, expected: u64, swap: u64) -> Self {
        self.add(lmr, offset, Action::Change(ListedChange::Swap { expected, swap }))
    }

    /// Adds a setting of `length` bytes at `offset`: [`Lmr::memset`].
    pub fn memset(self, lmr: &'a Lmr<P>, offset: u64, length: u64, value: u8) -> Self {
        self.add(lmr, offset, Action::Set { length, value })
    }

    /// Adds a copy of `length` bytes: [`Tier::memcpy`](crate::Tier::memcpy).
    pub fn memcpy(self, to: Position<'a, Lmr<P>>, from: Position<'a, Lmr<P>>, length: u64) -> Self {
        self.add(from.lmr, from.offset, Action::Copy { length, to })
    }

    /// Adds an operation on a range (start and length) of the buffer that is [lent](Operations::lend) next.
    pub(crate) fn add_in_place(
        self,
        lmr: &'a Lmr<P>,
        offset: u64,
        (start, length): (usize, usize),
        is_write: bool,
    ) -> Self {
        let buffer = self.buffers.len();
        self.add(lmr, offset, Action::InPlace { is_write, buffer, start, length })
    }

    /// Has the list use a buffer.
    pub(crate) fn lend(mut self, buffer: &'a mut Buffer) -> Self {
        self.buffers.push(buffer);
        self
    }

    /// Refuses the list, for an error of the operation that would be the next one.
    pub(crate) fn refuse(mut self, error: OperationError) -> Self {
        self.wrong.get_or_insert((self.entries.len(), error));
        self
    }

    fn add(mut self, lmr: &'a Lmr<P>, offset: u64, action: Action<'a, P>) -> Self {
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
        check_list_size(self.entries.iter().map(Entry::length))?;
        if let Some((place, source)) = self.wrong.take() {
            return Err(ListError::Refused { place, source });
        }
        let Some(first) = self.entries.first() else { return Ok(Vec::new()) };
        let attachment = Arc::clone(&first.lmr.attachment);
        for (place, entry) in self.entries.iter().enumerate() {
            let is_own = |lmr: &Lmr<P>| Arc::ptr_eq(&attachment, &lmr.attachment);
            let to_other = matches!(&entry.action, Action::Copy { to, .. } if !is_own(to.lmr));
            if !is_own(entry.lmr) || to_other {
                return Err(ListError::OtherTier { place });
            }
            entry.check().map_err(|error| ListError::Refused { place, source: error.into() })?;
        }
        if let Some(priority) = self.priority {
            attachment.check_priority(priority).map_err(|error| ListError::NotBegun(error.into()))?;
        }
        let until = attachment.begin(self.time).map_err(ListError::NotBegun)?;
        for (number, mut request) in requests(self.entries.iter().map(Entry::whole)).into_iter().enumerate() {
            loop {
                request.retain(|part| self.entries[part.place].outcome.is_none());
                if request.is_empty() {
                    break;
                }
                match self.ask(&request, until) {
                    Ok(()) => break,
                    Err(failed) if goes_on(&failed) => {
                        self.renew(&request);
                        self.fail(&request, in_list(&request, failed));
                    }
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

    /// Gives the buffers of a request other memory: the node may still work on the request.
    fn renew(&mut self, request: &[Part]) {
        let buffer_of = |part: &Part| match self.entries[part.place].action {
            Action::InPlace { buffer, .. } => Some(buffer),
            _ => None,
        };
        let used: BTreeSet<usize> = request.iter().filter_map(buffer_of).collect();
        for buffer in used {
            self.buffers[buffer].renew();
        }
    }

    /// Makes a request of these parts, and notes what became of them.
    fn ask(&mut self, request: &[Part], until: Nanos) -> Result<(), Failed> {
        let (entries, buffers) = (&mut self.entries, &self.buffers);
        let Some(first) = entries.first() else { return Ok(()) };
        let attachment = Arc::clone(&first.lmr.attachment);
        let operations: Vec<_> =
            request.iter().map(|part| entries[part.place].part(*part, buffers)).collect();
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
                    _ => &[],
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

/// Cuts operations into requests, each with at most as many bytes of each kind as it has room for, in the order of the list.
fn requests(operations: impl Iterator<Item = Whole>) -> Vec<Vec<Part>> {
    let (mut requests, mut request) = (Vec::new(), Vec::new());
    let mut left = Room::ALL.map(Room::most);
    for (place, Whole { room, length: whole, backwards }) in operations.enumerate() {
        let most = room.most();
        let count = whole.div_ceil(most).max(1);
        for number in 0..count {
            let at = most * if backwards { count - 1 - number } else { number };
            let length = (whole - at).min(most);
            if left[room as usize] < length || request.len() == MAX_LISTED {
                requests.push(std::mem::take(&mut request));
                left = Room::ALL.map(Room::most);
            }
            left[room as usize] -= length;
            request.push(Part { place, at, length });
        }
    }
    requests.push(request);
    requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole() -> impl Strategy<Value = Whole> {
        let lengths = prop_oneof![0usize..300, 0usize..900_000, 0usize..10_000_000];
        let room = prop::sample::select(Room::ALL.to_vec());
        (room, lengths, any::<bool>()).prop_map(|(room, length, backwards)| Whole { room, length, backwards })
    }

    proptest! {
        /// The parts are the operations, in order; no request exceeds its bounds.
        #[test]
        fn requests_cover_the_list_exactly(
            operations in prop::collection::vec(whole(), 0..60),
        ) {
            let mut found: Vec<Vec<Part>> = vec![Vec::new(); operations.len()];
            let mut place = 0;
            for request in requests(operations.iter().copied()) {
                prop_assert!(request.len() <= MAX_LISTED);
                let mut moved = [0; 3];
                for part in request {
                    prop_assert!(part.place == place || part.place == place + 1);
                    place = part.place;
                    moved[operations[place].room as usize] += part.length;
                    found[place].push(part);
                }
                prop_assert!(Room::ALL.iter().all(|room| moved[*room as usize] <= room.most()));
            }
            for (Whole { length, backwards, .. }, mut parts) in operations.into_iter().zip(found) {
                if backwards {
                    parts.reverse();
                }
                prop_assert!(!parts.is_empty(), "an operation of no bytes is checked by the node, too");
                let end = parts.iter().try_fold(0, |at, part| (part.at == at).then_some(at + part.length));
                prop_assert_eq!(end, Some(length));
            }
        }
    }

    #[test]
    fn a_short_list_is_one_request() {
        let of = |room, length| Whole { room, length, backwards: false };
        let count = |operations: &[Whole]| requests(operations.iter().copied()).len();
        assert_eq!(count(&[of(Room::Read, 64); 16]), 1);
        assert_eq!(count(&[of(Room::Written, 256); 1024]), 1);
        assert_eq!(count(&[of(Room::Written, 257); 1024]), 2);
        assert_eq!(count(&Room::ALL.map(|room| of(room, room.most()))), 1);
        assert_eq!(count(&[of(Room::Changed, 4096); 1024]), 1);
        assert_eq!(count(&[of(Room::Changed, 4097); 1024]), 2);
    }
}
