//! The common parts of LITE's figures: loads of the tier and of native WRITEs, and registration.

use super::{Effort, FigureError};
use dunlin_rnic_model::{Parameter, Profile};
use dunlin_scenario::native::NativeWrites;
use dunlin_scenario::tier::TierLoad;

pub(super) const PROFILE: &str = "lite";
/// The tier's series.
pub(super) const TIER: &str = "the tier";

/// Returns the native load of a thread that writes `bytes` bytes to a region of 1 MiB.
pub(super) fn native(bytes: u32, effort: Effort) -> NativeWrites {
    let (warm_up, measured) = (warm_up(1, effort), measured(effort));
    NativeWrites { bytes, warm_up, measured, ..NativeWrites::of(PROFILE) }
}

/// Returns the operations before a measurement: enough to fill the NICs' caches.
pub(super) fn warm_up(regions: u32, effort: Effort) -> u64 {
    2_000 + 2 * u64::from(regions).min(measured(effort))
}

/// Returns the measured operations of a thread.
pub(super) fn measured(effort: Effort) -> u64 {
    match effort {
        Effort::Full => 10_000,
        Effort::Quick => 1_000,
    }
}

/// Registration of memory for an RNIC, or its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registering {
    pub(super) bytes: u64,
    /// Whether the memory is deregistered.
    pub(super) ends: bool,
}

impl Registering {
    /// Returns the time in microseconds.
    pub(super) fn microseconds(self) -> Result<f64, FigureError> {
        let profile = Profile::built_in(PROFILE)?;
        let pages = self.bytes.div_ceil(profile.number(Parameter::PageBytes) as u64) as f64;
        let (once, page) = match self.ends {
            false => (Parameter::Register, Parameter::RegisterPage),
            true => (Parameter::Deregister, Parameter::DeregisterPage),
        };
        Ok((profile.number(once) + pages * profile.number(page)) / 1e3)
    }
}

/// Returns the load of a thread that writes `bytes` bytes to a region of 1 MiB.
pub(super) fn tier(bytes: u32, effort: Effort) -> TierLoad {
    TierLoad { bytes, warm_up: warm_up(1, effort), measured: measured(effort), ..TierLoad::of(PROFILE) }
}
