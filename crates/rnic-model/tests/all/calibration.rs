//! The built-in profiles match the raw-verb curves: at most 15 percent median error on each.

use dunlin_rnic_model::Profile;
use dunlin_rnic_model::calibrate::{CalibrateError, check, curves, free};
use dunlin_rnic_model::sweep::Effort;

const MOST_PERCENT: f64 = 15.0;

#[test]
fn every_raw_verb_curve_is_met() {
    let mut seen = 0;
    for name in ["apt", "connect-ib", "flock"] {
        let profile = Profile::built_in(name).expect("built in");
        for residual in check(&profile, Effort::Quick).expect("it can be checked") {
            seen += residual.points;
            assert!(
                residual.median_percent <= MOST_PERCENT,
                "{} on {}: {:.1} %",
                residual.curve,
                residual.profile,
                residual.median_percent
            );
        }
    }
    assert!(seen > 140, "{seen} points");
}

#[test]
fn only_raw_verbs_are_fitted_to() {
    for name in ["apt", "connect-ib", "flock"] {
        let profile = Profile::built_in(name).expect("built in");
        for curve in curves(&profile).expect("curves") {
            let raw = ["READ", "WRITE", "SEND", "in-bound over out-bound"];
            assert!(raw.iter().any(|verb| curve.name.contains(verb)), "{}", curve.name);
        }
        assert!(free(&profile).count() < 16, "few parameters");
    }
}

#[test]
fn a_nic_without_raw_curves_cannot_be_calibrated() {
    let profile = Profile::built_in("rf-rpc-connectx4").expect("built in");
    assert!(matches!(curves(&profile), Err(CalibrateError::NoCurve { .. })));
    assert_eq!(free(&profile).count(), 0);
}
