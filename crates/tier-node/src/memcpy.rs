//! Copies between regions (`LT_memcpy`, `LT_memmove`).

use crate::command::failed;
use crate::error::OperationError;
use crate::lmr::Lmr;
use crate::tier::Tier;
use crate::within::Within;
use dunlin_fabric::Fabric;
use dunlin_tier::message::Request;
use dunlin_tier::{AccessError, Cut, HandleTable, Kind, LmrId, Rights};
use std::sync::Arc;

/// An offset in a mapped region: [`Lmr::at`]. It is checked by the operation that uses it.
#[derive(Debug)]
#[must_use = "a position is an argument of Tier::memcpy"]
pub struct Position<'a, L> {
    /// The region.
    pub lmr: &'a L,
    /// The offset in bytes.
    pub offset: u64,
}

impl<L> Clone for Position<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Position<'_, L> {}

/// Makes the methods for copies of a tier and its regions, by `Within::copy` and `check_own`. The text says how long they
/// block.
#[doc(hidden)]
#[macro_export]
macro_rules! memcpy_methods {
    ($tier:ident, $lmr:ident, $within:ident, $fabric:path, $blocks:literal) => {
        impl<F: $fabric> $lmr<F> {
            /// Returns a position in the region, for [`Tier::memcpy`].
            pub fn at(&self, offset: u64) -> $crate::Position<'_, $lmr<F>> {
                $crate::Position { lmr: self, offset }
            }
        }

        impl<F: $fabric> $tier<F> {
            /// Copies `length` bytes from a position in a region to one in another region, or in the same one
            /// (`LT_memcpy`, `LT_memmove`). The arguments have the order of those of C. The nodes that store the source
            /// write the bytes to the target (section 7.1), so they do not pass through this process. Ranges of one region
            /// may overlap: the target has the bytes that the source had before.
            ///
            #[doc = $blocks]
            ///
            /// # Errors
            /// The source needs READ, and the target WRITE. A region of another [`Tier`] is refused with
            /// [`AccessError::NoHandle`]. With [`OperationError::may_have_executed`], any of the bytes may have been
            /// copied.
            pub fn memcpy(
                &self,
                to: $crate::Position<'_, $lmr<F>>,
                from: $crate::Position<'_, $lmr<F>>,
                length: u64,
            ) -> Result<(), $crate::OperationError> {
                self.copy(from.lmr.usually(), from.offset, to, length)
            }

            /// As [`memcpy`](Tier::memcpy), with a time of its own: as [`Lmr::within`].
            ///
            /// # Errors
            /// As [`memcpy`](Tier::memcpy), and [`OperationError::Deadline`] once the time is over.
            pub fn memcpy_within(
                &self,
                time: std::time::Duration,
                to: $crate::Position<'_, $lmr<F>>,
                from: $crate::Position<'_, $lmr<F>>,
                length: u64,
            ) -> Result<(), $crate::OperationError> {
                self.copy(from.lmr.within(time), from.offset, to, length)
            }

            fn copy(
                &self,
                from: $within<'_, F>,
                offset: u64,
                to: $crate::Position<'_, $lmr<F>>,
                length: u64,
            ) -> Result<(), $crate::OperationError> {
                self.check_own(to.lmr)?;
                self.check_own(from.lmr)?;
                from.copy(offset, length, to)
            }
        }
    };
}

memcpy_methods!(
    Tier,
    Lmr,
    Within,
    Fabric,
    "Blocks until [`TierConfig::timeout`](crate::TierConfig::timeout) at most."
);

impl<F: Fabric> Tier<F> {
    /// Checks that a handle is one of this node's.
    pub(crate) fn check_own(&self, lmr: &Lmr<F>) -> Result<(), AccessError> {
        if Arc::ptr_eq(&lmr.running, &self.running) { Ok(()) } else { Err(AccessError::NoHandle) }
    }
}

/// Checks that bytes may be copied to a position; returns its region.
pub(crate) fn check_target<F: Fabric>(
    handles: &HandleTable,
    to: Position<'_, Lmr<F>>,
    length: u64,
) -> Result<LmrId, AccessError> {
    let Position { lmr, offset } = to;
    let (id, has, size) = handles.describe(lmr.handle)?;
    if !has.contains(Rights::WRITE) {
        return Err(AccessError::Denied { needs: Rights::WRITE, has });
    }
    if offset > size || length > size - offset {
        return Err(AccessError::OutOfBounds { offset, length, size });
    }
    Ok(id)
}

impl<F: Fabric> Within<'_, F> {
    /// Copies bytes of the region to another one of the same node, or to itself.
    pub(crate) fn copy(
        &self,
        offset: u64,
        length: u64,
        to: Position<'_, Lmr<F>>,
    ) -> Result<(), OperationError> {
        let Position { lmr: to, offset: target } = to;
        let Lmr { running, id, .. } = self.lmr;
        let node = &*running.node;
        // Both are checked here first; the target is checked again by the nodes that write.
        let to_id = check_target(&node.state().handles, to.at(target), length)?;
        let backwards = to_id == *id && target > offset;
        let target_of = self.target();
        let priority = target_of.class.priority;
        node.command(target_of, Kind::Read, (offset, length), |layout, until| {
            let mut is_begun = false;
            let copy = |cut: Cut| {
                let request = Request::Copy {
                    owner: *id,
                    extent: cut.extent,
                    offset: cut.offset,
                    length: cut.length,
                    to: to_id,
                    target: target + cut.at,
                    backwards,
                    principal: to.principal.clone(),
                    priority,
                };
                let copied = node.demand(cut.node, request, until).map_err(|error| failed(is_begun, error));
                is_begun = true;
                copied.map(drop)
            };
            if backwards {
                let cuts: Vec<Cut> = layout.cut(offset, length, u32::MAX).collect();
                cuts.into_iter().rev().try_for_each(copy)
            } else {
                layout.cut(offset, length, u32::MAX).try_for_each(copy)
            }
        })
    }
}
