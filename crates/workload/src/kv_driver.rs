//! Drives a key-value store with a workload. A window of operations is in flight, sent one by one or in
//! batches, and each is timed from submission to result. Use one driver per thread and client.

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

/// Concurrency and batching of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverConfig {
    /// Operations in flight, at least 1. A window under `batch` counts as `batch`.
    pub window: usize,
    /// Operations sent together in one message per worker; 1 sends each separately.
    pub batch: usize,
    /// Whether the client batches operations itself, as its settings specify
    /// ([`dunlin_rpc::ClientConfig::batching`]).
    pub client_batches: bool,
}

/// The limits of a run; the first that is reached ends it.
#[derive(Clone, Copy, Debug)]
pub struct Limit<'a> {
    /// Maximum duration, in nanoseconds.
    pub nanoseconds: Option<f64>,
    /// Maximum number of operations begun.
    pub operations: Option<u64>,
    /// The run ends when this is true. Another thread or a signal handler may set it.
    pub stop: &'a AtomicBool,
}

/// The first error of a run, and the fate of the calls that were in flight.
#[derive(Debug, thiserror::Error)]
#[error("an operation failed ({maybe_executed} calls may have been executed, {not_executed} were not)")]
pub struct DriveError {
    /// The error that ended the run.
    #[source]
    pub cause: KvError,
    /// Calls without a response that the server may have executed.
    pub maybe_executed: u64,
    /// Calls that the server has not executed.
    pub not_executed: u64,
}

/// An operation in flight.
struct Pending {
    kind: OperationKind,
    start: u64,
    /// Number of calls without a result so far.
    calls: usize,
    /// Record and version that a read-modify-write writes after its read.
    write: Option<(u64, u64)>,
    /// Sequence number of an insert in this driver.
    insert: u64,
}

/// A call that waits for space in the window.
struct Waiting {
    operation: u32,
    owner: usize,
    function: Function,
    payload: Vec<u8>,
}

/// Keeps one client busy. Between runs nothing is in flight, so the client can be used for other calls.
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
    /// Completion of inserts not yet acknowledged to the stream, which requires the order of issue.
    inserts_done: VecDeque<bool>,
    inserts_acknowledged: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    payload: Vec<u8>,
    tally: Tally,
    failure: Option<DriveError>,
    /// Time since which nothing is in flight although operations are pending.
    idle_since: Option<u64>,
}

impl<'a, F: Fabric> KvDriver<'a, F> {
    /// Creates a driver of `client` that issues this client's share of `workload`.
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

    /// Returns the measurements so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Discards the measurements so far. Use it after a warm-up.
    pub fn reset_tally(&mut self) {
        self.tally = Tally::default();
    }

    /// Runs until a limit is reached and all operations in flight have completed, and adds to the tally.
    /// `progress` counts completed operations, for display by another thread. Blocks.
    ///
    /// # Errors
    /// The first failed call ends the run; a missing key is not a failure. The tally keeps the operations
    /// completed before.
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

    /// Begins as many operations as the window allows, in whole batches.
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
            // The open batch may hold the write of a read-modify-write.
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

    /// Issues one MULTIGET per worker that owns some of the records.
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

    /// Sends a call, or queues it until there is space.
    #[inline]
    fn issue(&mut self, operation: u32, owner: usize, function: Function, payload: &[u8]) {
        self.operations[operation as usize].calls += 1;
        if !self.waiting.is_empty() || !self.send(operation, owner, function, payload) {
            self.waiting.push_back(Waiting { operation, owner, function, payload: payload.to_vec() });
        }
    }

    /// Sends a call. Returns `true` if it was sent or failed for good, and `false` if it must be retried
    /// later.
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
                // The call was never sent.
                self.lose(&CallError::NotExecuted(dunlin_rpc::Cause::Cancelled));
                self.call_is_over(call.operation);
            } else if !self.send(call.operation, call.owner, call.function, &call.payload) {
                self.waiting.push_front(call);
                return;
            }
        }
    }

    fn flush(&mut self) {
        // The only possible error is a full ring, which empties as results arrive.
        let _ = self.client.rpc().flush();
    }

    /// Handles the case that nothing is in flight: sends the queued calls now, or fails the run after a
    /// timeout.
    #[cold]
    fn found_nothing(&mut self, now: u64) {
        // Only `progress` frees space in the rings.
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
            // The run has failed, so this drops the queued calls.
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

    /// Processes the outcome of a call. Returns whether its operation is complete.
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

    /// Ends one call of an operation that is not counted.
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
            // The server executed the call, so its fate is known.
            CallError::Executed(_) | CallError::Application { .. } => {}
            _ => failure.maybe_executed += 1,
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
