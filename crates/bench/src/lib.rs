//! The measurements of `dunlin bench`, each compared with a physical floor or with a competitor.
//!
//! This crate contains measurement loops and the services that they call. Engine mechanisms and
//! command-line options do not belong here, nor do the tools that other programs measure with
//! (`dunlin-floor`, `dunlin-report`, `dunlin-workload`) and the rates of a device (`dunlin-device-rates`).

pub mod measure;
pub mod typed_service;

// The service of `measure::atb_latency` and the other ATB measurements.
dunlin::include_service!("atb");
