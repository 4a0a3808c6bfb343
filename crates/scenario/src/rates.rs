//! Operation rates of a cluster's NICs, computed per profile when a run first needs them.

use dunlin_fabric::Rates;
use dunlin_rnic_model::rates::{RatesError, rates};
use dunlin_rnic_model::sweep::Effort;
use dunlin_rnic_model::{Profile, ProfileError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// Rates computed in this process, by profile name. They are deterministic, so any thread may compute them.
static KNOWN: Mutex<BTreeMap<String, Arc<Rates>>> = Mutex::new(BTreeMap::new());

/// The reason why a cluster has no rates.
#[derive(Debug, Error)]
pub enum ModelledRatesError {
    /// The profile is unknown or invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The model yields no rates for it.
    #[error(transparent)]
    Rates(#[from] RatesError),
}

/// Returns the rates of a built-in profile, as RF-RPC's one-time benchmark gives them on the model.
///
/// # Errors
/// Returns an error for an unknown profile, or one on which the benchmark cannot be run.
pub fn modelled_rates(profile: &str) -> Result<Arc<Rates>, ModelledRatesError> {
    // Held during the computation, which takes a moment: threads that run a figure's runs in parallel need
    // the same rates.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(rates) = known.get(profile) {
        return Ok(Arc::clone(rates));
    }
    let found = Arc::new(rates(&Profile::built_in(profile)?, Effort::Quick)?);
    known.insert(profile.to_owned(), Arc::clone(&found));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cluster_has_its_own() {
        let [one, other] = ["rf-rpc", "rf-rpc-connectx4"].map(|name| modelled_rates(name).unwrap());
        assert_ne!(one.rows(), other.rows());
        assert_eq!(other.source().to_string(), "of the model of rf-rpc-connectx4");
        assert!(Arc::ptr_eq(&one, &modelled_rates("rf-rpc").unwrap()), "computed once");
        assert!(matches!(modelled_rates("rf-rpd"), Err(ModelledRatesError::Profile(_))));
    }
}
