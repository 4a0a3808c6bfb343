//! Regions whose records several nodes keep, in runs of membership: whichever node can makes one, all are their masters,
//! write, move and free them, while nodes die and come back.
//!
//! The first word of a region is its number, which whoever finds 0 puts there; the second one is its complement. So bytes of
//! another region show, and so does a region that is read after its free has ended.

use dunlin_fabric_sim::Random;
use dunlin_tier::message::Refusal;
use dunlin_tier::{RecordError, Rights};
use dunlin_tier_node::{Lmr, RequestError, Spec, Tier};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of names.
const NAMES: u64 = 3;

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Regions whose frees have ended.
    freed: BTreeSet<u64>,
}

/// The model of a run. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedRegions(Arc<Mutex<State>>);

fn is_absent(error: &RequestError) -> bool {
    matches!(error, RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. })
}

fn name(number: u64) -> String {
    format!("shared/{number}")
}

impl SharedRegions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a word of bytes that are at another node. `None` if they are at this one, whose memory is its own also while
    /// others take it for dead, or if they cannot be read.
    fn word<F: dunlin_fabric::Fabric>(region: &Lmr<F>, offset: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        match region.read_here(offset, &mut bytes) {
            Ok(false) => {}
            _ => return None,
        }
        region.read(offset, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Checks the two words of a region; a region without a number gets one. Returns the number or the violation. Returns
    /// `None` if the region cannot be read or written.
    fn number<F: dunlin_fabric::Fabric>(&self, region: &Lmr<F>) -> Option<Result<u64, String>> {
        let freed = self.state().freed.clone();
        let number = match Self::word(region, 0)? {
            0 => {
                let mine = {
                    let mut state = self.state();
                    state.last += 1;
                    state.last
                };
                match region.compare_swap(0, 0, mine).ok()? {
                    0 => mine,
                    other => other,
                }
            }
            number => number,
        };
        if freed.contains(&number) {
            return Some(Err(format!("region {number} is read after its free has ended")));
        }
        match Self::word(region, 8)? {
            word if word == 0 || word == !number => {}
            word => return Some(Err(format!("region {number} has the bytes of region {}", !word))),
        }
        region.write(8, &(!number).to_le_bytes()).ok()?;
        Some(Ok(number))
    }

    /// Does one thing with one region; returns a violation.
    pub(super) fn act<F: dunlin_fabric::Fabric>(
        &self,
        tier: &Tier<F>,
        random: &mut Random,
        nodes: usize,
    ) -> Option<String> {
        let name = name(random.below(NAMES));
        let to = crate::draw::tier::name(random.below(nodes as u64) as usize);
        let region = match tier.map(&name, Rights::ALL) {
            Ok(region) => region,
            Err(error) if is_absent(&error) => {
                // Another node may be quicker, or the node that shall store it be gone.
                let spec = Spec::on(&to).named(&name).grant_anyone(Rights::ALL);
                let _made = tier.malloc(64, spec);
                return None;
            }
            Err(_) => return None,
        };
        let number = match self.number(&region)? {
            Ok(number) => number,
            Err(what) => return Some(what),
        };
        match random.below(8) {
            0 => {
                let freed = region.free().is_ok().then_some(number);
                self.state().freed.extend(freed);
            }
            1 => drop(region.move_to(&to)),
            2 => drop(region.grant("somebody", Rights::READ)),
            3 => drop(region.revoke("somebody", Rights::READ)),
            _ => {}
        }
        None
    }

    /// In calm: a region is there for this node, and can be freed, or its name can be had; returns the reason why not.
    pub(super) fn check<F: dunlin_fabric::Fabric>(&self, tier: &Tier<F>) -> Result<(), RequestError> {
        for name in (0..NAMES).map(name) {
            match tier.map(&name, Rights::ALL) {
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
                Ok(region) => match region.free() {
                    // Another node frees it, too.
                    Err(error) if is_absent(&error) => {}
                    freed => freed?,
                },
            }
        }
        Ok(())
    }
}
