//! The clients that are connected, for logs and statistics.

use super::open_lanes::{Connection, Program};
use super::slab::Slab;
use dunlin_wire::handshake::Hello;
use std::collections::BTreeSet;
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

/// The connections that completed the hello exchange, each at the place of its session.
#[derive(Debug, Default)]
pub(crate) struct Clients(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    connections: Slab<Arc<Connection>>,
    /// The names of their programs.
    programs: BTreeSet<Arc<Program>>,
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection whose hello was accepted, at a free place.
    pub(crate) fn enter(&self, place: u32, session: u64, hello: &Hello) -> Arc<Connection> {
        let program = crate::connect::records::printable(hello.extensions.program().unwrap_or_default());
        let (client, process) = (hello.extensions.client(), hello.process_id);
        tracing::info!(
            target: "dunlin::server", session, process,
            client = client.map(|client| tracing::field::display(format!("{client:016x}"))),
            program = %program, "a client is connected"
        );
        let mut table = self.lock();
        let program = (!program.is_empty()).then(|| table.name(Program(program.into())));
        let connection = Arc::new(Connection::new(session, client, (program, process)));
        table.connections.set(place, Arc::clone(&connection));
        connection
    }

    /// Removes a connection that has ended.
    pub(crate) fn leave(&self, place: u32) {
        let mut table = self.lock();
        if let Some(Connection { program: Some(program), .. }) = table.connections.take(place).as_deref() {
            // The table has it, and this connection.
            if Arc::strong_count(program) <= 2 {
                table.programs.remove(program);
            }
        }
    }

    /// Removes all connections.
    pub(crate) fn clear(&self) {
        *self.lock() = Table::default();
    }

    /// Returns the connections in the order of their session ids.
    pub(crate) fn list(&self) -> Vec<ConnectedClient> {
        let table = self.lock();
        let connected = |one: &Arc<Connection>| ConnectedClient {
            session: one.session,
            client: one.identity(),
            program: one.program.as_ref().map_or(String::new(), |program| program.0.to_string()),
            process: one.process,
            lanes: one.count(),
        };
        let mut list: Vec<_> = table.connections.iter().map(connected).collect();
        list.sort_unstable_by_key(|one| one.session);
        list
    }
}

impl Table {
    /// Returns the shared copy of a name.
    fn name(&mut self, program: Program) -> Arc<Program> {
        if let Some(known) = self.programs.get(&program) {
            return Arc::clone(known);
        }
        // Lanes that closed late may have kept names of connections that are gone.
        self.programs.retain(|program| Arc::strong_count(program) > 1);
        let program = Arc::new(program);
        self.programs.insert(Arc::clone(&program));
        program
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_wire::handshake::{Extension, Extensions, Token};

    #[test]
    fn connections_with_a_name_share_it() {
        let clients = Clients::default();
        let named = |name: &str| Hello {
            extensions: Extensions(vec![Extension::Program(name.into())]),
            min_version: 1,
            max_version: 1,
            capabilities: 0,
            process_id: 1,
            service: String::new(),
            token: Token::default(),
        };
        let all: Vec<_> = ["one", "two", "one"].iter().zip(0..).collect();
        let entered: Vec<_> =
            all.iter().map(|(name, at)| clients.enter(*at, 9 - u64::from(*at), &named(name))).collect();
        let programs = || clients.lock().programs.len();
        assert_eq!(programs(), 2);
        let listed = clients.list();
        assert_eq!(listed.iter().map(|one| one.session).collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!(listed.iter().map(|one| one.program.as_str()).collect::<Vec<_>>(), ["one", "two", "one"]);
        assert!(listed.iter().all(|one| one.client.is_none()));
        drop(entered);
        clients.leave(0);
        assert_eq!(programs(), 2);
        (1..3).for_each(|place| clients.leave(place));
        assert_eq!((programs(), clients.list().len()), (0, 0));
    }
}
