//! What can be wrong with a profile.

/// A profile that cannot be used: what, where, and what was probably meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No profile of that name comes with the crate.
    #[error("there is no profile '{name}'; did you mean '{nearest}'? The profiles are {known}")]
    UnknownProfile {
        /// What was asked for.
        name: String,
        /// The nearest known name.
        nearest: String,
        /// All of them.
        known: String,
    },
    /// The cluster names a NIC that does not come with the crate.
    #[error("{file}:{line}: there is no NIC '{name}'; did you mean '{nearest}'?")]
    UnknownNic {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What it names.
        name: String,
        /// The nearest known name.
        nearest: String,
    },
    /// The text is no TOML.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What the reader of TOML says.
        message: String,
    },
    /// A section or key that profiles do not have.
    #[error("{file}:{line}: unknown key '{name}'; did you mean '{nearest}'?")]
    UnknownKey {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What stands there, with its section.
        name: String,
        /// The nearest known key.
        nearest: String,
    },
    /// A key of the NIC in the cluster's file, or the other way round.
    #[error("{file}:{line}: '{name}' belongs to {belongs}")]
    WrongFile {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key.
        name: String,
        /// Where it belongs.
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
        /// What it is.
        meaning: &'static str,
    },
    /// A value is not what it has to be.
    #[error("{file}:{line}: '{name}' {problem}")]
    Value {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The key.
        name: String,
        /// What is wrong, and what to write.
        problem: String,
    },
}

/// The candidate that goes on where the word ends (`hatrpc-5` of `hatrpc-5-512`), else the one with the fewest letters wrong, missing,
/// too many or swapped; the first of equals; empty without candidates.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> &'a str {
    let goes_on =
        |candidate: &str| candidate.strip_prefix(word).is_some_and(|rest| rest.starts_with(['-', '_']));
    let far = |candidate: &&str| (!goes_on(candidate), strsim::osa_distance(word, candidate));
    candidates.into_iter().min_by_key(far).unwrap_or_default()
}
