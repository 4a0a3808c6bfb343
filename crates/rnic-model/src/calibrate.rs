//! Calibration: adjusts the free parameters of a profile (kind `fit`) until the model matches raw-verb
//! curves.
//!
//! The curves contain raw verbs only: the shared sweep, and values of raw-verb figures in the papers' texts.
//! A parameter of a NIC is fitted to the curves of all clusters with that NIC at once, a parameter of a
//! cluster to its own. The method is a coordinate search with shrinking steps: slow, simple and
//! deterministic.

use crate::figure::{FIGURES, Series, paper};
use crate::profile::{Kind, Parameter, Profile, ProfileError, Scope};
use crate::sweep::{self, Effort, Row, SweepError, median_error_percent, profile_of};

/// The shared measurements.
const SWEEP: &str = include_str!("../curves/rnic_sweep.csv");
/// Cap of a point's error, so that a point outside the model's mechanisms does not distort the others.
const MOST_ERROR: f64 = 0.5;
/// Factor by which the second start moves the free parameters, alternately up and down.
const MOVED: f64 = 1.25;
/// The step factors.
const STEPS: [f64; 3] = [1.25, 1.1, 1.04];

/// A measurement that the model can reproduce.
#[derive(Clone, Debug)]
enum Experiment {
    Row(Row),
    Point { series: Series, x: u32, value: f64 },
}

/// A curve: points measured together.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name: figure and series, or operation and log of a sweep.
    pub name: String,
    /// Profile of the cluster on which the curve was measured.
    pub profile: String,
    experiments: Vec<Experiment>,
}

/// The model's error on a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// Name of the curve.
    pub curve: String,
    /// Profile on which the model ran.
    pub profile: String,
    /// Number of points.
    pub points: usize,
    /// Median of the absolute relative errors, in percent.
    pub median_percent: f64,
    /// Largest absolute relative error, in percent.
    pub worst_percent: f64,
}

/// The value of a free parameter before and after fitting.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The parameter.
    pub parameter: Parameter,
    /// Value in the profile.
    pub before: f64,
    /// Fitted value.
    pub after: f64,
}

/// The result of a calibration.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The free parameters.
    pub fitted: Vec<Fitted>,
    /// Residuals of all curves with the profile's values.
    pub before: Vec<Residual>,
    /// Residuals of all curves with the fitted values.
    pub after: Vec<Residual>,
}

/// An error of a calibration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CalibrateError {
    /// A built-in profile is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A curve cannot be run.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// The test of a figure cannot be run.
    #[error(transparent)]
    Test(#[from] crate::driver::TestError),
    /// No raw-verb curve was measured with this NIC.
    #[error(
        "no raw-verb curve of {nic} is at hand, so nothing of '{profile}' can be fitted; calibrated NICs are ConnectX-3, Connect-IB and ConnectX-5"
    )]
    NoCurve {
        /// The profile.
        profile: String,
        /// Its NIC.
        nic: String,
    },
}

/// Returns the raw-verb curves of all clusters that have the profile's NIC.
///
/// # Errors
/// Returns an error if data of this crate is invalid.
pub fn curves(profile: &Profile) -> Result<Vec<Curve>, CalibrateError> {
    let mut curves: Vec<Curve> = Vec::new();
    let mut clusters: Vec<&str> = Vec::new();
    for name in Profile::built_in_names() {
        if Profile::built_in(name)?.nic() == profile.nic() {
            clusters.push(name);
        }
    }
    for row in sweep::parse("rnic_sweep.csv", SWEEP)? {
        let Some(cluster) = profile_of(&row.cluster).filter(|cluster| clusters.contains(cluster)) else {
            continue;
        };
        let name = format!("{} ({})", row.operation, row.source);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.experiments.push(Experiment::Row(row)),
            None => curves.push(Curve {
                name,
                profile: cluster.to_owned(),
                experiments: vec![Experiment::Row(row)],
            }),
        }
    }
    for figure in FIGURES.iter().filter(|figure| clusters.contains(&figure.profile)) {
        for series in figure.series {
            let points = series.xs.iter().filter_map(|x| {
                let (value, _) = paper(figure.id, series.name, *x)?;
                Some(Experiment::Point { series: *series, x: *x, value })
            });
            let experiments: Vec<Experiment> = points.collect();
            if !experiments.is_empty() {
                curves.push(Curve {
                    name: format!("{}: {}", figure.id, series.name),
                    profile: figure.profile.to_owned(),
                    experiments,
                });
            }
        }
    }
    if curves.is_empty() {
        return Err(CalibrateError::NoCurve {
            profile: profile.name().to_owned(),
            nic: profile.nic().to_owned(),
        });
    }
    Ok(curves)
}

impl Experiment {
    fn measured(&self) -> f64 {
        match self {
            Experiment::Row(row) => row.mops,
            Experiment::Point { value, .. } => *value,
        }
    }

    fn predict(&self, profile: &Profile, effort: Effort) -> Result<f64, CalibrateError> {
        Ok(match self {
            Experiment::Row(row) => row.predict(profile, effort)?,
            Experiment::Point { series, x, .. } => series.predict(*x, profile, effort)?,
        })
    }
}

/// Profiles of the clusters with one NIC, with trial values applied.
#[derive(Clone)]
struct Trial {
    profiles: Vec<Profile>,
    /// The cluster whose own parameters are also varied.
    own: String,
}

impl Trial {
    fn new(profile: &Profile, curves: &[Curve]) -> Result<Trial, CalibrateError> {
        let mut profiles: Vec<Profile> = vec![profile.clone()];
        for curve in curves {
            if profiles.iter().all(|known| known.name() != curve.profile) {
                profiles.push(Profile::built_in(&curve.profile)?);
            }
        }
        Ok(Trial { profiles, own: profile.name().to_owned() })
    }

    fn profile(&self, name: &str) -> &Profile {
        let own = &self.profiles[0];
        self.profiles.iter().find(|profile| profile.name() == name).unwrap_or(own)
    }

    /// Returns a copy with the free parameters moved.
    fn moved(&self, parameters: &[Parameter]) -> Trial {
        let mut moved = self.clone();
        for (number, parameter) in parameters.iter().enumerate() {
            let own = moved.profile(&moved.own).number(*parameter);
            let tried = if number % 2 == 0 { own * MOVED } else { own / MOVED };
            moved = moved.with(*parameter, whole(own, tried));
        }
        moved
    }

    fn with(&self, parameter: Parameter, number: f64) -> Trial {
        let mut changed = self.clone();
        for profile in &mut changed.profiles {
            if parameter.scope() == Scope::Nic || profile.name() == self.own {
                *profile = profile.with(parameter, number);
            }
        }
        changed
    }
}

/// The points of a curve that count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Even,
    Odd,
}

impl Part {
    fn has(self, index: usize) -> bool {
        match self {
            Part::All => true,
            Part::Even => index.is_multiple_of(2),
            Part::Odd => !index.is_multiple_of(2),
        }
    }
}

/// Returns the misfit of a trial: a weighted mean over curves of the mean absolute logarithmic error. A
/// curve's weight is the square root of its number of points.
fn misfit(trial: &Trial, curves: &[Curve], part: Part) -> Result<f64, CalibrateError> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for curve in curves {
        let profile = trial.profile(&curve.profile);
        let (mut errors, mut count) = (0.0, 0.0);
        for (_, experiment) in curve.experiments.iter().enumerate().filter(|(index, _)| part.has(*index)) {
            let ratio = experiment.predict(profile, Effort::Quick)? / experiment.measured();
            errors += libm::fabs(libm::log(ratio.max(1e-9))).min(MOST_ERROR);
            count += 1.0;
        }
        if count > 0.0 {
            let weight = libm::sqrt(count);
            sum += errors / count * weight;
            weights += weight;
        }
    }
    Ok(sum / weights.max(1.0))
}

fn residuals(
    trial: &Trial,
    curves: &[Curve],
    part: Part,
    effort: Effort,
) -> Result<Vec<Residual>, CalibrateError> {
    let mut found = Vec::new();
    for curve in curves {
        let profile = trial.profile(&curve.profile);
        let mut pairs = Vec::new();
        for (_, experiment) in curve.experiments.iter().enumerate().filter(|(index, _)| part.has(*index)) {
            pairs.push((experiment.measured(), experiment.predict(profile, effort)?));
        }
        if pairs.is_empty() {
            continue;
        }
        let worst =
            pairs.iter().map(|(measured, predicted)| ((predicted - measured) / measured * 100.0).abs());
        found.push(Residual {
            curve: curve.name.clone(),
            profile: curve.profile.clone(),
            points: pairs.len(),
            median_percent: median_error_percent(pairs.iter().copied()),
            worst_percent: worst.fold(0.0, f64::max),
        });
    }
    Ok(found)
}

/// Returns the residual of each raw-verb curve of all clusters with the profile's NIC, for the present
/// parameter values.
///
/// # Errors
/// Returns an error if no curve exists for the NIC, or if data of this crate is invalid.
pub fn check(profile: &Profile, effort: Effort) -> Result<Vec<Residual>, CalibrateError> {
    let curves = curves(profile)?;
    residuals(&Trial::new(profile, &curves)?, &curves, Part::All, effort)
}

/// Returns the free parameters of a profile: those of kind `fit`.
pub fn free(profile: &Profile) -> impl Iterator<Item = Parameter> {
    Parameter::ALL.iter().copied().filter(|parameter| profile.value(*parameter).kind == Kind::Fit)
}

/// Fits the free parameters of a profile. Calls `tell` with the number of finished searches, their total, and
/// the misfit so far.
///
/// # Errors
/// As [`check`].
pub fn calibrate(
    profile: &Profile,
    mut tell: impl FnMut(usize, usize, f64),
) -> Result<Calibration, CalibrateError> {
    let curves = curves(profile)?;
    let start = Trial::new(profile, &curves)?;
    let parameters: Vec<Parameter> = free(profile).collect();
    // A coordinate search finds the nearest minimum only, so a second one starts elsewhere.
    let starts = [start.clone(), start.moved(&parameters)];
    let each = STEPS.len() * parameters.len();
    let mut best: Option<(Trial, f64)> = None;
    for (round, from) in starts.iter().enumerate() {
        let (trial, misfit) = search(from, &parameters, &curves, Part::All, &mut |done, misfit| {
            tell(round * each + done, starts.len() * each, misfit);
        })?;
        if best.as_ref().is_none_or(|(_, least)| misfit < *least) {
            best = Some((trial, misfit));
        }
    }
    let fitted = best.map_or_else(|| start.clone(), |(trial, _)| trial);
    Ok(Calibration {
        fitted: parameters
            .iter()
            .map(|parameter| Fitted {
                parameter: *parameter,
                before: profile.number(*parameter),
                after: fitted.profile(profile.name()).number(*parameter),
            })
            .collect(),
        before: residuals(&start, &curves, Part::All, Effort::Full)?,
        after: residuals(&fitted, &curves, Part::All, Effort::Full)?,
    })
}

/// Cross-validates a profile: moves the free parameters off their values, fits them to every second point of
/// each curve, and tests them on the other points; then swaps the halves. Curves of a single point are not
/// tested.
///
/// # Errors
/// As [`check`].
pub fn cross_validate(
    profile: &Profile,
    mut tell: impl FnMut(usize, usize, f64),
) -> Result<Vec<Residual>, CalibrateError> {
    let curves = curves(profile)?;
    let parameters: Vec<Parameter> = free(profile).collect();
    // The profile was fitted to all points; starting from it would leak the test points.
    let start = Trial::new(profile, &curves)?.moved(&parameters);
    let all = 2 * STEPS.len() * parameters.len();
    let mut found = Vec::new();
    for (round, (fit, test)) in [(Part::Even, Part::Odd), (Part::Odd, Part::Even)].into_iter().enumerate() {
        let before = round * STEPS.len() * parameters.len();
        let (trial, _) =
            search(&start, &parameters, &curves, fit, &mut |done, misfit| tell(before + done, all, misfit))?;
        found.extend(residuals(&trial, &curves, test, Effort::Quick)?);
    }
    Ok(found)
}

/// Rounds a trial value of an integer parameter.
fn whole(own: f64, tried: f64) -> f64 {
    if own >= 32.0 && own.fract() == 0.0 { libm::round(tried) } else { tried }
}

/// Runs a coordinate search with shrinking steps. Calls `tell` with the number of finished coordinates and
/// the misfit.
fn search(
    start: &Trial,
    parameters: &[Parameter],
    curves: &[Curve],
    part: Part,
    tell: &mut dyn FnMut(usize, f64),
) -> Result<(Trial, f64), CalibrateError> {
    let mut best = start.clone();
    let mut least = misfit(&best, curves, part)?;
    let mut done = 0;
    for step in STEPS {
        for parameter in parameters {
            let own = best.profile(&best.own).number(*parameter);
            for tried in [own * step, own / step] {
                let trial = best.with(*parameter, whole(own, tried));
                let found = misfit(&trial, curves, part)?;
                if found < least * 0.999 {
                    (best, least) = (trial, found);
                    break;
                }
            }
            done += 1;
            tell(done, least);
        }
    }
    Ok((best, least))
}
