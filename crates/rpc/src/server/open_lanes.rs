//! A connection whose hello was accepted, and the lanes that it has, by number. The control thread admits and closes
//! them; the worker's end of a lane holds its [`Admission`], whose drop makes room for another lane.

use dunlin_wire::handshake::RefusalCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The name of a client's program. All connections with a name share it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program(pub(crate) Box<str>);

/// A connection, as its lanes, the control thread and the list of clients share it.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) session: u64,
    /// The client that its connections belong to: its identity, or the session of its only connection.
    pub(crate) client: u64,
    /// The name of the client's program, if it gave one.
    pub(crate) program: Option<Arc<Program>>,
    /// The client's process id on its own host.
    pub(crate) process: u32,
    /// Locked only when a lane is opened or closed.
    lanes: Mutex<OpenLanes>,
}

/// The lanes of one connection. Most have one, which lies here.
#[derive(Debug, Default)]
struct OpenLanes {
    first: Option<OpenLane>,
    others: Option<Box<Others>>,
}

/// The lanes beside the first one.
#[derive(Debug, Default)]
struct Others(Vec<OpenLane>);

impl OpenLanes {
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut OpenLane> {
        self.first.iter_mut().chain(self.others.iter_mut().flat_map(|others| &mut others.0))
    }

    fn count(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.as_ref().map_or(0, |others| others.0.len())
    }

    fn add(&mut self, lane: OpenLane) {
        match self.first {
            None => self.first = Some(lane),
            Some(_) => self.others.get_or_insert_default().0.push(lane),
        }
    }

    fn remove(&mut self, number: u16) {
        self.first.take_if(|lane| lane.number == number);
        if let Some(others) = &mut self.others {
            others.0.retain(|lane| lane.number != number);
        }
        self.others.take_if(|others| others.0.is_empty());
    }
}

#[derive(Clone, Copy, Debug)]
struct OpenLane {
    number: u16,
    worker: u16,
    closing: bool,
}

/// A lane's place in the table of its connection.
#[derive(Debug)]
pub(crate) struct Admission {
    connection: Arc<Connection>,
    number: u16,
    /// Distinguishes the lane from earlier ones at the same index of its worker.
    serial: u32,
}

impl Admission {
    /// Returns the connection of the lane.
    #[inline]
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Numbers the lanes of a worker.
    pub(crate) fn set_serial(&mut self, serial: u32) {
        self.serial = serial;
    }

    pub(crate) const fn serial(&self) -> u32 {
        self.serial
    }

    /// Returns the lane's number in its connection.
    pub(crate) const fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.connection.lock().remove(self.number);
    }
}

impl Connection {
    /// Makes a connection without lanes.
    pub(crate) fn new(
        session: u64,
        client: Option<u64>,
        (program, process): (Option<Arc<Program>>, u32),
    ) -> Self {
        let client = client.unwrap_or(session);
        Connection { session, client, program, process, lanes: Mutex::default() }
    }

    /// Returns the identity that the client gave itself.
    pub(crate) fn identity(&self) -> Option<u64> {
        (self.client != self.session).then_some(self.client)
    }

    fn lock(&self) -> MutexGuard<'_, OpenLanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of lanes, including those that are being closed.
    pub(crate) fn count(&self) -> usize {
        self.lock().count()
    }

    /// Admits a lane of a worker, if there are fewer than `limit` lanes and none with this number.
    pub(crate) fn admit(
        self: &Arc<Self>,
        number: u16,
        worker: u16,
        limit: usize,
    ) -> Result<Admission, (RefusalCode, &'static str)> {
        let mut lanes = self.lock();
        if lanes.iter_mut().any(|lane| lane.number == number) {
            return Err((RefusalCode::LANE_IN_USE, "the connection has a lane with this number already"));
        }
        if lanes.count() >= limit {
            return Err((RefusalCode::TOO_MANY, "one connection may not have so many lanes"));
        }
        lanes.add(OpenLane { number, worker, closing: false });
        Ok(Admission { connection: Arc::clone(self), number, serial: 0 })
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
        let lanes = Arc::new(Connection::default());
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
        let lanes = Arc::new(Connection::default());
        for round in 0..100_000_u32 {
            let number = round as u16;
            let admitted = lanes.admit(number, 0, 1).unwrap();
            assert_eq!(lanes.close(number), Ok(0));
            drop(admitted);
        }
        assert_eq!(lanes.count(), 0);
    }
}
