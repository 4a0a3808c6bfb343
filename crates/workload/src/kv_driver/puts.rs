//! Stores many records with a window of PUTs in flight.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use dunlin_fabric::Fabric;
use dunlin_kv::client::refused;
use dunlin_kv::protocol::Status;
use dunlin_kv::{KvClient, KvError};
use dunlin_rpc::{CallError, CallId, Cause};

use super::DriveError;
use super::calls::{CallTable, PATIENCE_NS, wants_room};
use crate::ycsb::Workload;

/// A record that the store refused. Other records are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The tag passed with the record.
    pub tag: u64,
    /// The store's status.
    pub status: Status,
}

/// Stores records in order without waiting for each.
#[derive(Debug)]
pub struct PutPipeline<'a, F: Fabric> {
    client: &'a mut KvClient<F>,
    calls: CallTable,
    batch: usize,
    window: usize,
    in_flight: usize,
    in_batch: usize,
    stored: u64,
    refused: Vec<Refused>,
    failure: Option<DriveError>,
    /// Time since which nothing is in flight although PUTs are pending.
    idle_since: Option<Instant>,
}

impl<'a, F: Fabric> PutPipeline<'a, F> {
    /// Creates a pipeline with at most `window` PUTs in flight, sent in batches of `batch`.
    pub fn new(client: &'a mut KvClient<F>, window: usize, batch: usize) -> Self {
        let batch = batch.max(1);
        PutPipeline {
            client,
            calls: CallTable::default(),
            batch,
            window: window.max(batch),
            in_flight: 0,
            in_batch: 0,
            stored: 0,
            refused: Vec::new(),
            failure: None,
            idle_since: None,
        }
    }

    /// Returns the number of records known to be stored.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Returns the refusals since the last call.
    pub fn take_refused(&mut self) -> Vec<Refused> {
        std::mem::take(&mut self.refused)
    }

    /// Stores a record. `tag` identifies it in a refusal. Blocks while the window is full.
    ///
    /// # Errors
    /// If this or an earlier call failed. Nothing is in flight then.
    pub fn put(&mut self, key: &[u8], value: &[u8], tag: u64) -> Result<(), DriveError> {
        while self.in_flight >= self.window {
            self.collect()?;
        }
        loop {
            match self.client.push_put(key, value) {
                Ok(call) => {
                    self.calls.set(call, tag);
                    self.in_flight += 1;
                    self.in_batch += 1;
                    if self.in_batch >= self.batch {
                        self.flush();
                    }
                    return Ok(());
                }
                Err(KvError::Call(error)) if wants_room(&error, self.client.rpc().in_flight()) => {
                    self.collect()?;
                }
                Err(KvError::Call(error)) => {
                    self.lose(&error);
                    return self.finish();
                }
                Err(cause) => {
                    self.failure.get_or_insert(DriveError { cause, maybe_executed: 0, not_executed: 0 });
                    return self.finish();
                }
            }
        }
    }

    /// Waits until all records are stored or refused. Blocks.
    ///
    /// # Errors
    /// As [`put`](PutPipeline::put).
    pub fn finish(&mut self) -> Result<(), DriveError> {
        while self.in_flight > 0 {
            self.collect_some();
        }
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn flush(&mut self) {
        self.in_batch = 0;
        // The only possible error is a full ring, which empties as results arrive.
        let _ = self.client.rpc().flush();
    }

    fn collect(&mut self) -> Result<(), DriveError> {
        self.collect_some();
        if self.failure.is_some() { self.finish() } else { Ok(()) }
    }

    /// Waits for at least one result, and processes all available ones.
    fn collect_some(&mut self) {
        self.flush();
        let Some(first) = self.client.rpc().wait_any() else {
            self.found_nothing();
            return;
        };
        self.idle_since = None;
        self.complete(first);
        while let Some(next) = self.client.rpc().next_done() {
            self.complete(next);
        }
    }

    /// Handles the case that nothing is in flight: sends the open batch now, or fails after a timeout.
    #[cold]
    fn found_nothing(&mut self) {
        // Only `progress` frees space in the rings.
        self.client.rpc().progress();
        self.flush();
        if self.client.rpc().in_flight() > 0 {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if since.elapsed().as_nanos() as f64 > PATIENCE_NS {
            self.idle_since = None;
            self.lose(&CallError::NotExecuted(Cause::WindowFull));
            for _ in self.calls.take_all() {
                self.lose(&CallError::NotExecuted(Cause::WindowFull));
            }
            self.in_flight = 0;
        }
    }

    fn complete(&mut self, call: CallId) {
        let tag = self.calls.take(call);
        let outcome = self.client.rpc().outcome(call).map(|_| ());
        self.client.rpc().forget(call);
        let Some(tag) = tag else { return };
        self.in_flight -= 1;
        match outcome {
            Ok(()) => self.stored += 1,
            Err(error) => match refused(&error) {
                Some(status) => self.refused.push(Refused { tag, status }),
                None => self.lose(&error),
            },
        }
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
}

/// Stores records of a workload in their first version. `progress` counts them; setting `stop` ends the
/// load early. Blocks.
///
/// # Errors
/// A failed call, or a record that the store refused.
pub fn load_records<F: Fabric>(
    client: &mut KvClient<F>,
    workload: &Workload,
    records: Range<u64>,
    stop: &AtomicBool,
    progress: &AtomicU64,
) -> Result<u64, DriveError> {
    // A few large records keep a worker busy, and more would exhaust the registered memory.
    let window = ((4 << 20) / workload.longest_value().max(1)).clamp(4, 64) as usize;
    let mut pipeline = PutPipeline::new(client, window, if window < 64 { 1 } else { 16 });
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut counted = 0;
    for record in records {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        workload.write_key(record, &mut key);
        workload.write_value(record, 0, &mut value);
        pipeline.put(&key, &value, record)?;
        progress.fetch_add(pipeline.stored() - counted, Ordering::Relaxed);
        counted = pipeline.stored();
        if let Some(first) = pipeline.take_refused().first() {
            pipeline.finish()?;
            return Err(DriveError {
                cause: KvError::Refused(first.status),
                maybe_executed: 0,
                not_executed: 0,
            });
        }
    }
    pipeline.finish()?;
    progress.fetch_add(pipeline.stored() - counted, Ordering::Relaxed);
    match pipeline.take_refused().first() {
        Some(first) => {
            Err(DriveError { cause: KvError::Refused(first.status), maybe_executed: 0, not_executed: 0 })
        }
        None => Ok(pipeline.stored()),
    }
}
