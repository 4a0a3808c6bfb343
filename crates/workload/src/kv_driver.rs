//! Drives a key-value store with a workload: a window of operations in flight, sent one by one or in batches, each
//! timed from its submission to its result. One driver per thread and client.

mod calls;
mod puts;
mod tally;

pub use puts::{PutPipeline, Refused, load_records};
pub use tally::{OperationKind, Tally};

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dunlin_fabric::Fabric;
use dunlin_kv::client::refused;
use dunlin_kv::protocol::{Function, MultiGetRequest, PutRequest, Status};
use dunlin_kv::{KvClient, KvError};
use dunlin_rpc::CallError;

use crate::ycsb::{Operation, OperationStream, Share, Workload};
use calls::CallTable;
use dunlin_floor::TickClock;

/// How a driver keeps a store busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverConfig {
    /// Operations in flight, at least 1. A window under `batch` counts as `batch`.
    pub window: usize,
    /// Operations sent together in one message for each worker; 1 sends each by itself.
    pub batch: usize,
    /// The client sends them together by itself, as its settings say ([`dunlin_rpc::ClientConfig::batching`]).
    pub client_batches: bool,
}

/// When a run ends; whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Limit<'a> {
    /// After so many nanoseconds.
    pub nanoseconds: Option<f64>,
    /// After so many operations have begun.
    pub operations: Option<u64>,
    /// When this turns true, as another thread or a signal may make it.
    pub stop: &'a AtomicBool,
}

/// The first thing that went wrong, and what became of everything that was on its way then.
#[derive(Debug, thiserror::Error)]
#[error("{cause} ({maybe_executed} calls may have been executed, {not_executed} were not)")]
pub struct DriveError {
    /// Why the run ended.
    #[source]
    pub cause: KvError,
    /// Calls without an answer that the server may have executed.
    pub maybe_executed: u64,
    /// Calls that it has not executed.
    pub not_executed: u64,
}

/// An operation on its way.
struct Pending {
    kind: OperationKind,
    start: u64,
    /// Calls whose results are awaited.
    calls: usize,
    /// What a read-modify-write writes once its read is done.
    write: Option<(u64, u64)>,
    /// Number of an insert among this driver's.
    insert: u64,
}

/// A call that waits for room.
struct Waiting {
    operation: u32,
    owner: usize,
    function: Function,
    payload: Vec<u8>,
}

/// Keeps one client busy. Between runs nothing is in flight, so the client may be used otherwise.
pub struct KvDriver<'a, F: Fabric> {
    client: &'a mut KvClient<F>,
    workload: &'a Workload,
    stream: OperationStream,
    config: DriverConfig,
    clock: TickClock,
    operations: Vec<Pending>,
    free: Vec<u32>,
    calls: CallTable,
    waiting: VecDeque<Waiting>,
    /// Inserts that are done but stand behind one that is not: acknowledged in order only.
    inserts_done: VecDeque<bool>,
    inserts_acknowledged: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    payload: Vec<u8>,
    tally: Tally,
    failure: Option<DriveError>,
    /// Since when nothing is in flight though operations have begun.
    idle_since: Option<u64>,
}

impl<'a, F: Fabric> KvDriver<'a, F> {
    /// A driver of `client` that issues this client's share of `workload`.
    #[must_use]
    pub fn new(
        client: &'a mut KvClient<F>,
        workload: &'a Workload,
        share: Share,
        config: DriverConfig,
        clock: TickClock,
    ) -> Self {
        let batch = config.batch.max(1);
        let config = DriverConfig { batch, window: config.window.max(batch), ..config };
        let idle = || Pending { kind: OperationKind::Read, start: 0, calls: 0, write: None, insert: 0 };
        KvDriver {
            client,
            workload,
            stream: OperationStream::new(workload, share),
            clock,
            operations: std::iter::repeat_with(idle).take(config.window).collect(),
            free: (0..config.window as u32).rev().collect(),
            calls: CallTable::default(),
            waiting: VecDeque::new(),
            inserts_done: VecDeque::new(),
            inserts_acknowledged: 0,
            key: Vec::new(),
            value: Vec::new(),
            payload: Vec::new(),
            tally: Tally::default(),
            failure: None,
            idle_since: None,
            config,
        }
    }

    /// What was measured so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Forgets what was measured so far: for warming up.
    pub fn reset_tally(&mut self) {
        self.tally = Tally::default();
    }

    /// Runs until a limit is reached and everything in flight has come back; adds to the tally. `progress` counts
    /// operations as they are done, for whoever shows it. Blocks.
    ///
    /// # Errors
    /// The first call that fails ends the run, except that a key may be absent. The tally holds what was done before.
    pub fn run(&mut self, limit: &Limit<'_>, progress: &AtomicU64) -> Result<(), DriveError> {
        let begin = self.clock.ticks();
        let end = limit.nanoseconds.map(|nanoseconds| begin + self.clock.from_ns(nanoseconds));
        let mut left = limit.operations.unwrap_or(u64::MAX);
        let mut now = begin;
        loop {
            let stopped = self.failure.is_some()
                || left == 0
                || end.is_some_and(|end| now >= end)
                || limit.stop.load(Ordering::Relaxed);
            if !stopped {
                self.fill(now, &mut left);
            } else if self.free.len() == self.config.window {
                break;
            } else {
                self.send_waiting();
                self.flush();
            }
            let Some(first) = self.client.rpc().wait_any() else {
                now = self.clock.ticks();
                self.found_nothing(now);
                continue;
            };
            self.idle_since = None;
            now = self.clock.ticks();
            let mut done = u64::from(self.complete(first, now));
            while let Some(next) = self.client.rpc().next_done() {
                done += u64::from(self.complete(next, now));
            }
            if done > 0 {
                progress.fetch_add(done, Ordering::Relaxed);
            }
        }
        self.tally.elapsed_ns += self.clock.to_ns(self.clock.ticks().wrapping_sub(begin));
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Begins as many operations as the window allows, a whole batch at a time.
    fn fill(&mut self, now: u64, left: &mut u64) {
        self.send_waiting();
        while self.free.len() >= self.config.batch && self.waiting.is_empty() {
            let count = (self.config.batch as u64).min(*left);
            if count == 0 || self.failure.is_some() {
                break;
            }
            for _ in 0..count {
                self.begin(now);
            }
            *left -= count;
            if self.config.batch > 1 {
                self.flush();
            }
        }
        if self.config.batch > 1 {
            // A second half of a read-modify-write may wait in an open batch.
            self.flush();
        }
    }

    #[inline]
    fn begin(&mut self, now: u64) {
        let Some(index) = self.free.pop() else { return };
        let operation = self.stream.next_operation();
        let pending = &mut self.operations[index as usize];
        *pending = Pending { kind: OperationKind::Read, start: now, calls: 0, write: None, insert: 0 };
        match operation {
            Operation::Read { record } => self.get(index, record),
            Operation::Update { record, version } => {
                pending.kind = OperationKind::Update;
                self.put(index, record, version);
            }
            Operation::Insert { record } => {
                pending.kind = OperationKind::Insert;
                pending.insert = self.inserts_acknowledged + self.inserts_done.len() as u64;
                self.inserts_done.push_back(false);
                self.put(index, record, 0);
            }
            Operation::Scan { first, count } => {
                pending.kind = OperationKind::Scan;
                self.scan(index, first, count);
            }
            Operation::ReadModifyWrite { record, version } => {
                pending.kind = OperationKind::ReadModifyWrite;
                pending.write = Some((record, version));
                self.get(index, record);
            }
        }
    }

    #[inline]
    fn get(&mut self, operation: u32, record: u64) {
        self.workload.write_key(record, &mut self.key);
        let owner = self.client.owner(&self.key);
        let payload = std::mem::take(&mut self.key);
        self.issue(operation, owner, Function::Get, &payload);
        self.key = payload;
    }

    fn put(&mut self, operation: u32, record: u64, version: u64) {
        self.workload.write_key(record, &mut self.key);
        self.workload.write_value(record, version, &mut self.value);
        let owner = self.client.owner(&self.key);
        let request = PutRequest { key: &self.key, value: &self.value };
        self.payload.resize(request.encoded_length(), 0);
        if let Err(error) = request.encode(&mut self.payload) {
            self.release(operation);
            return self.fail(error.into());
        }
        let payload = std::mem::take(&mut self.payload);
        self.issue(operation, owner, Function::Put, &payload);
        self.payload = payload;
    }

    /// One MULTIGET for each worker that owns some of the records.
    fn scan(&mut self, operation: u32, first: u64, count: u64) {
        let mut by_owner: Vec<Vec<Vec<u8>>> = vec![Vec::new(); self.client.rpc().workers().max(1)];
        for record in first..first + count {
            self.workload.write_key(record, &mut self.key);
            by_owner[self.client.owner(&self.key)].push(self.key.clone());
        }
        let owners = by_owner.iter().filter(|keys| !keys.is_empty()).count();
        let mut encoded = Vec::with_capacity(owners);
        for (owner, keys) in by_owner.iter().enumerate().filter(|(_, keys)| !keys.is_empty()) {
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let mut payload = vec![0; MultiGetRequest::encoded_length(&keys)];
            if let Err(error) = MultiGetRequest::encode(&keys, &mut payload) {
                self.release(operation);
                return self.fail(error.into());
            }
            encoded.push((owner, payload));
        }
        for (owner, payload) in encoded {
            self.issue(operation, owner, Function::MultiGet, &payload);
        }
    }

    /// Sends a call, or lets it wait for room.
    #[inline]
    fn issue(&mut self, operation: u32, owner: usize, function: Function, payload: &[u8]) {
        self.operations[operation as usize].calls += 1;
        if !self.waiting.is_empty() || !self.send(operation, owner, function, payload) {
            self.waiting.push_back(Waiting { operation, owner, function, payload: payload.to_vec() });
        }
    }

    /// Whether the call went, or failed for good; `false` asks to try again when there is room.
    #[inline]
    fn send(&mut self, operation: u32, owner: usize, function: Function, payload: &[u8]) -> bool {
        let client = self.client.rpc();
        let sent = if self.config.batch > 1 || self.config.client_batches {
            client.push_on(owner, function.id(), payload)
        } else {
            client.submit_on(owner, function.id(), payload)
        };
        match sent {
            Ok(call) => self.calls.set(call, u64::from(operation)),
            Err(error) if calls::wants_room(&error, client.in_flight()) => return false,
            Err(error) => {
                self.lose(&error);
                self.fail(error.into());
                self.call_is_over(operation);
            }
        }
        true
    }

    fn send_waiting(&mut self) {
        while let Some(call) = self.waiting.pop_front() {
            if self.failure.is_some() {
                // Never sent.
                self.lose(&CallError::NotExecuted(dunlin_rpc::Cause::Cancelled));
                self.call_is_over(call.operation);
            } else if !self.send(call.operation, call.owner, call.function, &call.payload) {
                self.waiting.push_front(call);
                return;
            }
        }
    }

    fn flush(&mut self) {
        // A full ring is the only error, and it empties as results come back.
        let _ = self.client.rpc().flush();
    }

    /// Nothing is in flight: what waits for room goes out now, or can never go.
    #[cold]
    fn found_nothing(&mut self, now: u64) {
        // Room in the rings is found by progress alone.
        self.client.rpc().progress();
        self.send_waiting();
        self.flush();
        if self.client.rpc().in_flight() > 0 || self.free.len() == self.config.window {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert(now);
        if self.clock.to_ns(now.saturating_sub(since)) > calls::PATIENCE_NS {
            self.idle_since = None;
            let lost = CallError::NotExecuted(dunlin_rpc::Cause::WindowFull);
            for operation in self.calls.take_all() {
                self.lose_with(&lost);
                self.call_is_over(operation as u32);
            }
            // Drops what waits, now that the run has failed.
            self.lose(&lost);
            self.send_waiting();
        }
    }

    fn lose_with(&mut self, error: &CallError) {
        if self.failure.is_none() {
            self.fail(error.clone().into());
        }
        self.lose(error);
    }

    /// Takes a call's outcome; says whether its operation is done.
    #[inline]
    fn complete(&mut self, call: dunlin_rpc::CallId, now: u64) -> bool {
        let Some(operation) = self.calls.take(call) else {
            self.client.rpc().forget(call);
            return false;
        };
        let operation = operation as u32;
        let outcome = self.client.rpc().outcome(call).map(|_| ());
        self.client.rpc().forget(call);
        match outcome {
            Ok(()) => {}
            Err(error) if refused(&error) == Some(Status::NotFound) => self.tally.not_found += 1,
            Err(error) => {
                self.lose_with(&error);
                self.call_is_over(operation);
                return false;
            }
        }
        if self.failure.is_some() {
            self.call_is_over(operation);
            return false;
        }
        let pending = &mut self.operations[operation as usize];
        pending.calls -= 1;
        if pending.calls > 0 {
            return false;
        }
        if let Some((record, version)) = pending.write.take() {
            self.put(operation, record, version);
            return false;
        }
        let pending = &self.operations[operation as usize];
        let latency = self.clock.to_ns(now.saturating_sub(pending.start));
        self.tally.record(pending.kind, latency);
        if pending.kind == OperationKind::Insert {
            let number = pending.insert;
            self.acknowledge(number);
        }
        self.release(operation);
        true
    }

    fn acknowledge(&mut self, number: u64) {
        if let Some(done) = self.inserts_done.get_mut((number - self.inserts_acknowledged) as usize) {
            *done = true;
        }
        while self.inserts_done.front() == Some(&true) {
            self.inserts_done.pop_front();
            self.inserts_acknowledged += 1;
            self.stream.acknowledge_inserts(1);
        }
    }

    /// One call of an operation that will not be counted is over.
    fn call_is_over(&mut self, operation: u32) {
        let pending = &mut self.operations[operation as usize];
        pending.calls = pending.calls.saturating_sub(1);
        if pending.calls == 0 {
            self.release(operation);
        }
    }

    #[inline]
    fn release(&mut self, operation: u32) {
        self.free.push(operation);
    }

    fn lose(&mut self, error: &CallError) {
        let failure = self.failure.get_or_insert_with(|| DriveError {
            cause: error.clone().into(),
            maybe_executed: 0,
            not_executed: 0,
        });
        match error {
            CallError::NotExecuted(_) => failure.not_executed += 1,
            CallError::MaybeExecuted(_) => failure.maybe_executed += 1,
            // The service answered: nothing is unknown about it.
            CallError::Application { .. } => {}
        }
    }

    fn fail(&mut self, cause: KvError) {
        self.failure.get_or_insert(DriveError { cause, maybe_executed: 0, not_executed: 0 });
    }
}

impl<F: Fabric> std::fmt::Debug for KvDriver<'_, F> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("KvDriver")
            .field("config", &self.config)
            .field("tally", &self.tally)
            .finish_non_exhaustive()
    }
}
