//! The work of a thread at its vertices: gather, apply and scatter, wherever the messages of the others lie.

use crate::edges::Edges;
use crate::error::GraphError;
use crate::program::{Message, Program, Vertex};
use crate::rows::Rows;
use std::ops::Range;

/// Edges are followed from their sources if fewer vertices than one in this number scatter.
const SPARSE: u64 = 16;

/// Returns whether a step follows the edges of the vertices that scatter.
pub(crate) fn is_sparse<P: Program>(scattering: u64, vertices: u64) -> bool {
    P::CACHES && scattering < vertices / SPARSE
}

/// A thread's vertices.
pub(crate) struct Local<P: Program> {
    pub(crate) rows: Rows,
    pub(crate) data: Vec<P::Data>,
    /// The gathered sums, with delta caching.
    sums: Vec<P::Message>,
    /// The messages of its vertices for the next step.
    pub(crate) outbox: Vec<P::Message>,
    /// The edges over which it has gathered.
    pub(crate) gathered: u64,
}

impl<P: Program> Local<P> {
    /// Builds the rows of a range, and the first messages of its vertices.
    pub(crate) fn start(program: &P, edges: &Edges, range: Range<u32>) -> Result<Self, GraphError> {
        let rows = Rows::build(edges, range, P::CACHES)?;
        let length = rows.degrees.len();
        let (mut data, mut outbox) = (Vec::with_capacity(length), Vec::with_capacity(length));
        for at in 0..length {
            let vertex = vertex(&rows, at);
            let mut own = program.start(vertex);
            outbox.push(program.scatter(vertex, &mut own));
            data.push(own);
        }
        let sums = vec![P::NONE; if P::CACHES { length } else { 0 }];
        Ok(Local { rows, data, sums, outbox, gathered: 0 })
    }

    /// Gathers over all edges, and applies where a sum has changed. `load` returns the message of a vertex.
    pub(crate) fn pull(&mut self, program: &P, load: impl Fn(u32) -> u64) {
        let Local { rows, data, sums, outbox, .. } = self;
        for at in 0..rows.degrees.len() {
            let before = if P::CACHES { sums[at] } else { P::NONE };
            let sum = rows.sources(at).iter().fold(before, |sum, source| {
                program.sum(sum, program.gather(P::Message::from_bits(load(*source))))
            });
            if P::CACHES && sum.to_bits() == before.to_bits() {
                outbox[at] = P::NONE;
                continue;
            }
            if P::CACHES {
                sums[at] = sum;
            }
            let vertex = vertex(rows, at);
            program.apply(vertex, sum, &mut data[at]);
            outbox[at] = program.scatter(vertex, &mut data[at]);
        }
        self.gathered += rows.edges() as u64;
    }

    /// Gathers over the edges of the vertices that scatter, which `senders` names in ascending order, and applies at their
    /// targets.
    pub(crate) fn push(
        &mut self,
        program: &P,
        senders: impl FnOnce(&mut dyn FnMut(u32)),
        load: impl Fn(u32) -> u64,
    ) {
        let Local { rows, data, sums, outbox, gathered } = self;
        outbox.fill(P::NONE);
        let (mut place, mut touched) = (0, Vec::new());
        senders(&mut |source| {
            let message = P::Message::from_bits(load(source));
            if message == P::NONE {
                return;
            }
            let targets = rows.targets(source, &mut place);
            *gathered += targets.len() as u64;
            for target in targets {
                let sum = &mut sums[*target as usize];
                let next = program.sum(*sum, program.gather(message));
                if next.to_bits() != sum.to_bits() {
                    *sum = next;
                    touched.push(*target);
                }
            }
        });
        touched.sort_unstable();
        touched.dedup();
        for at in touched.into_iter().map(|at| at as usize) {
            let vertex = vertex(rows, at);
            program.apply(vertex, sums[at], &mut data[at]);
            outbox[at] = program.scatter(vertex, &mut data[at]);
        }
    }
}

#[inline]
fn vertex(rows: &Rows, at: usize) -> Vertex {
    Vertex { id: rows.range.start + at as u32, degree: rows.degrees[at] }
}
