//! Runs simulations in parallel, mostly those of figures, on one thread per core.

use super::hash;
use dunlin_command::output::Failure;
use dunlin_command::parallel::all;
use dunlin_figures::{Drawing, Effort, Figure, Outcome, Point, Run};
use dunlin_report::Row;
use dunlin_rnic_model::Profile;
use std::cmp::Reverse;

/// A completed figure.
pub(super) struct Made {
    pub(super) figure: Figure,
    /// The profiles of its runs with their hashes; the figure's own profile first.
    pub(super) profiles: Vec<(String, String)>,
    pub(super) points: Vec<Point>,
    pub(super) drawings: Vec<Drawing>,
}

/// Runs figures. A signal ends it at once; threads that still simulate end with the process.
pub(super) fn make(figures: &[Figure], effort: Effort, message: &str) -> Result<Vec<Made>, Failure> {
    let plans: Vec<Vec<Run>> = figures.iter().map(|figure| figure.runs(effort)).collect();
    let profiles: Vec<Vec<(String, String)>> =
        figures.iter().zip(&plans).map(|(figure, plan)| profiles(figure, plan)).collect::<Result<_, _>>()?;
    let runs: Vec<Run> = plans.iter().flatten().cloned().collect();
    let mut outcomes = largest_first(runs, message)?.into_iter();
    let made = figures.iter().zip(plans).zip(profiles).map(|((figure, plan), profiles)| {
        let mine: Vec<Outcome> = outcomes.by_ref().take(plan.len()).collect();
        let (points, drawings) = (figure.points(effort, &mine), figure.drawings(effort, &mine));
        Made { figure: *figure, profiles, points, drawings }
    });
    Ok(made.collect())
}

/// Returns the profiles of a figure's runs.
fn profiles(figure: &Figure, plan: &[Run]) -> Result<Vec<(String, String)>, Failure> {
    let mut names = vec![figure.profile];
    for name in plan.iter().filter_map(Run::profile) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let with_hash = |name: &str| Ok((name.to_owned(), hash(&Profile::built_in(name).map_err(Failure::new)?)));
    names.into_iter().map(with_hash).collect()
}

impl Made {
    /// Formats its profiles with their hashes.
    pub(super) fn profiles(&self) -> String {
        let each: Vec<String> = self.profiles.iter().map(|(name, hash)| format!("{name} {hash}")).collect();
        format!("{} {}", if each.len() == 1 { "profile" } else { "profiles" }, each.join(", "))
    }
}

/// Adds profiles and their hashes to the parameters of a document.
pub(super) fn set_profiles(parameters: &mut Row, made: &[Made]) {
    for (name, hash) in made.iter().flat_map(|made| &made.profiles) {
        parameters.set(&format!("profile_hash {name}"), hash.as_str());
    }
}

/// Returns the outcomes of runs, in order. The largest runs start first, so that no core is left with a
/// long one at the end.
fn largest_first(runs: Vec<Run>, message: &str) -> Result<Vec<Outcome>, Failure> {
    let mut runs: Vec<(usize, Run)> = runs.into_iter().enumerate().collect();
    runs.sort_by_key(|(_, run)| Reverse(run.size()));
    let places: Vec<usize> = runs.iter().map(|(place, _)| *place).collect();
    let outcomes = all(runs, message, |(_, run)| run.go().map_err(Box::new))?;
    let mut placed: Vec<(usize, Outcome)> = places.into_iter().zip(outcomes).collect();
    placed.sort_by_key(|(place, _)| *place);
    Ok(placed.into_iter().map(|(_, outcome)| outcome).collect())
}
