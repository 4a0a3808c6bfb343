//! The edges of a thread as compressed rows: by target, and for programs with delta caching also by source.

use crate::edges::Edges;
use crate::error::GraphError;
use std::ops::Range;

/// The edges to a range of vertices. Memory: 4 bytes an edge and 4 a vertex by target; by source as much, and 8 for each
/// source of which the thread has an edge.
#[derive(Debug)]
pub(crate) struct Rows {
    /// The vertices of the range.
    pub(crate) range: Range<u32>,
    /// The numbers of edges that leave the vertices of the range.
    pub(crate) degrees: Vec<u32>,
    /// Bounds of the rows in `sources`.
    offsets: Vec<u32>,
    /// The sources of the edges, by target, in ascending order.
    sources: Vec<u32>,
    /// The sources with an edge, in ascending order, and the beginnings of their rows in `targets`.
    starts: Vec<(u32, u32)>,
    /// The targets of the edges, by source, counted from the beginning of the range.
    targets: Vec<u32>,
}

impl Rows {
    /// Builds the rows of a range.
    pub(crate) fn build(edges: &Edges, range: Range<u32>, by_source: bool) -> Result<Rows, GraphError> {
        let length = (range.end - range.start) as usize;
        let (mut degrees, mut offsets) = (vec![0u32; length], vec![0u32; length + 1]);
        let mut count = 0u64;
        for (from, to) in edges.iter() {
            if range.contains(&from) {
                degrees[(from - range.start) as usize] += 1;
            }
            if range.contains(&to) {
                offsets[(to - range.start) as usize + 1] += 1;
                count += 1;
            }
        }
        if u32::try_from(count).is_err() {
            return Err(GraphError::TooManyEdges { edges: count });
        }
        for at in 1..offsets.len() {
            offsets[at] += offsets[at - 1];
        }
        let mut sources = vec![0u32; count as usize];
        let mut ends = offsets.clone();
        for (from, to) in edges.iter().filter(|(_, to)| range.contains(to)) {
            let end = &mut ends[(to - range.start) as usize];
            sources[*end as usize] = from;
            *end += 1;
        }
        let mut rows = Rows { range, degrees, offsets, sources, starts: Vec::new(), targets: Vec::new() };
        for at in 0..length {
            let row = rows.bounds(at);
            rows.sources[row].sort_unstable();
        }
        if by_source {
            rows.turn(edges.vertices());
        }
        Ok(rows)
    }

    /// Makes the rows by source.
    fn turn(&mut self, vertices: u32) {
        let mut ends = vec![0u32; vertices as usize];
        for source in &self.sources {
            ends[*source as usize] += 1;
        }
        let mut begin = 0;
        self.starts.reserve_exact(ends.iter().filter(|count| **count > 0).count());
        for (source, end) in ends.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            let count = std::mem::replace(end, begin);
            self.starts.push((source as u32, begin));
            begin += count;
        }
        self.targets = vec![0; self.sources.len()];
        for target in 0..self.degrees.len() {
            for source in &self.sources[self.bounds(target)] {
                let end = &mut ends[*source as usize];
                self.targets[*end as usize] = target as u32;
                *end += 1;
            }
        }
    }

    #[inline]
    fn bounds(&self, at: usize) -> Range<usize> {
        self.offsets[at] as usize..self.offsets[at + 1] as usize
    }

    /// Returns the number of edges.
    pub(crate) fn edges(&self) -> usize {
        self.sources.len()
    }

    /// Returns the sources of the edges to a vertex, which is counted from the beginning of the range.
    #[inline]
    pub(crate) fn sources(&self, at: usize) -> &[u32] {
        &self.sources[self.bounds(at)]
    }

    /// Returns the place among the sources of the first one that is not below `source`, from a place on.
    fn place(&self, source: u32, from: usize) -> usize {
        let rest = &self.starts[from..];
        // Sources are asked for in ascending order: the place is near.
        let mut reach = 1;
        while reach < rest.len() && rest[reach].0 < source {
            reach *= 2;
        }
        let near = &rest[reach / 2..rest.len().min(reach + 1)];
        from + reach / 2 + near.partition_point(|(found, _)| *found < source)
    }

    /// Returns the targets of the edges from a source, counted from the beginning of the range. `place` is 0 at first, and
    /// sources are asked for in ascending order.
    #[inline]
    pub(crate) fn targets(&self, source: u32, place: &mut usize) -> &[u32] {
        *place = self.place(source, (*place).min(self.starts.len()));
        match self.starts.get(*place) {
            Some((found, begin)) if *found == source => {
                let end = self.starts.get(*place + 1).map_or(self.targets.len(), |(_, end)| *end as usize);
                &self.targets[*begin as usize..end]
            }
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_hold_each_edge_in_order(
            mut list in prop::collection::vec((0u32..40, 0u32..40), 0..200),
            first in 0u32..40,
            length in 0u32..40,
        ) {
            let range = first..(first + length).min(40);
            let edges = Edges::new(40, list.clone()).unwrap();
            let rows = Rows::build(&edges, range.clone(), true).unwrap();
            let degree = |vertex: u32| list.iter().filter(|(from, _)| *from == vertex).count() as u32;
            prop_assert_eq!(&rows.degrees, &range.clone().map(degree).collect::<Vec<_>>());
            list.retain(|(_, to)| range.contains(to));
            prop_assert_eq!(rows.edges(), list.len());
            list.sort_unstable();
            let (mut found, mut place) = (Vec::new(), 0);
            for source in 0..45 {
                found.extend(rows.targets(source, &mut place).iter().map(|to| (source, to + range.start)));
            }
            prop_assert_eq!(&found, &list);
            list.sort_unstable_by_key(|(from, to)| (*to, *from));
            let row = |to: u32| rows.sources((to - range.start) as usize).iter().map(move |from| (*from, to));
            prop_assert_eq!(range.clone().flat_map(row).collect::<Vec<_>>(), list);
        }
    }
}
