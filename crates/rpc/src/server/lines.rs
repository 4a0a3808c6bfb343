//! The control lines of lanes whose leases end: many in one registered region, so that memory and registrations of a
//! client are a line and not a page (ScaleRPC section 3.3).

use crate::path::{CONTROL_BYTES, Cx};
use dunlin_fabric::{Access, Fabric, Region, RegisterError, ThreadDomain};
use std::sync::Arc;

/// Lines of a region.
const LINES: usize = 1024;
const _: () = assert!(LINES * CONTROL_BYTES <= 1 << 16, "a line's place fits two bytes");

/// A line, and the region in which it lies.
#[derive(Debug)]
pub(crate) struct ControlLine<F: Fabric> {
    pub(crate) region: Region<F::Memory>,
    /// Offset in the region, in bytes.
    pub(crate) at: u16,
}

/// The lines of one principal in one region.
#[derive(Debug)]
struct Lines<F: Fabric> {
    /// The user on this host; `None` for clients of other hosts.
    user: Option<u32>,
    region: Region<F::Memory>,
    /// By line: a lane has it.
    taken: Box<[u64; LINES / 64]>,
}

impl<F: Fabric> Lines<F> {
    /// Takes a free line.
    fn take(&mut self) -> Option<u16> {
        let word = self.taken.iter().position(|word| *word != u64::MAX)?;
        let bit = self.taken[word].trailing_ones();
        self.taken[word] |= 1 << bit;
        Some((word as u16 * 64 + bit as u16) * CONTROL_BYTES as u16)
    }

    /// Gives a line back, empty.
    fn give_back(&mut self, at: u16) {
        for word in 0..CONTROL_BYTES / 8 {
            self.region.store(at as usize + word * 8, 0);
        }
        let line = at as usize / CONTROL_BYTES;
        self.taken[line / 64] &= !(1 << (line % 64));
    }
}

/// The control lines of a worker.
#[derive(Debug)]
pub(crate) struct ControlLines<F: Fabric>(Vec<Lines<F>>);

impl<F: Fabric> ControlLines<F> {
    pub(crate) const fn new() -> Self {
        ControlLines(Vec::new())
    }

    /// Takes a line for a client of a user. Registers memory for the first one, and for each further 1 024.
    pub(crate) fn take(
        &mut self,
        cx: &mut Cx<'_, F>,
        user: Option<u32>,
    ) -> Result<ControlLine<F>, RegisterError> {
        for lines in self.0.iter_mut().filter(|lines| lines.user == user) {
            if let Some(at) = lines.take() {
                return Ok(ControlLine { region: lines.region.clone(), at });
            }
        }
        let region = Region::new(cx.fabric.register((LINES * CONTROL_BYTES) as u64, Access::WRITE)?);
        // The worker looks at the words of two groups and not of all lanes, so no line needs a name.
        cx.domain.watch(&region);
        let mut lines = Lines { user, region: region.clone(), taken: Box::new([0; LINES / 64]) };
        let at = lines.take().unwrap_or_default();
        self.0.push(lines);
        Ok(ControlLine { region, at })
    }

    /// Gives a line back. The queue pair of its lane must be destroyed: nothing of it arrives any more.
    pub(crate) fn give_back(&mut self, region: &Region<F::Memory>, at: u16) {
        let is_its = |lines: &&mut Lines<F>| Arc::ptr_eq(lines.region.memory(), region.memory());
        if let Some(lines) = self.0.iter_mut().find(is_its) {
            lines.give_back(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric_sim::{Settings, Sim};
    use std::collections::BTreeSet;

    /// Lines are disjoint, empty, apart by user, and used again.
    #[test]
    fn a_line_belongs_to_one_lane() {
        Sim::run_with(Settings::default(), 1, |fabric| {
            let mut domain = fabric.domain().unwrap();
            let mut lines = ControlLines::<Sim>::new();
            let mut take = |lines: &mut ControlLines<Sim>, user| {
                lines.take(&mut Cx::of(&fabric, &mut domain), user).unwrap()
            };
            let mut held: Vec<_> = (0..LINES + 10).map(|_| take(&mut lines, None)).collect();
            let place = |line: &ControlLine<Sim>| (Arc::as_ptr(line.region.memory()) as usize, line.at);
            assert_eq!(held.iter().map(place).collect::<BTreeSet<_>>().len(), LINES + 10);
            assert_eq!(held.iter().map(|line| place(line).0).collect::<BTreeSet<_>>().len(), 2);
            for (number, line) in held.iter().enumerate() {
                assert!(
                    (line.at as usize).is_multiple_of(CONTROL_BYTES)
                        && line.at as usize <= (LINES - 1) * CONTROL_BYTES
                );
                line.region.store(line.at as usize + 8, number as u64);
            }
            assert!(
                held.iter().enumerate().all(|(n, line)| line.region.load(line.at as usize + 8) == n as u64)
            );
            let of_user = take(&mut lines, Some(7));
            assert!(held.iter().all(|line| place(line).0 != place(&of_user).0), "users share no region");
            let given = held.swap_remove(77);
            lines.give_back(&given.region, given.at);
            let again = take(&mut lines, None);
            assert_eq!(place(&again), place(&given));
            assert!((0..8).all(|word| again.region.load(again.at as usize + word * 8) == 0));
        })
        .unwrap();
    }
}
