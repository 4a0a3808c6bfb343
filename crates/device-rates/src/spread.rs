//! Small WRITEs over many connections, for the rates by connections (ScaleRPC figure 1(b)).

use crate::RatesError;
use crate::end::{AREA, End, LINE, Slice};
use dunlin_fabric::{
    CONNECTION_BYTES, CompletionQueueId, CompletionStatus, Data, Endpoint, Fabric, Host, Nanos, Operation,
    PostError, QueuePairConfig, QueuePairId, RemoteSlice, ThreadDomain, WorkId, WorkRequest,
};

/// Depth of a connection's send queue.
const DEPTH: u32 = 32;
/// One WRITE of a connection in this number is signaled, so that its completion frees the send queue.
const SIGNALED: u32 = 16;
/// The most completions of a connection that wait at a time.
const COMPLETIONS: u32 = DEPTH / SIGNALED + 2;
/// WRITEs between two readings of the clock.
const BETWEEN_LOOKS: u64 = 64;

/// A connection of this side.
#[derive(Debug)]
struct Connection {
    queue_pair: QueuePairId,
    posted: u32,
    /// Signaled WRITEs whose completion is pending.
    under_way: u32,
    /// The slice's last WRITE, which is signaled, was posted.
    closed: bool,
}

/// The connections of one side to one other side.
#[derive(Debug)]
pub(super) struct Connections {
    completions: CompletionQueueId,
    all: Vec<Connection>,
}

impl<F: Fabric> End<F> {
    /// Prepares for this number of further connections.
    pub(super) fn reserve(&mut self, count: u32) -> Result<(), RatesError> {
        let completions = self.domain.create_completion_queue(count.max(1) * COMPLETIONS, false)?;
        self.connections = Some(Connections { completions, all: Vec::with_capacity(count as usize) });
        Ok(())
    }

    /// Creates another connection, and returns its endpoint for the other side.
    pub(super) fn add(&mut self, link: &F::Link) -> Result<Vec<u8>, RatesError> {
        let Some(connections) = &mut self.connections else { return Err(not_reserved()) };
        let config = QueuePairConfig {
            max_send: DEPTH,
            max_receive: 1,
            ..QueuePairConfig::reliable(connections.completions, connections.completions)
        };
        let queue_pair = self.domain.create_queue_pair(&config)?;
        let Endpoint(endpoint) = self.domain.endpoint(queue_pair, link)?;
        connections.all.push(Connection { queue_pair, posted: 0, under_way: 0, closed: false });
        Ok(endpoint)
    }

    /// Connects the connection that was added last to the other side's endpoint.
    pub(super) fn connect_added(&mut self, link: &F::Link, theirs: Vec<u8>) -> Result<(), RatesError> {
        let last = self.connections.as_ref().and_then(|connections| connections.all.last());
        let queue_pair = last.ok_or_else(not_reserved)?.queue_pair;
        Ok(self.domain.connect(queue_pair, link, &Endpoint(theirs))?)
    }

    /// Returns the number of connections that were added.
    pub(super) fn added(&self) -> usize {
        self.connections.as_ref().map_or(0, |connections| connections.all.len())
    }

    /// Posts a WRITE to a connection if there is room. Returns whether it was posted.
    fn write_to(&mut self, at: usize, last: bool) -> Result<bool, RatesError> {
        let Some(connection) = self.connections.as_mut().and_then(|all| all.all.get_mut(at)) else {
            return Ok(true);
        };
        let signaled = last || connection.posted % SIGNALED == SIGNALED - 1;
        // Keep room for a signaled WRITE, so that a completion is always pending.
        if self.domain.send_room(connection.queue_pair) <= u32::from(!signaled) {
            return Ok(false);
        }
        let to = RemoteSlice { key: self.key, offset: line_of(at), length: CONNECTION_BYTES };
        let bytes = &self.scratch[..CONNECTION_BYTES as usize];
        let parts = [bytes];
        let data = if CONNECTION_BYTES <= self.inline {
            Data::Inline(&parts)
        } else {
            let Ok(buffer) = self.arena.reserve(bytes.len()) else { return Ok(false) };
            Data::Buffer(buffer)
        };
        let operation = Operation::Write { data, key: to.key, offset: to.offset, immediate: None };
        match self
            .domain
            .post(connection.queue_pair, WorkRequest { id: WorkId(at as u64), operation, signaled })
        {
            Ok(()) => {}
            Err(PostError::QueueFull) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        connection.posted += 1;
        connection.under_way += u32::from(signaled);
        Ok(true)
    }

    /// Processes completions of the connections and returns their number.
    fn poll_connections(&mut self) -> Result<usize, RatesError> {
        let Some(connections) = &mut self.connections else { return Ok(0) };
        let count = self.domain.poll(connections.completions, &mut self.arrived, 64);
        for completion in self.arrived.drain(..) {
            if completion.status != CompletionStatus::Success {
                return Err(RatesError::Failed {
                    what: "a WRITE",
                    bytes: CONNECTION_BYTES,
                    status: completion.status,
                });
            }
            if let Some(connection) = connections.all.get_mut(completion.id.0 as usize) {
                connection.under_way -= 1;
            }
        }
        Ok(count)
    }

    /// Posts the last WRITE of the first `used` connections. Returns whether all WRITEs have completed.
    fn close_connections(&mut self, used: usize) -> Result<bool, RatesError> {
        let mut closed = true;
        for at in 0..used {
            let is_closed = self.connections.as_ref().is_some_and(|all| all.all[at].closed);
            let posted = is_closed || self.write_to(at, true)?;
            let Some(connections) = &mut self.connections else { return Ok(true) };
            let connection = &mut connections.all[at];
            connection.closed |= posted;
            closed &= posted && connection.under_way == 0;
        }
        Ok(closed)
    }

    fn begin_connections(&mut self) {
        for connection in self.connections.iter_mut().flat_map(|connections| &mut connections.all) {
            (connection.posted, connection.closed) = (0, false);
        }
    }

    fn posted_to_connections(&self) -> u64 {
        let all = self.connections.iter().flat_map(|connections| &connections.all);
        all.map(|connection| u64::from(connection.posted)).sum()
    }
}

/// Each connection has a line of its own as long as there are enough.
fn line_of(connection: usize) -> u64 {
    (connection * LINE as usize % AREA) as u64
}

fn not_reserved() -> RatesError {
    RatesError::Foreign("it connects before it says how often".to_owned())
}

/// WRITEs from this thread for `slice` nanoseconds, to the connections of all sides in turn: as many of each side as its
/// number says.
pub(super) fn spread<F: Fabric>(
    host: &F::Host,
    ends: &mut [(&mut End<F>, usize)],
    slice: Nanos,
) -> Result<Slice, RatesError> {
    ends.iter_mut().for_each(|(end, _)| end.begin_connections());
    let begin = host.now();
    let until = begin.saturating_add(slice);
    let most = ends.iter().map(|(_, used)| *used).max().unwrap_or(0);
    let (mut over, mut since_look) = (false, 0);
    loop {
        let mut posted = 0;
        for at in (0..most).filter(|_| !over) {
            for (end, used) in ends.iter_mut() {
                posted += u64::from(at < *used && end.write_to(at, false)?);
            }
        }
        since_look += posted;
        if posted > 0 && since_look < BETWEEN_LOOKS {
            continue;
        }
        since_look = 0;
        let mut arrived = 0;
        for (end, _) in ends.iter_mut() {
            arrived += end.poll_connections()?;
        }
        let now = host.now();
        over |= now >= until;
        if over {
            let mut closed = true;
            for (end, used) in ends.iter_mut() {
                closed &= end.close_connections(*used)?;
            }
            if closed {
                let operations = ends.iter().map(|(end, _)| end.posted_to_connections()).sum();
                return Ok(Slice { operations, nanos: now.saturating_sub(begin).max(1) });
            }
        }
        if posted == 0
            && arrived == 0
            && let Some((end, _)) = ends.first_mut()
        {
            end.wait(now.saturating_add(1_000_000));
        }
    }
}
