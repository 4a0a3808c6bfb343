//! The whole text of an error.

use std::error::Error;
use std::fmt;

/// Displays an error followed by its sources, each behind a colon. The text of an error alone does not repeat
/// that of its source.
#[derive(Clone, Copy, Debug)]
pub struct WithSources<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for WithSources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateError, ListenError, RegisterError};
    use std::io;

    #[test]
    fn each_source_follows_once() {
        let source = io::Error::other("no more");
        let memory = CreateError::Register(RegisterError::OutOfMemory { length: 9, source });
        let text = WithSources(&memory).to_string();
        assert!(text.starts_with("cannot get 9 bytes") && text.ends_with("ask for less: no more"), "{text}");
        let address = "shm:x".parse().unwrap();
        assert_eq!(
            WithSources(&ListenError::WrongScheme(address)).to_string(),
            "shm:x is not an address of this fabric"
        );
    }
}
