//! Errors of figures.

use dunlin_rnic_model::ProfileError;
use dunlin_rnic_model::driver::TestError;
use dunlin_scenario::load::LoadError;
use dunlin_scenario::measured_run::CourseError;
use thiserror::Error;

/// An error of a figure.
#[derive(Debug, Error)]
pub enum FigureError {
    /// No figure has this name.
    #[error("there is no figure '{id}'; did you mean '{nearest}'? They are {known}")]
    Unknown {
        /// The requested name.
        id: String,
        /// The nearest known name.
        nearest: String,
        /// All known names.
        known: String,
    },
    /// The profile is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The test cannot be run on the profile.
    #[error(transparent)]
    Test(#[from] TestError),
    /// A timed run other than a load did not come to its end.
    #[error("{series} at {x}: {error}")]
    MeasuredRun {
        /// The run's series.
        series: String,
        /// The run's position along x.
        x: u32,
        /// The reason.
        error: CourseError,
    },
    /// A load did not come to its end.
    #[error("{series} at {x}: {error}")]
    Load {
        /// The run's series.
        series: String,
        /// The run's position along x.
        x: u32,
        /// The reason.
        error: LoadError,
    },
}
