//! What the NICs of a cluster do in a second: each profile's own, computed when a run first needs it.

use dunlin_fabric::Rates;
use dunlin_rnic_model::rates::{RatesError, rates};
use dunlin_rnic_model::sweep::Effort;
use dunlin_rnic_model::{Profile, ProfileError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// Those that were computed in this process, by the profile's name. They are the same each time, so it does not matter who was first.
static KNOWN: Mutex<BTreeMap<String, Arc<Rates>>> = Mutex::new(BTreeMap::new());

/// Why a cluster has no rates.
#[derive(Debug, Error)]
pub enum ModelledRatesError {
    /// No such profile, or a bad one.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The model has none for it.
    #[error(transparent)]
    Rates(#[from] RatesError),
}

/// The rates of a built-in profile, as RF-RPC's one-time benchmark gives them on the model.
///
/// # Errors
/// An unknown profile, or one on which the benchmark cannot be run.
pub fn modelled_rates(profile: &str) -> Result<Arc<Rates>, ModelledRatesError> {
    // Held while they are computed, which takes a moment: threads that run a figure's runs side by side need the same ones.
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
