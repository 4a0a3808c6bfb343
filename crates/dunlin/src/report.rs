//! The error type of `main`.

use dunlin_fabric::WithSources;
use std::error::Error;
use std::fmt;

/// Any error, for `main` and for programs that only report errors. `?` converts every error into it. A program whose
/// `main` returns it prints the error's message and those of its sources, in place of Rust's form for programmers.
///
/// It is no [`Error`] itself, because its conversion takes all of these.
///
/// ```no_run
/// fn main() -> Result<(), dunlin::Report> {
///     let address: dunlin::Address = std::env::args().nth(1).unwrap_or_default().parse()?;
///     println!("{address}");
///     Ok(())
/// }
/// ```
pub struct Report(Box<dyn Error + Send + Sync>);

impl Report {
    /// Returns the error.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Report {
    fn from(error: E) -> Self {
        Report(error.into())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", WithSources(&*self.0))
    }
}

// `main` prints this form.
impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_prints_the_message_and_its_sources() {
        let attempt = || -> Result<(), Report> {
            "no address".parse::<dunlin_fabric::Address>()?;
            Ok(())
        };
        let report = attempt().unwrap_err();
        assert_eq!(format!("{report:?}"), WithSources(report.error()).to_string());
        assert!(!format!("{report:?}").contains('{'), "{report:?}");
        assert_eq!(format!("{:?}", Report::from("text alone")), "text alone");
    }
}
