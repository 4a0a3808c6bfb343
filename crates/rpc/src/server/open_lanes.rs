//! The lanes that a connection has, by number. The control thread admits and closes them; the worker's end of a
//! lane holds its [`Admission`], whose drop makes room for another lane.

use dunlin_wire::handshake::RefusalCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lanes of one connection: few, mostly one for each worker. Locked only when a lane is opened or closed.
#[derive(Debug, Default)]
pub(crate) struct OpenLanes(Mutex<Vec<OpenLane>>);

#[derive(Clone, Copy, Debug)]
struct OpenLane {
    number: u16,
    worker: u16,
    closing: bool,
}

/// A lane's place in the table of its connection.
#[derive(Debug)]
pub(crate) struct Admission {
    lanes: Arc<OpenLanes>,
    number: u16,
}

impl Admission {
    /// Returns the lane's number in its connection.
    pub(crate) const fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.lanes.lock().retain(|lane| lane.number != self.number);
    }
}

impl OpenLanes {
    fn lock(&self) -> MutexGuard<'_, Vec<OpenLane>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of lanes, including those that are being closed.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Admits a lane of a worker, if there are fewer than `limit` lanes and none with this number.
    pub(crate) fn admit(
        self: &Arc<Self>,
        number: u16,
        worker: u16,
        limit: usize,
    ) -> Result<Admission, (RefusalCode, &'static str)> {
        let mut lanes = self.lock();
        if lanes.iter().any(|lane| lane.number == number) {
            return Err((RefusalCode::LANE_IN_USE, "the connection has a lane with this number already"));
        }
        if lanes.len() >= limit {
            return Err((RefusalCode::TOO_MANY, "one connection may not have so many lanes"));
        }
        lanes.push(OpenLane { number, worker, closing: false });
        Ok(Admission { lanes: Arc::clone(self), number })
    }

    /// Marks a lane as being closed and returns its worker.
    pub(crate) fn close(&self, number: u16) -> Result<u16, (RefusalCode, &'static str)> {
        match self.lock().iter_mut().find(|lane| lane.number == number) {
            None => Err((RefusalCode::UNKNOWN_LANE, "the connection has no open lane with this number")),
            Some(OpenLane { closing: true, .. }) => {
                Err((RefusalCode::UNKNOWN_LANE, "the lane is being closed already"))
            }
            Some(lane) => {
                lane.closing = true;
                Ok(lane.worker)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_free_again_when_its_lane_is_gone() {
        let lanes = Arc::new(OpenLanes::default());
        let code = |refused: Result<Admission, (RefusalCode, &'static str)>| refused.unwrap_err().0;
        let first = lanes.admit(7, 1, 2).unwrap();
        assert_eq!(code(lanes.admit(7, 0, 2)), RefusalCode::LANE_IN_USE);
        let second = lanes.admit(8, 0, 2).unwrap();
        assert_eq!(code(lanes.admit(9, 0, 2)), RefusalCode::TOO_MANY);
        assert_eq!(lanes.close(9).unwrap_err().0, RefusalCode::UNKNOWN_LANE);
        assert_eq!(lanes.close(7), Ok(1));
        assert!(lanes.close(7).unwrap_err().1.contains("already"));
        // A lane that is being closed still has its number and its place.
        assert_eq!(code(lanes.admit(7, 0, 2)), RefusalCode::LANE_IN_USE);
        drop(first);
        assert_eq!(lanes.close(7).unwrap_err().0, RefusalCode::UNKNOWN_LANE);
        let again = lanes.admit(7, 0, 2).unwrap();
        assert_eq!(lanes.count(), 2);
        drop((second, again));
        assert_eq!(lanes.count(), 0);
    }

    #[test]
    fn lanes_that_come_and_go_leave_nothing() {
        let lanes = Arc::new(OpenLanes::default());
        for round in 0..100_000_u32 {
            let number = round as u16;
            let admitted = lanes.admit(number, 0, 1).unwrap();
            assert_eq!(lanes.close(number), Ok(0));
            drop(admitted);
        }
        assert_eq!(lanes.count(), 0);
    }
}
