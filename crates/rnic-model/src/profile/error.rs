//! The errors of a profile.

/// An invalid profile: the problem, its place, and the probable intention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No built-in profile has this name.
    #[error("there is no profile '{name}'; did you mean '{nearest}'? The profiles are {known}")]
    UnknownProfile {
        /// The requested name.
        name: String,
        /// The nearest known name.
        nearest: String,
        /// All known names.
        known: String,
    },
    /// The cluster names a NIC that is not built in.
    #[error("{file}:{line}: there is no NIC '{name}'; did you mean '{nearest}'?")]
    UnknownNic {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The name of the NIC.
        name: String,
        /// The nearest known name.
        nearest: String,
    },
    /// The text is not valid TOML.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The message of the TOML parser.
        message: String,
    },
    /// Profiles have no such section or key.
    #[error("{file}:{line}: unknown key '{name}'; did you mean '{nearest}'?")]
    UnknownKey {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The unknown key, with its section.
        name: String,
        /// The nearest known key.
        nearest: String,
    },
    /// A key of the NIC is in the cluster's file, or the reverse.
    #[error("{file}:{line}: '{name}' belongs to {belongs}")]
    WrongFile {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key.
        name: String,
        /// The file where it belongs.
        belongs: &'static str,
    },
    /// A key is missing.
    #[error("{file}: [{section}] lacks '{key}': {meaning}")]
    Missing {
        /// The file.
        file: String,
        /// The section.
        section: &'static str,
        /// The key.
        key: &'static str,
        /// Its meaning.
        meaning: &'static str,
    },
    /// A value is invalid.
    #[error("{file}:{line}: '{name}' {problem}")]
    Value {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key.
        name: String,
        /// The problem, and the remedy.
        problem: String,
    },
}

/// Returns the candidate nearest to a word. A candidate that continues the word after `-` or `_`
/// (`hatrpc-5-512` for `hatrpc-5`) comes first; otherwise the one with the fewest wrong, missing, extra or
/// swapped letters. The first of equals wins; the result is empty without candidates.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> &'a str {
    let goes_on =
        |candidate: &str| candidate.strip_prefix(word).is_some_and(|rest| rest.starts_with(['-', '_']));
    let far = |candidate: &&str| (!goes_on(candidate), strsim::osa_distance(word, candidate));
    candidates.into_iter().min_by_key(far).unwrap_or_default()
}
