//! The answers to requests of processes.

use super::registry::{Process, Registry};
use crate::buffer::{Lent, Place};
use crate::error::{ListError, OperationError, RequestError};
use crate::item::Transfer;
use crate::list::{Done, Operations, Outcomes};
use crate::lmr::Lmr;
use crate::spec::Spec;
use dunlin_fabric::{Fabric, Nanos};
use dunlin_rpc::{ApplicationCode, Incoming, PoolService, Puller, Reply, Request, Service, Status};
use dunlin_tier::message::Refusal;
use dunlin_tier::process::list::{BufferPart, ListedChange, ListedOperation, encode_outcomes};
use dunlin_tier::process::service::{PING, REGISTER, REGISTER_SERVER, SERVERS, WITHDRAW};
use dunlin_tier::process::{
    COPY, ELSEWHERE, MAX_CHANGED, MAX_HERE, MAX_MOVED, MEMSET, Opened, Problem, ProcessRequest, READ_HERE,
    REFUSED, WRITE_HERE, encode_listing,
};
use dunlin_tier::{Grantee, Kind, Name, Priority, Rights};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The reason why a request has no answer.
pub(super) enum Refused {
    Problem(Problem),
    /// Bytes are on other nodes.
    Elsewhere,
}

impl<T: Into<Problem>> From<T> for Refused {
    fn from(problem: T) -> Refused {
        Refused::Problem(problem.into())
    }
}

impl Refused {
    fn code(&self) -> u16 {
        match self {
            Refused::Problem(_) => REFUSED,
            Refused::Elsewhere => ELSEWHERE,
        }
    }

    fn payload(&self) -> Vec<u8> {
        match self {
            Refused::Problem(problem) => problem.encode(),
            Refused::Elsewhere => Vec::new(),
        }
    }
}

fn application(code: u16) -> Option<ApplicationCode> {
    ApplicationCode::new(code)
}

fn within(length: usize, limit: u32) -> Result<(), Refused> {
    let length = length as u64;
    if length > limit.into() { Err(Problem::TooLong { length, limit }.into()) } else { Ok(()) }
}

impl<F: Fabric, P: Fabric> Registry<F, P> {
    /// Counts a request, and makes the answer to one that is refused.
    pub(super) fn finish(&self, outcome: Result<(), Refused>, reply: &mut Reply<'_>) -> Result<(), Status> {
        let Err(refused) = outcome else {
            self.answered.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        if matches!(refused, Refused::Problem(_)) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        // Bytes of a read that failed must not leave.
        reply.clear();
        reply.write(&refused.payload())?;
        Err(application(refused.code()).map_or(Status::Malformed, Status::Application))
    }

    /// Counts a request that was kept, and answers it.
    pub(super) fn deliver(&self, call: Incoming<P>, answer: Result<Vec<u8>, Refused>) {
        match answer {
            Ok(payload) => {
                self.answered.fetch_add(1, Ordering::Relaxed);
                call.reply(payload);
            }
            Err(refused) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                match application(refused.code()) {
                    Some(code) => call.fail(code, refused.payload()),
                    None => call.refuse(Status::Malformed),
                }
            }
        }
    }

    /// Answers a request of the worker, which waits for nothing.
    fn work(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Refused> {
        if let REGISTER | REGISTER_SERVER | WITHDRAW | PING = request.function {
            let process = self.process(request.session)?;
            return put(reply, &self.registration(&process, request.function, request.payload)?);
        }
        let parsed =
            ProcessRequest::parse(request.function, request.payload).map_err(|_| Problem::Malformed)?;
        if let ProcessRequest::Attach { secret, priority } = parsed {
            let attached = self.attach(request.session, secret, priority)?;
            return put(reply, &attached.encode());
        }
        let process = self.process(request.session)?;
        let bytes = parsed.moves();
        let here = match (request.function, parsed) {
            (READ_HERE, ProcessRequest::Read { priority, handle, offset, length }) => {
                within(length as usize, MAX_HERE)?;
                process.region(handle)?.with_priority(priority)?.read_here(offset, space(reply, length)?)?
            }
            (WRITE_HERE, ProcessRequest::Write { priority, handle, offset, bytes }) => {
                within(bytes.len(), MAX_HERE)?;
                process.region(handle)?.with_priority(priority)?.write_here(offset, bytes)?
            }
            _ => return Err(Problem::Malformed.into()),
        };
        if !here {
            return Err(Refused::Elsewhere);
        }
        process.count(bytes);
        Ok(())
    }

    /// Returns the time that an operation of a process may take: what the process gives it, and no more than the node's
    /// own operations have.
    pub(super) fn time(&self, left: Option<Duration>) -> Duration {
        let most = self.tier.node().config.timeout;
        left.map_or(most, |left| left.min(most))
    }

    /// Answers an operation on bytes, which may wait for other nodes.
    fn operate(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Refused> {
        let process = self.process(request.session)?;
        let _serving = process.serving(self.config.limits.operations)?;
        let parsed =
            ProcessRequest::parse(request.function, request.payload).map_err(|_| Problem::Malformed)?;
        let _in_pool = self.in_pool(parsed.priority())?;
        process.count(parsed.moves());
        let time = self.time(request.time_left());
        let old = match parsed {
            ProcessRequest::Read { priority, handle, offset, length } => {
                within(length as usize, MAX_MOVED)?;
                let region = process.region(handle)?;
                let region = region.within(time).with_priority(priority)?;
                return Ok(region.read(offset, space(reply, length)?)?);
            }
            ProcessRequest::Write { priority, handle, offset, bytes } => {
                within(bytes.len(), MAX_MOVED)?;
                let region = process.region(handle)?;
                return Ok(region.within(time).with_priority(priority)?.write(offset, bytes)?);
            }
            ProcessRequest::ReadInto { priority, handle, offset, length, buffer, at } => {
                within(length as usize, MAX_CHANGED)?;
                let (region, buffer) = (process.region(handle)?, process.region(buffer)?);
                let region = region.within(time).with_priority(priority)?;
                let buffer = Place { region: &buffer, tenant: &process.buffers.tenant, at, length };
                return Ok(region.read_into_place(offset, &buffer)?);
            }
            ProcessRequest::WriteFrom { priority, handle, offset, length, buffer, at } => {
                within(length as usize, MAX_CHANGED)?;
                let (region, buffer) = (process.region(handle)?, process.region(buffer)?);
                let region = region.within(time).with_priority(priority)?;
                let buffer = Place { region: &buffer, tenant: &process.buffers.tenant, at, length };
                return Ok(region.write_from_place(offset, &buffer)?);
            }
            ProcessRequest::WriteNotify { priority, handle, offset, word_offset, value, bytes } => {
                within(bytes.len(), MAX_CHANGED)?;
                let region = process.region(handle)?;
                let region = region.within(time).with_priority(priority)?;
                return Ok(region.write_notify(offset, bytes, word_offset, value)?);
            }
            ProcessRequest::Run { priority, operations } => {
                let list = (&operations[..], priority);
                // Where they are parsed, lists are bounded. One with buffers may have more parts than a list has operations.
                let run = |list: Operations<'_, F>, places: &[usize]| {
                    merged(list.run_bounded(), places, operations.len())
                };
                let (bytes, outcomes) = list_of(&process, list, time, run)?;
                return put(reply, &listed(bytes, outcomes?));
            }
            ProcessRequest::FetchAdd { priority, handle, offset, add } => {
                process.region(handle)?.within(time).with_priority(priority)?.fetch_add(offset, add)?
            }
            ProcessRequest::CompareSwap { priority, handle, offset, expected, swap } => {
                let region = process.region(handle)?;
                region.within(time).with_priority(priority)?.compare_swap(offset, expected, swap)?
            }
            _ => return Err(Problem::Malformed.into()),
        };
        put(reply, &old.to_le_bytes())
    }

    /// Answers a request that waits for other nodes.
    fn attend(
        &self,
        session: u64,
        function: u16,
        payload: &[u8],
        time_left: Option<Duration>,
    ) -> Result<Vec<u8>, Refused> {
        let process = self.process(session)?;
        let time = self.time(time_left);
        let _serving = process.serving(self.config.limits.operations)?;
        if function == SERVERS {
            return Ok(self.servers(&process, payload)?);
        }
        let request = ProcessRequest::parse(function, payload).map_err(|_| Problem::Malformed)?;
        if let MEMSET | COPY = function {
            process.count(request.moves());
        }
        match request {
            ProcessRequest::Set { handle, offset, length, value } => {
                within(length as usize, MAX_CHANGED)?;
                process.region(handle)?.within(time).memset(offset, length.into(), value)?;
            }
            ProcessRequest::Copy { handle, offset, length, to, target } => {
                within(length as usize, MAX_CHANGED)?;
                let to = process.region(to)?;
                let from = process.region(handle)?;
                process.tier.memcpy_within(time, to.at(target), from.at(offset), length.into())?;
            }
            ProcessRequest::Direct { handle } => return Ok(self.direct(&process, handle)?.encode()),
            ProcessRequest::LetGo { number } => process.directs.let_go(self.tier.node(), number)?,
            ProcessRequest::Malloc { length, nodes, name, grants, lease, is_direct } => {
                let spec = spec_of(&nodes, name.as_ref(), &grants, lease);
                let spec = if is_direct { spec.direct() } else { spec };
                process.check_room(self.config.limits.handles)?;
                let region = process.tier.malloc(length, spec)?;
                let opened = self.opened(&process, region);
                return Ok(opened.map_err(|(problem, region)| {
                    // Nobody got to know it.
                    let _ = region.free_shared();
                    problem
                })?);
            }
            ProcessRequest::Buffer { length } => return Ok(self.buffer(&process, length)?.encode()),
            ProcessRequest::Publish { handle, nodes, name, grants, lease } => {
                let spec = spec_of(&nodes, Some(&name), &grants, lease);
                return Ok(vec![u8::from(process.region(handle)?.publish_in_place(&spec)?)]);
            }
            ProcessRequest::Map { name, rights } => {
                process.check_room(self.config.limits.handles)?;
                let region = process.tier.map(name.as_bytes(), rights)?;
                return Ok(self.opened(&process, region).map_err(|(problem, _)| problem)?);
            }
            ProcessRequest::Unmap { handle } => {
                let region =
                    process.close(handle).ok_or(Problem::Access(dunlin_tier::AccessError::NoHandle))?;
                // With operations under way, the last of them unmaps.
                if let Ok(region) = Arc::try_unwrap(region) {
                    region.unmap()?;
                }
            }
            ProcessRequest::Free { handle } => {
                let freed = process.region(handle)?.free_shared();
                if matches!(freed, Ok(()) | Err(RequestError::Refused { source: Refusal::Waits(_), .. })) {
                    drop(process.close(handle));
                }
                freed?;
            }
            ProcessRequest::Move { handle, node } => process.region(handle)?.move_to(&node)?,
            ProcessRequest::Grant { handle, to, rights } => process.region(handle)?.grant_to(to, rights)?,
            ProcessRequest::Revoke { handle, from, rights } => {
                return Ok(vec![process.region(handle)?.revoke_from(from, rights)?.bits()]);
            }
            ProcessRequest::Lease { handle, length } => process.region(handle)?.lease_for(length)?,
            ProcessRequest::Status => return Ok(self.status().encode()),
            ProcessRequest::Operate(request) => return Ok(self.operate_node(&process, request)?),
            ProcessRequest::List { node, from } => {
                let node = if node.is_empty() { self.tier.name() } else { &node };
                return Ok(encode_listing(&process.tier.list(node, from)?));
            }
            _ => return Err(Problem::Malformed.into()),
        }
        Ok(Vec::new())
    }

    fn opened(&self, process: &Process<F, P>, region: Lmr<F>) -> Result<Vec<u8>, (Problem, Arc<Lmr<F>>)> {
        let (length, region_number) = (region.len(), self.region_number(region.id));
        let handle = self.open(process, region)?;
        Ok(Opened { handle, length, region: region_number }.encode())
    }
}

/// Returns the description of a region as a process gave it.
fn spec_of(nodes: &[String], name: Option<&Name>, grants: &[(Grantee, Rights)], lease: Option<u64>) -> Spec {
    let mut spec = Spec::spread(nodes.iter().map(String::as_str));
    if let Some(lease) = lease {
        spec = spec.leased(Duration::from_nanos(lease));
    }
    if let Some(name) = name {
        spec = spec.named(name.as_bytes());
    }
    for (to, rights) in grants {
        spec = match to {
            Grantee::Anyone => spec.grant_anyone(*rights),
            Grantee::Principal(principal) => spec.grant(principal.as_str(), *rights),
        };
    }
    spec
}

/// The regions of an operation of a list.
struct Regions<F: Fabric> {
    region: Arc<Lmr<F>>,
    /// The target of a copy.
    to: Option<Arc<Lmr<F>>>,
    /// The parts of a buffer.
    lent: Option<Lent<F>>,
}

impl<F: Fabric> Regions<F> {
    fn of<P: Fabric>(process: &Process<F, P>, one: &ListedOperation<'_>) -> Result<Self, Problem> {
        let region = process.region(one.handle)?;
        let (mut to, mut lent) = (None, None);
        match one.change {
            ListedChange::Copy { to: target, .. } => to = Some(process.region(target)?),
            ListedChange::ReadInto(part) | ListedChange::WriteFrom(part) => {
                let buffer = process.region(part.buffer)?;
                let BufferPart { length, at, .. } = part;
                let place = Place { region: &buffer, tenant: &process.buffers.tenant, at, length };
                let kind = if one.kind() == Kind::Read { Kind::Write } else { Kind::Read };
                lent = Some(place.lend(kind)?);
            }
            _ => {}
        }
        Ok(Regions { region, to, lent })
    }
}

/// Makes a list of operations, and has `run` run it. Returns the bytes of its reads, and the result of `run`. Operations with
/// buffers are in it once for each part of their buffer's memory: `run` gets the place of the operation for each entry.
pub(super) fn list_of<F: Fabric, P: Fabric, T>(
    process: &Process<F, P>,
    (operations, priority): (&[ListedOperation<'_>], Priority),
    time: Duration,
    run: impl FnOnce(Operations<'_, F>, &[usize]) -> T,
) -> Result<(Vec<u8>, T), Problem> {
    let regions = |(place, one): (usize, &ListedOperation<'_>)| {
        Regions::of(process, one).map_err(|problem| in_list(place, problem))
    };
    let regions = operations.iter().enumerate().map(regions).collect::<Result<Vec<_>, _>>()?;
    // The sum is bounded where lists are parsed.
    let mut bytes = vec![0; operations.iter().map(ListedOperation::read_length).sum()];
    let (mut list, mut rest) = (Operations::new().within(time).with_priority(priority), &mut bytes[..]);
    let mut places = Vec::with_capacity(operations.len());
    for (place, (one, of_one)) in operations.iter().zip(&regions).enumerate() {
        let ListedOperation { offset, change, .. } = one;
        let Regions { region, to, lent } = of_one;
        list = match *change {
            ListedChange::Read(length) => {
                let (into, after) = std::mem::take(&mut rest).split_at_mut(length as usize);
                rest = after;
                list.read(region, *offset, into)
            }
            ListedChange::Write(from) => list.write(region, *offset, from),
            ListedChange::Add(add) => list.fetch_add(region, *offset, add),
            ListedChange::Swap { expected, swap } => list.compare_swap(region, *offset, expected, swap),
            ListedChange::Set { length, value } => list.memset(region, *offset, length.into(), value),
            ListedChange::Copy { length, target, .. } => {
                let to = to.as_ref().unwrap_or(region);
                list.memcpy(to.at(target), region.at(*offset), length.into())
            }
            // No part of the memory, and the region is checked all the same.
            ListedChange::ReadInto(BufferPart { length: 0, .. }) => list.read(region, *offset, &mut []),
            ListedChange::WriteFrom(BufferPart { length: 0, .. }) => list.write(region, *offset, &[]),
            ListedChange::ReadInto(_) | ListedChange::WriteFrom(_) => {
                let transfer =
                    if one.kind() == Kind::Read { Transfer::ReadInto } else { Transfer::WriteFrom };
                lent.iter().flat_map(Lent::parts).fold(list, |list, (at, range)| {
                    list.add(region, offset.saturating_add(at), transfer(range))
                })
            }
        };
        places.resize(list.len(), place);
    }
    let ran = run(list, &places);
    Ok((bytes, ran))
}

/// Returns the outcomes of the operations of a list, each of which has the entries with its place. An operation with an
/// error of a part fails with it.
pub(super) fn merged(
    outcomes: Result<Outcomes, ListError>,
    places: &[usize],
    count: usize,
) -> Result<Outcomes, Problem> {
    let outcomes = outcomes.map_err(|error| match error {
        ListError::Refused { place, source } => {
            ListError::Refused { place: places.get(place).copied().unwrap_or_default(), source }
        }
        error => error,
    });
    let mut merged: Vec<Option<Result<Done, OperationError>>> = (0..count).map(|_| None).collect();
    for (outcome, place) in outcomes.map_err(list_problem)?.into_iter().zip(places) {
        let Some(one) = merged.get_mut(*place) else { continue };
        *one = Some(match (one.take(), outcome) {
            (None, outcome) => outcome,
            (Some(Ok(_)), Err(error)) | (Some(Err(error)), Ok(_)) => Err(error.after_parts()),
            (Some(before), _) => before,
        });
    }
    Ok(merged.into_iter().flatten().collect())
}

fn in_list(place: usize, problem: Problem) -> Problem {
    match u16::try_from(place) {
        Ok(place) => Problem::InList { place, problem: Box::new(problem) },
        Err(_) => problem,
    }
}

/// Returns the problem of a list that is refused as a whole.
pub(super) fn list_problem(error: ListError) -> Problem {
    match error {
        ListError::Refused { place, source } => in_list(place, source.into()),
        ListError::NotBegun(error) => error.into(),
        // Neither can be: lists are checked where they are parsed, and a process has handles of one node.
        ListError::TooMany { .. } | ListError::TooLong { .. } | ListError::OtherTier { .. } => {
            Problem::Malformed
        }
    }
}

/// Returns the answer to a list: the bytes of its reads, and its outcomes.
pub(super) fn listed(bytes: Vec<u8>, outcomes: Outcomes) -> Vec<u8> {
    let outcomes: Vec<Result<_, Problem>> =
        outcomes.into_iter().map(|outcome| outcome.map(Done::old).map_err(Problem::from)).collect();
    encode_outcomes(bytes, outcomes.iter().map(|outcome| outcome.as_ref().map(|old| *old)))
}

/// Makes room for bytes in a reply.
pub(super) fn space<'a>(reply: &'a mut Reply<'_>, length: u32) -> Result<&'a mut [u8], Refused> {
    let limit = reply.limit() as u32;
    let too_long = Problem::TooLong { length: length.into(), limit };
    reply.reserve(length as usize).map_err(|_| too_long.into())
}

pub(super) fn put(reply: &mut Reply<'_>, bytes: &[u8]) -> Result<(), Refused> {
    space(reply, bytes.len() as u32)?.copy_from_slice(bytes);
    Ok(())
}

/// The service of the worker.
pub(super) struct Working<F: Fabric, P: Fabric>(Arc<Registry<F, P>>);

impl<F: Fabric, P: Fabric> Working<F, P> {
    pub(super) fn new(registry: Arc<Registry<F, P>>) -> Self {
        Working(registry)
    }
}

impl<F: Fabric, P: Fabric> Service for Working<F, P> {
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        let outcome = self.0.work(request, reply);
        self.0.finish(outcome, reply)
    }
}

/// The service of the pool.
pub(super) struct Pooled<F: Fabric, P: Fabric>(pub(super) Arc<Registry<F, P>>);

impl<F: Fabric, P: Fabric> PoolService for Pooled<F, P> {
    fn call(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        self.0.counters.pool.fetch_add(1, Ordering::Relaxed);
        let outcome = self.0.operate(request, reply);
        self.0.finish(outcome, reply)
    }
}

/// Answers requests that wait for other nodes, until the server ends.
pub(super) fn attend<F: Fabric, P: Fabric>(registry: &Registry<F, P>, puller: &Puller<P>) {
    while let Some(mut incoming) = puller.receive(Nanos::MAX) {
        incoming.begin();
        let answer = catch_unwind(AssertUnwindSafe(|| {
            registry.attend(incoming.session, incoming.function, &incoming.payload, incoming.time_left())
        }));
        match answer {
            Ok(answer) => registry.deliver(incoming, answer),
            // The caller learns that the handler panicked.
            Err(_) => drop(incoming),
        }
    }
}
