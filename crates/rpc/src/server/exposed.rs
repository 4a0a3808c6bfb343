//! Memory that the server exposes by name (FLOCK section 6).

use crate::error::ServeError;
use dunlin_fabric::{Access, Fabric, Link, Memory, Region, RegionKey};
use dunlin_wire::handshake::{Grant, MAX_REGION_NAME_BYTES};

/// A region with its name.
#[derive(Debug)]
pub(crate) struct Exposed<F: Fabric> {
    pub(crate) name: String,
    pub(crate) region: Region<F::Memory>,
    pub(crate) access: Access,
}

/// Checks the regions of a server.
pub(crate) fn check<F: Fabric>(exposed: &[Exposed<F>]) -> Result<(), ServeError> {
    for (at, one) in exposed.iter().enumerate() {
        let out = |value: usize, must| {
            Err(ServeError::Setting { what: "an exposed region", value: value as u64, must })
        };
        if one.name.is_empty() || one.name.len() > MAX_REGION_NAME_BYTES {
            return out(one.name.len(), "named by 1 to 255 bytes");
        }
        if exposed[..at].iter().any(|other| other.name == one.name) {
            return out(at, "named differently from the others");
        }
        if one.access == Access::LOCAL || !one.region.memory().access().contains(one.access) {
            return out(at, "registered for the access under which it is exposed");
        }
    }
    Ok(())
}

/// The regions that a connection has attached, each granted once. Most have none.
#[derive(Debug, Default)]
pub(crate) struct Grants(Option<Box<Granted>>);

/// The places of regions, and their keys.
#[derive(Debug, Default)]
struct Granted(Vec<(usize, RegionKey)>);

impl Grants {
    /// Grants a region by name, and returns the answer to the client. An unknown name and a grant that fails are the
    /// same to the client.
    pub(crate) fn attach<F: Fabric>(&mut self, exposed: &[Exposed<F>], link: &F::Link, name: &str) -> Grant {
        let refused = Grant { key: 0, length: 0, purpose: 0 };
        let Some(at) = exposed.iter().position(|exposed| exposed.name == name) else { return refused };
        let Exposed { region, access, .. } = &exposed[at];
        let granted = self.0.get_or_insert_default();
        let known = granted.0.iter().find(|(of, _)| *of == at).map(|(_, key)| *key);
        let key = match known {
            Some(key) => key,
            None => match link.grant(region.memory(), *access) {
                Ok(key) => {
                    granted.0.push((at, key));
                    key
                }
                Err(error) => {
                    tracing::warn!(target: "dunlin::server", name, %error, "a region could not be granted");
                    return refused;
                }
            },
        };
        Grant { key: key.0, length: region.memory().length() as u64, purpose: access.bits() }
    }
}
