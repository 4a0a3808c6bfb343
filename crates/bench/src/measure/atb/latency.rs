//! `bench atb latency` (HatRPC figure 11): one client, one call at a time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::hints::{Contestant, Singles};
use super::service::{Call, Function};
use super::turns::{
    Compared, Entrant, Length, Metric, Rivals, Verdict, rows, set_latency, set_server_cpu, take_turns,
};
use super::{Findings, MeasureError, Servers, Session, Sizes, Stop, progress_bar, service_hints};
use super::{RENEWED_AFTER, ServiceKind, connect, surroundings};
use dunlin_floor::FloorError;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct AtbLatencyOptions {
    /// Sizes of request and response in bytes; each is a point.
    pub sizes: Vec<usize>,
    /// Size of the request in bytes, overriding `sizes`.
    pub request: Option<usize>,
    /// Size of the response in bytes, overriding `sizes`.
    pub answer: Option<usize>,
    /// The single protocols that compete with the hints.
    pub singles: Singles,
    /// Slices per contestant and point.
    pub rounds: usize,
    /// Length of a slice.
    pub slice: Duration,
    /// Ends the measurement early.
    pub stop: Stop,
}

/// Time limit per point.
const LONGEST: Duration = Duration::from_secs(20);

/// Measures the round trip of each contestant. Rows have `request_bytes`, `response_bytes`, `protocol`
/// (`hinted`, or a protocol's name), `plan`, the latency fields, `best` (the best single protocol at that
/// point and placement), and `ratio` to it with `ratio_p25` and `ratio_p75`. Blocks for about two seconds
/// per point.
///
/// # Errors
/// Any failure; protocols that the fabric cannot run are reported in notes instead.
pub fn atb_latency(session: &mut Session, options: &AtbLatencyOptions) -> Result<Findings, MeasureError> {
    let points = Sizes::points(&options.sizes, options.request, options.answer)?;
    let fabric = session.fabric.clone();
    let mut findings = Findings::default();
    let mut verdicts = [Verdict::default()];
    let mut servers = Servers::default();
    let progress = progress_bar(points.len() * options.rounds * (options.singles.chosen()?.len() + 1));
    for sizes in points {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        let idl = |more: &str| {
            service_hints(&format!("hint: perf_goal = latency, concurrency = 1{more}; {}", sizes.hints()))
        };
        let around = surroundings(&fabric, session, 1);
        let hinted = Contestant::hinted("hinted", &idl("")?, around)?;
        let singles = options.singles.contestants(around, &mut findings.notes, idl)?;
        let mut entrants = Vec::new();
        for contestant in std::iter::once(hinted).chain(singles) {
            let served = servers.of(session, &contestant.name, ServiceKind::Atb)?;
            let (name, single, plan) = (contestant.name.clone(), contestant.single, contestant.plan());
            let mut calls: Vec<Call> = Vec::new();
            let mut taken = 0;
            let take = move |session: &mut Session| {
                if taken % RENEWED_AFTER == 0 {
                    session.disconnect(&served, std::mem::take(&mut calls))?;
                    calls = connect(session, &served, &contestant, 1, sizes, &[Function::Echo])?;
                }
                taken += 1;
                let (slice, _) = session.pair.subject_slice(served.index, &[], |pair| {
                    pair.time_subject(options.slice, |_| {
                        calls.iter_mut().try_for_each(|call| call.call(Function::Echo))
                    })
                })?;
                Ok(slice.into())
            };
            entrants.push(Entrant::new(name, single, plan, Box::new(take)));
        }
        let length = Length { rounds: options.rounds, longest: LONGEST };
        take_turns(session, &mut entrants, length, &options.stop, &progress)
            .map_err(|error| named(error, &progress.message()))?;
        let compared = [Compared { metric: Metric::Latency(0), prefix: "", rivals: Rivals::All }];
        findings.rows.extend(rows(
            &mut entrants,
            &sizes.row(),
            &compared,
            &|row, samples| {
                set_latency(row, samples, 0);
                set_server_cpu(row, samples);
            },
            &mut verdicts,
        ));
    }
    progress.finish_and_clear();
    findings.notes.extend(verdicts[0].words("latency by hints"));
    Ok(findings)
}

/// Adds the contestant's name to an error.
pub(in crate::measure) fn named(error: MeasureError, contestant: &str) -> MeasureError {
    match error {
        MeasureError::Floor(FloorError::Subject(reason)) => {
            MeasureError::TypedCall { protocol: contestant.to_owned(), reason }
        }
        other => other,
    }
}
