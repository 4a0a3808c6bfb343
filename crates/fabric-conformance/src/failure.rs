//! How a case says that a fabric is wrong.

use std::fmt;
use std::panic::Location;

/// What was expected and did not hold, with its place in the suite. Any error turns into one by `?`.
#[derive(Clone, Debug)]
pub struct Failure {
    message: String,
    place: &'static Location<'static>,
}

impl Failure {
    /// A failure at the caller's place.
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
        Failure::new(error.to_string())
    }
}

/// How a role of a case ends.
pub type Verdict = Result<(), Failure>;

/// Leaves the role with a failure unless the condition holds.
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

/// Leaves the role with a failure unless both are equal.
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

/// Leaves the role with a failure unless the value matches the pattern.
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
