//! Where a service is found: `shm:NAME` now, with room for the schemes of the other back-ends.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The back-end that an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// Shared memory between processes of one host.
    Shm,
    /// The deterministic simulator.
    Sim,
}

impl Scheme {
    /// The text before the colon.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scheme::Shm => "shm",
            Scheme::Sim => "sim",
        }
    }
}

/// An address: a scheme and the name within it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    scheme: Scheme,
    name: String,
}

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// No `scheme:` in front.
    #[error("'{0}' has no scheme; write for example shm:{0}")]
    NoScheme(String),
    /// A scheme that this build does not know.
    #[error("'{0}' is not a scheme that this build knows; use shm:NAME")]
    UnknownScheme(String),
    /// The part behind the colon cannot be used.
    #[error("'{name}' cannot be a name: {why}")]
    BadName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// The longest name: what fits an abstract Unix socket address with our prefix.
pub const MAX_NAME: usize = 90;

impl Address {
    /// Makes an address of a scheme and a name. Names are 1 to [`MAX_NAME`] printable ASCII characters
    /// without spaces.
    pub fn new(scheme: Scheme, name: &str) -> Result<Self, AddressError> {
        let bad = |why| Err(AddressError::BadName { name: name.chars().take(100).collect(), why });
        if name.is_empty() {
            return bad("it is empty");
        }
        if name.len() > MAX_NAME {
            return bad("it is longer than 90 bytes");
        }
        if !name.bytes().all(|b| b.is_ascii_graphic()) {
            return bad("only printable ASCII characters without spaces may stand in it");
        }
        Ok(Address { scheme, name: name.to_owned() })
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The part behind the colon.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme.as_str(), self.name)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let Some((scheme, name)) = text.split_once(':') else {
            return Err(AddressError::NoScheme(text.chars().take(100).collect()));
        };
        let scheme = match scheme {
            "shm" => Scheme::Shm,
            "sim" => Scheme::Sim,
            other => return Err(AddressError::UnknownScheme(other.chars().take(20).collect())),
        };
        Address::new(scheme, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints() {
        let address: Address = "shm:orders-1".parse().unwrap();
        assert_eq!((address.scheme(), address.name()), (Scheme::Shm, "orders-1"));
        assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
    }

    #[test]
    fn tells_what_is_wrong() {
        assert_eq!("orders".parse::<Address>(), Err(AddressError::NoScheme("orders".into())));
        assert!(matches!("tcp:x".parse::<Address>(), Err(AddressError::UnknownScheme(_))));
        assert!(matches!("shm:".parse::<Address>(), Err(AddressError::BadName { .. })));
        assert!(matches!("shm:a b".parse::<Address>(), Err(AddressError::BadName { .. })));
        assert!(matches!(
            format!("shm:{}", "x".repeat(91)).parse::<Address>(),
            Err(AddressError::BadName { .. })
        ));
    }
}
