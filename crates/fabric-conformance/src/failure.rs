//! The failures of a case, which show that a fabric is wrong.

use dunlin_fabric::WithSources;
use std::fmt;
use std::panic::Location;

/// An expectation that did not hold, with its place in the suite. `?` converts any error into it.
#[derive(Clone, Debug)]
pub struct Failure {
    message: String,
    place: &'static Location<'static>,
}

impl Failure {
    /// Makes a failure with the caller's place.
    #[track_caller]
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), place: Location::caller() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.place.file(), self.place.line(), self.message)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Failure::new(WithSources(&error).to_string())
    }
}

/// The result of a role of a case.
pub type Verdict = Result<(), Failure>;

/// Returns a failure from the role unless the condition holds.
#[macro_export]
macro_rules! expect {
    ($condition:expr $(,)?) => {
        $crate::expect!($condition, "expected {}", stringify!($condition))
    };
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Failure::new(format!($($message)+)));
        }
    };
}

/// Returns a failure from the role unless both values are equal.
#[macro_export]
macro_rules! expect_eq {
    ($left:expr, $right:expr $(,)?) => {
        $crate::expect_eq!($left, $right, "{}", stringify!($left))
    };
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    let what = format!($($message)+);
                    return Err($crate::Failure::new(format!("{what}: expected {right:?}, got {left:?}")));
                }
            }
        }
    };
}

/// Returns a failure from the role unless the value matches the pattern.
#[macro_export]
macro_rules! expect_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)? $(,)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => {
                let expected = stringify!($pattern);
                return Err($crate::Failure::new(format!(
                    "{}: expected {expected}, got {other:?}", stringify!($value)
                )));
            }
        }
    };
}
