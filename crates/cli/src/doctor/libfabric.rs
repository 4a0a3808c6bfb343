//! libfabric: the library, the usable providers with their endpoints, and an opened `tcp` provider; or the
//! reason why it is missing.

use super::Finding;

const NAME: &str = "fabric ofi";

/// Opens libfabric as a server would.
#[cfg(feature = "ofi")]
pub(super) fn finding() -> Finding {
    use dunlin::errors::WithSources;
    use dunlin_fabric_ofi::{OfiConfig, OfiFabric, OpenError};
    match OfiFabric::new("tcp", OfiConfig::default()) {
        Ok(_) => Finding::ok(NAME, format!("libfabric, opened; starts on its provider tcp; {}", offers())),
        Err(error) => {
            let advice = match error {
                OpenError::Library(_) => {
                    "apt-get install libfabric1, or dnf install libfabric; only ofi: addresses need it"
                }
                OpenError::Provider { .. } => {
                    "see `fi_info -p tcp -t FI_EP_MSG` (package libfabric-bin); FI_PROVIDER may hide it"
                }
                // The system refuses.
                _ => "see `ulimit -n`, and whether a network interface is up",
            };
            Finding::warn(NAME, WithSources(&error).to_string(), advice)
        }
    }
}

/// Lists the providers that `ofi:` addresses can name.
#[cfg(feature = "ofi")]
fn offers() -> String {
    use dunlin_fabric_ofi::{EndpointKind, providers};
    let known = providers().unwrap_or_default();
    let of = |kind| {
        let names: Vec<&str> =
            known.iter().filter(|(_, its)| *its == kind).map(|(name, _)| name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let (connected, datagrams) = (of(EndpointKind::Connected), of(EndpointKind::Datagram));
    format!("providers with connections: {connected}; with reliable datagrams: {datagrams}")
}

/// Reports that this build has no libfabric support.
#[cfg(not(feature = "ofi"))]
pub(super) fn finding() -> Finding {
    Finding::ok(NAME, "not in this build, which has no ofi: addresses (cargo feature ofi)")
}
