//! Rows of the table of protocols.

use super::{RequestHalf, ResponseHalf};
use crate::path::large::{LargePayload, SMALL_LIMIT};

/// A row of the protocol table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The name in the papers.
    pub name: &'static str,
    /// How requests travel.
    pub request: RequestHalf,
    /// How responses travel.
    pub response: ResponseHalf,
    /// How large payloads travel, in both directions.
    pub large: LargePayload,
    /// The largest small payload in bytes.
    pub rendezvous_above: u32,
    /// The system that the protocol comes from, in a few words.
    pub origin: &'static str,
}

impl Protocol {
    /// A row whose large payloads are READ.
    pub(super) const fn row(
        name: &'static str,
        (request, response): (RequestHalf, ResponseHalf),
        origin: &'static str,
    ) -> Protocol {
        Protocol { name, request, response, large: LargePayload::Read, rendezvous_above: SMALL_LIMIT, origin }
    }

    pub(super) const fn large(self, large: LargePayload, rendezvous_above: u32) -> Protocol {
        Protocol { large, rendezvous_above, ..self }
    }
}

/// Returns the number of rows of all mechanisms.
pub(super) const fn count(mut of_each: &[&[Protocol]]) -> usize {
    let mut rows = 0;
    while let [own, others @ ..] = of_each {
        rows += own.len();
        of_each = others;
    }
    rows
}

/// Joins the rows of all mechanisms, of which the first has some.
pub(super) const fn join<const ROWS: usize>(mut of_each: &[&[Protocol]]) -> [Protocol; ROWS] {
    let mut table = [of_each[0][0]; ROWS];
    let mut row = 0;
    while let [own, others @ ..] = of_each {
        let mut own = *own;
        while let [protocol, rest @ ..] = own {
            table[row] = *protocol;
            row += 1;
            own = rest;
        }
        of_each = others;
    }
    assert!(row == ROWS);
    table
}
