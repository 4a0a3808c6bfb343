//! The clients that are connected, for logs and statistics.

use super::open_lanes::OpenLanes;
use dunlin_wire::handshake::Hello;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One connection of a client, as the client named itself: [`Server::clients`](crate::Server::clients).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedClient {
    /// The session id, as in the logs of both sides.
    pub session: u64,
    /// The client's identity: the same for all connections of one client. `None` if the client gave none. A
    /// client chooses it freely, so it authorizes nothing.
    pub client: Option<u64>,
    /// The name of the client's program; empty if the client gave none. Control characters are replaced.
    pub program: String,
    /// The client's process id on its own host. Informational.
    pub process: u32,
    /// The number of lanes that the connection has.
    pub lanes: usize,
}

/// A connection: its hello, and its lanes.
#[derive(Debug)]
struct Entry {
    client: Option<u64>,
    program: Box<str>,
    process: u32,
    lanes: Arc<OpenLanes>,
}

/// The connections that completed the hello exchange, by session.
#[derive(Debug, Default)]
pub(crate) struct Clients(Mutex<BTreeMap<u64, Entry>>);

impl Clients {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection whose hello was accepted.
    pub(crate) fn enter(&self, session: u64, hello: &Hello, lanes: &Arc<OpenLanes>) {
        let program = crate::connect::records::printable(hello.extensions.program().unwrap_or_default());
        let (client, process) = (hello.extensions.client(), hello.process_id);
        tracing::info!(
            target: "dunlin::server", session, process,
            client = client.map(|client| tracing::field::display(format!("{client:016x}"))),
            program = %program, "a client is connected"
        );
        let entry = Entry { client, program: program.into(), process, lanes: Arc::clone(lanes) };
        self.lock().insert(session, entry);
    }

    /// Removes a connection that has ended.
    pub(crate) fn leave(&self, session: u64) {
        self.lock().remove(&session);
    }

    /// Removes all connections.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the connections in the order of their session ids.
    pub(crate) fn list(&self) -> Vec<ConnectedClient> {
        let clients = self.lock();
        let connected = |(session, entry): (&u64, &Entry)| ConnectedClient {
            session: *session,
            client: entry.client,
            program: entry.program.to_string(),
            process: entry.process,
            lanes: entry.lanes.count(),
        };
        clients.iter().map(connected).collect()
    }
}
