//! This process, as the system sees it.

/// Raises the soft limit of open descriptors to the hard limit: each connection takes a few.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::info!(%error, "the limit of open descriptors stays where it is");
        }
    }
}

/// Returns the effective user of this process.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
