//! The partition of the vertices: ranges of threads and of regions.

use crate::edges::Edges;
use std::ops::Range;

/// Prefix sums of the work of all vertices: one for each vertex and one for each edge that arrives there.
#[derive(Debug)]
pub(crate) struct Weights(Vec<u64>);

impl Weights {
    pub(crate) fn of(edges: &Edges) -> Self {
        let mut sums = vec![0u64; edges.vertices() as usize + 1];
        for (_, to) in edges.iter() {
            sums[to as usize + 1] += 1;
        }
        for at in 1..sums.len() {
            sums[at] += sums[at - 1] + 1;
        }
        Weights(sums)
    }

    /// Cuts the vertices into `parts` ranges of about the same work; some may be empty. A cut into a multiple of `parts`
    /// has all bounds of this one.
    pub(crate) fn cut(&self, parts: usize) -> Vec<Range<u32>> {
        let total = u128::from(self.0[self.0.len() - 1]);
        let bound = |part: usize| {
            let work = (total * part as u128 / parts as u128) as u64;
            self.0.partition_point(|sum| *sum < work) as u32
        };
        (0..parts).map(|part| bound(part)..bound(part + 1)).collect()
    }
}

/// Returns the common part of two ranges, which may be empty.
pub(crate) fn overlap(one: &Range<u32>, other: &Range<u32>) -> Range<u32> {
    let first = one.start.max(other.start);
    first..one.end.min(other.end).max(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_cover_all_vertices_once_and_finer_cuts_keep_bounds(
            list in prop::collection::vec((0u32..60, 0u32..60), 0..300),
            vertices in 60u32..90,
            parts in 1usize..9,
            finer in 1usize..6,
        ) {
            let weights = Weights::of(&Edges::new(vertices, list.clone()).unwrap());
            let ranges = weights.cut(parts);
            prop_assert_eq!(ranges.len(), parts);
            prop_assert_eq!((ranges[0].start, ranges[parts - 1].end), (0, vertices));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let fine = weights.cut(parts * finer);
            for (part, range) in ranges.iter().enumerate() {
                prop_assert_eq!(fine[part * finer].start, range.start);
                prop_assert_eq!(fine[(part + 1) * finer - 1].end, range.end);
            }
            // No part has more than its share and one vertex with its edges.
            let work = |range: &Range<u32>| {
                list.iter().filter(|(_, to)| range.contains(to)).count() as u64 + u64::from(range.end - range.start)
            };
            let heaviest = (0..vertices).map(|vertex| work(&(vertex..vertex + 1))).max().unwrap();
            let share = (list.len() as u64 + u64::from(vertices)) / parts as u64 + 1;
            prop_assert!(ranges.iter().all(|range| work(range) <= share + heaviest));
        }
    }

    #[test]
    fn an_empty_graph_has_empty_ranges() {
        assert_eq!(Weights::of(&Edges::default()).cut(3), [0..0, 0..0, 0..0]);
        assert!(overlap(&(0..3), &(5..9)).is_empty() && overlap(&(5..9), &(0..3)).is_empty());
        assert_eq!(overlap(&(0..7), &(5..9)), 5..7);
    }
}
