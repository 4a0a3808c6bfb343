//! A client of one function whose process time and results change during the run, and the response of its
//! tuners (RF-RPC sections 3.2 and 4.2).

use crate::rates::{ModelledRatesError, modelled_rates};
use dunlin_fabric::{Address, AddressError, Fabric, Nanos, Scheme};
use dunlin_fabric_sim::{MachineSettings, ModelTiming, Prices, RunError, Settings, Sim, TimingSettings};
use dunlin_rnic_model::{Parameter, Profile, ProfileError};
use dunlin_rpc::{
    BatchCalls, Batching, CallError, Client, ClientConfig, CompletionMode, ConnectError, FetchChoice,
    FirstRead, FunctionMode, Plan, Reply, Request, RequestHalf, ResponseHalf, ServeError, Server,
    ServerBuilder, Service, Tuning,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;

/// The called function.
const FUNCTION: u16 = 1;
/// The seed; nothing here is random.
const SEED: u64 = 1;

/// A period of constant behaviour of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Handler time, in nanoseconds.
    pub process: Nanos,
    /// Bytes of its results.
    pub result: u32,
    /// Number of calls.
    pub calls: u32,
}

/// The result of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct PartOutcome {
    /// The part.
    pub part: Part,
    /// Mean time of a call, in virtual nanoseconds.
    pub mean_ns: f64,
    /// Results that were fetched, and that were written back.
    pub results: (u64, u64),
    /// The client's tuning at the end of the part.
    pub tuning: Tuning,
}

/// Parts that demonstrate the tuner: quick calls, long ones, quick ones, longer results, and short ones.
pub const PARTS: [Part; 5] = [
    Part { process: 500, result: 32, calls: 500 },
    Part { process: 20_000, result: 32, calls: 500 },
    Part { process: 500, result: 32, calls: 500 },
    Part { process: 500, result: 400, calls: 1500 },
    Part { process: 500, result: 32, calls: 1500 },
];

/// A period of constant behaviour of the function, called in batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPart {
    /// Handler time, in nanoseconds.
    pub process: Nanos,
    /// Number of calls.
    pub calls: u32,
}

/// The result of the second half of a part in batches.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchOutcome {
    /// The part.
    pub part: BatchPart,
    /// Mean number of calls per batch.
    pub together: f64,
    /// Share of calls that exceeded the limit for the caller, from the first call of their batch to their
    /// answers.
    pub late_share: f64,
    /// Million calls per virtual second.
    pub mops: f64,
}

/// The latency limit of batches in nanoseconds, and the share of calls that may exceed it.
pub const WITHIN: (Nanos, f64) = (20_000, 0.05);

/// Tolerance of the caller's clock, in nanoseconds: some time passes before the engine reads its clock and
/// after it reports the answers. If every batch takes the same time, the longest batches that keep the limit
/// end just before it.
const SEEN: Nanos = 50;

/// Quick calls, calls that take five times as long, and quick ones: enough calls that in each second half
/// some hundreds of batches are late or could be.
pub const BATCH_PARTS: [BatchPart; 3] = [
    BatchPart { process: 200, calls: 100_000 },
    BatchPart { process: 1000, calls: 100_000 },
    BatchPart { process: 200, calls: 100_000 },
];

/// The reason why there is no outcome.
#[derive(Debug, Error)]
pub enum TuningError {
    /// No built-in profile has this name.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The rates of the profile's NIC cannot be computed.
    #[error(transparent)]
    Rates(#[from] ModelledRatesError),
    /// The simulation failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The server's address is invalid, which cannot happen.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The server did not start.
    #[error("the simulated server does not start")]
    Serve(#[from] ServeError),
    /// The client could not connect.
    #[error("the simulated client cannot connect")]
    Connect(#[from] ConnectError),
    /// A call failed.
    #[error("a simulated call failed")]
    Call(#[from] CallError),
}

/// Plays parts in sequence with a single client on its own host, one call at a time, on the cluster of a
/// built-in profile. As in the paper, the client chooses R and F by enumeration and sends READs repeatedly.
/// Takes a moment on the calling thread; repeated calls give the same outcome.
///
/// # Errors
/// Returns an error for an unknown profile.
pub fn play(profile: &str, parts: &[Part]) -> Result<Vec<PartOutcome>, TuningError> {
    let parts = parts.to_vec();
    run(profile, move |sim| on(sim, &parts))
}

/// Plays parts in sequence, as [`play`], with a client that sends as many calls together as keep [`WITHIN`]
/// and waits for all of them before the next batch. The client has its default configuration otherwise.
///
/// # Errors
/// Returns an error for an unknown profile.
pub fn play_batches(profile: &str, parts: &[BatchPart]) -> Result<Vec<BatchOutcome>, TuningError> {
    let parts = parts.to_vec();
    run(profile, move |sim| batches_on(sim, &parts))
}

fn run<T: Send + 'static>(
    profile: &str,
    body: impl FnOnce(&Sim) -> Result<Vec<T>, TuningError> + Send + 'static,
) -> Result<Vec<T>, TuningError> {
    let rates = modelled_rates(profile)?;
    let profile = Arc::new(Profile::built_in(profile)?);
    let mut settings = Settings { spurious: 0, preemption: 0, rates: Some(rates), ..Settings::default() };
    settings.machines = vec![MachineSettings::default(); 2];
    settings.prices = Prices::of(&profile);
    settings.capabilities.max_inline = profile.number(Parameter::InlineLimit) as u32;
    let machines = vec![(profile, 1); 2];
    settings.timing = TimingSettings::Model(ModelTiming { machines, switch_ns: None, control_ns: 5_000 });
    let found = Arc::new(Mutex::new(Ok(Vec::new())));
    let into = Arc::clone(&found);
    Sim::run_with(settings, SEED, move |sim| {
        *into.lock().unwrap_or_else(PoisonError::into_inner) = body(&sim);
    })?;
    std::mem::replace(&mut *found.lock().unwrap_or_else(PoisonError::into_inner), Ok(Vec::new()))
}

/// Starts a server of the function.
fn serve(sim: &Sim, address: &Address) -> Result<Server<Sim>, ServeError> {
    let host = sim.host().clone();
    ServerBuilder::new(sim).function(FUNCTION, FunctionMode::Worker).serve(address, |_| {
        let host = host.clone();
        Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
            let (process, result) = decode(request.payload);
            host.work(process);
            reply.reserve(result as usize)?.fill(0);
            Ok(())
        }) as Box<dyn Service>
    })
}

/// Returns the plan: results are fetched or written back.
fn plan() -> Plan {
    Plan::new(RequestHalf::Write, ResponseHalf::FetchOrWrite)
        .completion(CompletionMode::Busy, CompletionMode::Busy)
}

fn on(sim: &Sim, parts: &[Part]) -> Result<Vec<PartOutcome>, TuningError> {
    let address = Address::new(Scheme::Sim, "tuning")?;
    let server = serve(sim, &address)?;
    let fabric = sim.process_on(1);
    // As in the paper: by enumeration, with repeated fetching.
    let (fetch_choice, first_read) = (FetchChoice::Enumerated, FirstRead::AtOnce);
    let config = ClientConfig { fetch_choice, first_read, ..ClientConfig::with_plan(plan()) };
    let mut client = Client::connect(&fabric, &address, config)?;
    let mut before = (0, 0);
    let mut outcomes = Vec::with_capacity(parts.len());
    for part in parts {
        let began = sim.time();
        for _ in 0..part.calls {
            client.call(FUNCTION, &encode(part))?;
        }
        let took = sim.time() - began;
        let Some(tuning) = client.tuning().pop() else { continue };
        let now = tuning.results;
        outcomes.push(PartOutcome {
            part: *part,
            mean_ns: took as f64 / f64::from(part.calls.max(1)),
            results: (now.0 - before.0, now.1 - before.1),
            tuning,
        });
        before = now;
    }
    client.close();
    server.shutdown(Duration::from_secs(1));
    Ok(outcomes)
}

fn batches_on(sim: &Sim, parts: &[BatchPart]) -> Result<Vec<BatchOutcome>, TuningError> {
    let address = Address::new(Scheme::Sim, "batches")?;
    let server = serve(sim, &address)?;
    let (limit, tolerance) = WITHIN;
    let calls = BatchCalls::WithinLatency { limit: Duration::from_nanos(limit), tolerance };
    let batching = Batching { calls, ..Batching::default() };
    let config = ClientConfig { window: 128, batching: Some(batching), ..ClientConfig::with_plan(plan()) };
    let mut client = Client::connect(&sim.process_on(1), &address, config)?;
    let mut outcomes = Vec::with_capacity(parts.len());
    for part in parts {
        let payload = encode(&Part { process: part.process, result: 32, calls: 0 });
        let (mut called, mut half) = (0, None);
        let (mut batches, mut late) = (0u32, 0u32);
        while called < part.calls {
            if called >= part.calls / 2 && half.is_none() {
                half = Some((called, sim.time()));
                (batches, late) = (0, 0);
            }
            let began = sim.time();
            let together = client.batch_calls().first().copied().unwrap_or(1);
            for _ in 0..together {
                client.push_on(0, FUNCTION, &payload)?;
            }
            while let Some(call) = client.wait_any() {
                client.outcome(call)?;
                client.forget(call);
                late += u32::from(sim.time() - began > limit + SEEN);
            }
            called += u32::from(together);
            batches += 1;
        }
        let (before, since) = half.unwrap_or((0, sim.time()));
        let counted = f64::from(called - before);
        outcomes.push(BatchOutcome {
            part: *part,
            together: counted / f64::from(batches.max(1)),
            late_share: f64::from(late) / counted.max(1.0),
            mops: counted * 1e3 / (sim.time() - since).max(1) as f64,
        });
    }
    client.close();
    server.shutdown(Duration::from_secs(1));
    Ok(outcomes)
}

/// Encodes the handler's work in a request.
fn encode(part: &Part) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&part.process.to_le_bytes());
    bytes[8..].copy_from_slice(&part.result.to_le_bytes());
    bytes
}

fn decode(payload: &[u8]) -> (Nanos, u32) {
    let (process, result) = payload.split_at(payload.len().min(8));
    let process = process.try_into().map_or(0, u64::from_le_bytes);
    (process, result.try_into().map_or(0, u32::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_follows_the_function_there_and_back() {
        let outcomes = play("rf-rpc", &PARTS).unwrap();
        assert_eq!(outcomes, play("rf-rpc", &PARTS).unwrap(), "the same each time");
        let [quick, long, again, longer, last] = &outcomes[..] else { panic!("{outcomes:?}") };
        for fetched in [quick, again, longer, last] {
            assert!(fetched.tuning.written_back.is_empty(), "{fetched:?}");
            assert!(fetched.results.0 > 9 * fetched.results.1, "{fetched:?}");
        }
        assert_eq!(long.tuning.written_back, [FUNCTION]);
        assert!(long.results.1 > 9 * long.results.0, "{long:?}");
        assert_eq!((long.tuning.changes, last.tuning.changes), ((1, 0), (1, 1)));
        assert!(longer.tuning.fetch_bytes > quick.tuning.fetch_bytes, "{longer:?}");
        assert_eq!(last.tuning.fetch_bytes, quick.tuning.fetch_bytes);
        assert_eq!(quick.tuning.table.to_string(), "of the model of rf-rpc");
        assert!(matches!(play("rf-rpd", &PARTS), Err(TuningError::Rates(_))));
    }

    #[test]
    fn batches_are_as_long_as_the_limit_allows_and_follow_a_step() {
        let outcomes = play_batches("rf-rpc", &BATCH_PARTS).unwrap();
        assert_eq!(outcomes, play_batches("rf-rpc", &BATCH_PARTS).unwrap(), "the same each time");
        let [quick, long, again] = &outcomes[..] else { panic!("{outcomes:?}") };
        for part in [quick, long, again] {
            assert!(part.late_share <= WITHIN.1, "{part:?}");
        }
        // About two of the 20 us are network latency.
        assert!(quick.together > 30.0 && (8.0..20.0).contains(&long.together), "{outcomes:?}");
        assert!((0.8..1.25).contains(&(again.together / quick.together)), "{outcomes:?}");
    }
}
