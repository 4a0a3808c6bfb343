//! The bench room: the measurements of `dunlin bench`, each against a physical floor or against what it competes with,
//! and the rates of devices by which clients choose between fetching and writing back.
//!
//! Measurement loops and the services that they call come in. Mechanisms of the engine, options of the command line and
//! everything that other programs measure with (`dunlin-floor`, `dunlin-report`, `dunlin-workload`) never do.

pub mod measure;
pub mod rates;
pub mod typed_service;

// The service of `measure::atb_latency` and of the measurements beside it.
dunlin::include_service!("atb");
