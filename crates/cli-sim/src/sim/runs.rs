//! Runs simulations, those of figures above all: each on one of as many threads as there are cores.

use super::hash;
use dunlin_command::output::Failure;
use dunlin_command::parallel::all;
use dunlin_report::Row;
use dunlin_rnic_model::Profile;
use dunlin_scenario::figures::{Drawing, Effort, Figure, Outcome, Point, Run};
use std::cmp::Reverse;

/// A figure that was made.
pub(super) struct Made {
    pub(super) figure: Figure,
    /// The profiles that its runs go by, its own first, each with its hash.
    pub(super) profiles: Vec<(String, String)>,
    pub(super) points: Vec<Point>,
    pub(super) drawings: Vec<Drawing>,
}

/// Makes figures. A signal ends it at once: threads that still simulate end with the process.
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

/// The profiles that a figure's runs go by.
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
    /// Its profiles and their hashes in words.
    pub(super) fn profiles(&self) -> String {
        let each: Vec<String> = self.profiles.iter().map(|(name, hash)| format!("{name} {hash}")).collect();
        format!("{} {}", if each.len() == 1 { "profile" } else { "profiles" }, each.join(", "))
    }
}

/// Notes profiles and their hashes among the parameters of a document.
pub(super) fn set_profiles(parameters: &mut Row, made: &[Made]) {
    for (name, hash) in made.iter().flat_map(|made| &made.profiles) {
        parameters.set(&format!("profile_hash {name}"), hash.as_str());
    }
}

/// The outcomes of runs, in their order. They are made from the largest to the smallest, so that no core is left with a long one at the end.
fn largest_first(runs: Vec<Run>, message: &str) -> Result<Vec<Outcome>, Failure> {
    let mut runs: Vec<(usize, Run)> = runs.into_iter().enumerate().collect();
    runs.sort_by_key(|(_, run)| Reverse(run.size()));
    let places: Vec<usize> = runs.iter().map(|(place, _)| *place).collect();
    let outcomes = all(runs, message, |(_, run)| run.go().map_err(Box::new))?;
    let mut placed: Vec<(usize, Outcome)> = places.into_iter().zip(outcomes).collect();
    placed.sort_by_key(|(place, _)| *place);
    Ok(placed.into_iter().map(|(_, outcome)| outcome).collect())
}
