//! The work requests and doorbells of a run.

use super::LoadOutcome;
use dunlin_fabric::interpose::Count;
use dunlin_fabric_sim::Sim;

/// Work requests and doorbells, of all clients and of the server.
#[derive(Clone, Copy, Default)]
pub(super) struct Posts {
    clients: [u64; 2],
    server: [u64; 2],
}

impl Posts {
    /// Returns the counts of the client hosts and of the server until now.
    pub(super) fn of(clients: &[Count<Sim>], server: &Count<Sim>) -> Posts {
        let mut posts = Posts::default();
        for counts in clients.iter().map(Count::counts) {
            posts.clients[0] += counts.posts();
            posts.clients[1] += counts.doorbells;
        }
        let counts = server.counts();
        posts.server = [counts.posts(), counts.doorbells];
        posts
    }

    /// Returns the counts since others.
    pub(super) fn since(self, before: Posts) -> Posts {
        let since = |now: [u64; 2], before: [u64; 2]| [now[0] - before[0], now[1] - before[1]];
        Posts { clients: since(self.clients, before.clients), server: since(self.server, before.server) }
    }

    /// Writes the counts into an outcome.
    pub(super) fn tell(self, outcome: &mut LoadOutcome) {
        [outcome.posted, outcome.rung] = self.clients;
        [outcome.answered, outcome.answers_rung] = self.server;
    }
}
