//! The address of a service: `shm:NAME`, `rdma:HOST:PORT`, `ofi:PROVIDER:HOST:PORT`, `tcp:HOST:PORT` or
//! `auto:HOST:PORT`.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The back-end that an address selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// Shared memory between processes of one host.
    Shm,
    /// The deterministic simulator.
    Sim,
    /// RDMA verbs. The name is the HOST:PORT of the control connection, which is TCP.
    Rdma,
    /// libfabric. The name is PROVIDER:HOST:PORT; HOST:PORT is the control connection, which is TCP.
    Ofi,
    /// Stock Thrift over TCP: not a fabric. Only typed services use it.
    Tcp,
    /// A service that the nodes of the memory tier reach: SERVICE, or SERVICE@NODE. Calls go through the node of this host.
    Node,
    /// No fixed back-end: the server at HOST:PORT names the back-ends that both sides can use.
    Auto,
}

impl Scheme {
    /// Returns the text before the colon.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scheme::Shm => "shm",
            Scheme::Sim => "sim",
            Scheme::Rdma => "rdma",
            Scheme::Ofi => "ofi",
            Scheme::Tcp => "tcp",
            Scheme::Auto => "auto",
            Scheme::Node => "node",
        }
    }

    /// Returns whether names are HOST:PORT or end with it.
    const fn has_port(self) -> bool {
        matches!(self, Scheme::Rdma | Scheme::Ofi | Scheme::Tcp | Scheme::Auto)
    }
}

/// An address: a scheme and the name within it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    scheme: Scheme,
    name: String,
}

/// The reason why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text has no `scheme:` prefix.
    #[error("'{0}' has no scheme; write for example shm:{0}")]
    NoScheme(String),
    /// This build does not know the scheme.
    #[error(
        "'{0}' is not a scheme that this build knows; use shm:NAME, rdma:HOST:PORT, ofi:tcp:HOST:PORT, tcp:HOST:PORT, auto:HOST:PORT or node:SERVICE"
    )]
    UnknownScheme(String),
    /// The part after the colon is not a valid name.
    #[error("'{name}' cannot be a name: {why}")]
    BadName {
        /// The name as given.
        name: String,
        /// The reason why it is not valid.
        why: &'static str,
    },
}

/// The longest name in bytes: the limit of an abstract Unix socket address, less Dunlin's prefix.
pub const MAX_NAME: usize = 90;

impl Address {
    /// Makes an address from a scheme and a name.
    ///
    /// A name is 1 to [`MAX_NAME`] printable ASCII characters without spaces. Names of [`Scheme::Rdma`],
    /// [`Scheme::Tcp`] and [`Scheme::Auto`] are HOST:PORT, names of [`Scheme::Ofi`] are PROVIDER:HOST:PORT.
    /// IPv6 addresses are written in brackets.
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
        if scheme == Scheme::Ofi
            && provider_and_rest(name).is_none_or(|(_, rest)| host_and_port(rest).is_none())
        {
            return bad("it has to be PROVIDER:HOST:PORT, as in tcp:10.0.0.1:7000");
        }
        if scheme != Scheme::Ofi && scheme.has_port() && host_and_port(name).is_none() {
            return bad("it has to be HOST:PORT, as in 10.0.0.1:7000 or [fe80::1]:7000");
        }
        Ok(Address { scheme, name: name.to_owned() })
    }

    /// Returns the scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the part after the colon.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host (without brackets) and the port, or `None` for a scheme without them.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        let place = match self.scheme {
            Scheme::Ofi => provider_and_rest(&self.name)?.1,
            scheme if scheme.has_port() => &self.name,
            _ => return None,
        };
        host_and_port(place)
    }

    /// Returns libfabric's provider, or `None` if the address names none.
    pub fn provider(&self) -> Option<&str> {
        (self.scheme == Scheme::Ofi).then(|| provider_and_rest(&self.name).map(|(provider, _)| provider))?
    }
}

/// A provider's name consists of words; semicolons separate layered providers.
fn provider_and_rest(name: &str) -> Option<(&str, &str)> {
    let (provider, rest) = name.split_once(':')?;
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b';';
    (!provider.is_empty() && provider.len() <= 32 && provider.bytes().all(word)).then_some((provider, rest))
}

fn host_and_port(name: &str) -> Option<(&str, u16)> {
    let (host, port) = name.rsplit_once(':')?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = bracketed.unwrap_or(host);
    let plain = bracketed.is_some() || !host.contains([':', '[', ']']);
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    (plain && digits && !host.is_empty()).then_some(())?;
    Some((host, port.parse().ok()?))
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
            "rdma" => Scheme::Rdma,
            "ofi" => Scheme::Ofi,
            "tcp" => Scheme::Tcp,
            "auto" => Scheme::Auto,
            "node" => Scheme::Node,
            other => return Err(AddressError::UnknownScheme(other.chars().take(20).collect())),
        };
        Address::new(scheme, name)
    }
}

/// A value that names an address: an [`Address`] or its text (`auto:node-7:7000`), owned or borrowed.
/// Functions that connect or serve take it.
pub trait IntoAddress {
    /// Converts to the address.
    ///
    /// # Errors
    /// The text is not an address.
    fn into_address(self) -> Result<Address, AddressError>;
}

impl IntoAddress for Address {
    fn into_address(self) -> Result<Address, AddressError> {
        Ok(self)
    }
}

impl IntoAddress for &Address {
    fn into_address(self) -> Result<Address, AddressError> {
        Ok(self.clone())
    }
}

impl IntoAddress for &str {
    fn into_address(self) -> Result<Address, AddressError> {
        self.parse()
    }
}

impl IntoAddress for String {
    fn into_address(self) -> Result<Address, AddressError> {
        self.parse()
    }
}

impl IntoAddress for &String {
    fn into_address(self) -> Result<Address, AddressError> {
        self.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_names_the_same_address() {
        let address: Address = "rdma:node-7:7000".parse().unwrap();
        let text = address.to_string();
        let forms = [
            (&address).into_address(),
            (&text).into_address(),
            text.as_str().into_address(),
            text.clone().into_address(),
            address.clone().into_address(),
        ];
        assert!(forms.into_iter().all(|form| form == Ok(address.clone())));
        assert_eq!("node-7".into_address(), Err(AddressError::NoScheme("node-7".into())));
    }

    #[test]
    fn reads_what_it_prints() {
        let address: Address = "shm:orders-1".parse().unwrap();
        assert_eq!((address.scheme(), address.name()), (Scheme::Shm, "orders-1"));
        assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
    }

    #[test]
    fn hosts_and_ports() {
        for (text, host, port) in [
            ("rdma:10.0.0.1:7000", "10.0.0.1", 7000),
            ("rdma:[fe80::1]:0", "fe80::1", 0),
            ("rdma:node-7:65535", "node-7", 65535),
            ("tcp:[::1]:9090", "::1", 9090),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.host_and_port(), Some((host, port)));
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "rdma:host",
            "rdma::7000",
            "rdma:host:",
            "rdma:host:65536",
            "rdma:host:+1",
            "rdma:fe80::1:7000",
            "rdma:[]:7000",
        ] {
            assert!(matches!(text.parse::<Address>(), Err(AddressError::BadName { .. })), "{text}");
        }
        assert_eq!("shm:a:1".parse::<Address>().unwrap().host_and_port(), None);
    }

    #[test]
    fn providers() {
        let address: Address = "ofi:tcp:[fe80::1]:7000".parse().unwrap();
        assert_eq!((address.provider(), address.host_and_port()), (Some("tcp"), Some(("fe80::1", 7000))));
        assert_eq!(address.to_string(), "ofi:tcp:[fe80::1]:7000");
        assert_eq!("rdma:tcp:7000".parse::<Address>().unwrap().provider(), None);
        for text in
            ["ofi:10.0.0.1:7000", "ofi::h:1", "ofi:tcp:h", "ofi:TCP:h:1", "ofi:tcp:h:65536", "ofi:tcp"]
        {
            assert!(matches!(text.parse::<Address>(), Err(AddressError::BadName { .. })), "{text}");
        }
    }

    #[test]
    fn tells_what_is_wrong() {
        assert_eq!("orders".parse::<Address>(), Err(AddressError::NoScheme("orders".into())));
        assert!(matches!("udp:x".parse::<Address>(), Err(AddressError::UnknownScheme(_))));
        assert!(matches!("shm:".parse::<Address>(), Err(AddressError::BadName { .. })));
        assert!(matches!("shm:a b".parse::<Address>(), Err(AddressError::BadName { .. })));
        assert!(matches!(
            format!("shm:{}", "x".repeat(91)).parse::<Address>(),
            Err(AddressError::BadName { .. })
        ));
    }
}
