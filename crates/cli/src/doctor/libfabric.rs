//! libfabric: the library and its provider `tcp`, or why there is none.

use super::Finding;

const NAME: &str = "fabric ofi";

/// Opens it as a server would.
#[cfg(feature = "ofi")]
pub(super) fn finding() -> Finding {
    use dunlin_fabric_ofi::{OfiConfig, OfiFabric, OpenError};
    match OfiFabric::new("tcp", OfiConfig::default()) {
        Ok(_) => Finding::ok(NAME, "libfabric, opened; starts on its provider tcp"),
        Err(error) => {
            let advice = match error {
                OpenError::Library(_) => {
                    "apt-get install libfabric1, or dnf install libfabric; only ofi: addresses need it"
                }
                OpenError::Provider { .. } => {
                    "see `fi_info -p tcp -t FI_EP_MSG` (package libfabric-bin); FI_PROVIDER may hide it"
                }
                OpenError::System { .. } => "see `ulimit -n`, and whether a network interface is up",
            };
            Finding::warn(NAME, error.to_string(), advice)
        }
    }
}

/// This build has none.
#[cfg(not(feature = "ofi"))]
pub(super) fn finding() -> Finding {
    Finding::ok(NAME, "not in this build, which has no ofi: addresses (cargo feature ofi)")
}
