//! Simulates the selected plans on a cluster.

use dunlin_advice::{Candidate, Cluster, Forecast, Unasked, assumptions, better, by_throughput, candidates};
use dunlin_command::output::{Failure, hash_of, rounded};
use dunlin_command::parallel;
use dunlin_hints::{Environment, FunctionHints, Selection, Value};

/// The simulation results of one function's plans.
#[derive(Debug)]
pub(super) struct Verdict {
    /// One line for people.
    pub(super) text: String,
    /// All forecasts.
    pub(super) json: serde_json::Value,
}

/// Returns the cluster of a profile.
pub(super) fn cluster(profile: &str) -> Result<Cluster, Failure> {
    Cluster::built_in(profile).map_err(Failure::new)
}

/// Simulates all plans of all functions. Returns `None` for a function without a plan.
pub(super) fn verdicts<'a>(
    functions: impl Iterator<Item = (&'a FunctionHints, &'a Selection)>,
    environment: &Environment<'_>,
    cluster: &Cluster,
) -> Result<Vec<Option<Verdict>>, Failure> {
    let plans: Vec<(&FunctionHints, Result<Vec<Candidate>, Unasked>)> = functions
        .map(|(hints, selection)| (hints, candidates(hints, selection, environment, cluster)))
        .collect();
    let flat: Vec<Candidate> = plans.iter().flat_map(|(_, plans)| plans.iter().flatten()).cloned().collect();
    let mut forecasts = parallel::all(flat, "simulating", Candidate::run)?.into_iter();
    let verdicts = plans.iter().map(|(hints, plans)| match plans {
        Ok(candidates) => {
            let mine: Vec<Forecast> = forecasts.by_ref().take(candidates.len()).collect();
            verdict(hints, candidates, &mine, environment, cluster)
        }
        Err(why) => Some(Verdict {
            text: format!("model {}: not asked, since {why}", cluster.profile),
            json: serde_json::json!({ "profile": cluster.profile, "not_asked": why.to_string() }),
        }),
    });
    Ok(verdicts.collect())
}

fn name(candidate: &Candidate) -> &'static str {
    candidate.protocol.unwrap_or("(of two protocols)")
}

fn verdict(
    hints: &FunctionHints,
    candidates: &[Candidate],
    forecasts: &[Forecast],
    environment: &Environment<'_>,
    cluster: &Cluster,
) -> Option<Verdict> {
    let (selected, first) = (candidates.first()?, forecasts.first()?);
    let show = |forecast: &Forecast| {
        if by_throughput(hints) {
            format!("{:.0} calls/s", forecast.throughput_ops)
        } else {
            format!("{:.2} us", forecast.mean_us)
        }
    };
    let named = hints.client.protocol.is_some() || hints.server.protocol.is_some();
    let how = if named { "as named" } else { "as selected" };
    let ours = format!("model {}: {} {how}: {}", cluster.profile, name(selected), show(first));
    let text = match better(hints, forecasts) {
        None => format!("{ours}; no other protocol is better by more than 3%"),
        Some((place, factor)) => {
            let other = &candidates[place];
            let hint = other.protocol.map_or(String::new(), |protocol| {
                format!("; to take it: protocol = {}", Value::Protocol(protocol))
            });
            format!("{ours}; {}: {}, {factor:.2} times as good{hint}", name(other), show(&forecasts[place]))
        }
    };
    let assumed = assumptions(hints, environment, cluster).to_string();
    let text = format!("{text}\n  model {} assumes: {assumed}", cluster.profile);
    let rows: Vec<serde_json::Value> = candidates
        .iter()
        .zip(forecasts)
        .map(|(candidate, forecast)| {
            serde_json::json!({
                "protocol": name(candidate),
                "mean_us": rounded(forecast.mean_us),
                "throughput_ops": rounded(forecast.throughput_ops),
            })
        })
        .collect();
    let json = serde_json::json!({
        "profile": cluster.profile,
        "profile_hash": hash_of(cluster.hash),
        "assumes": assumed,
        "forecasts": rows,
    });
    Some(Verdict { text, json })
}
