//! The results of programs as people read them.

use dunlin_app_graph::{Components, Least, PageRank, PageRankRounds, Paths, Program, Rank};
use dunlin_report::Row;
use std::cmp::Reverse;

/// Rows of a table.
const ROWS: usize = 10;

/// A program whose results can be shown.
pub(super) trait Shown: Program {
    /// Returns the result of a vertex.
    fn value(data: &Self::Data) -> String;
    /// Returns the highest rows of the result.
    fn highest(data: &[Self::Data]) -> Vec<Row>;
    /// Returns the fault of a program that does not fit the graph.
    fn check(&self, _vertices: u32) -> Result<(), String> {
        Ok(())
    }
}

fn ranked(ranks: impl Iterator<Item = f64>) -> Vec<Row> {
    let mut all: Vec<(usize, f64)> = ranks.enumerate().collect();
    let order =
        |one: &(usize, f64), other: &(usize, f64)| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0));
    if all.len() > ROWS {
        all.select_nth_unstable_by(ROWS, order);
        all.truncate(ROWS);
    }
    all.sort_unstable_by(order);
    let row = |(vertex, rank): &(usize, f64)| {
        Row::new().with("vertex", *vertex as u64).with("rank", format!("{rank:.6}"))
    };
    all.iter().map(row).collect()
}

impl Shown for PageRank {
    fn value(data: &Rank) -> String {
        data.rank.to_string()
    }

    fn highest(data: &[Rank]) -> Vec<Row> {
        ranked(data.iter().map(|rank| rank.rank))
    }
}

impl Shown for PageRankRounds {
    fn value(data: &f64) -> String {
        data.to_string()
    }

    fn highest(data: &[f64]) -> Vec<Row> {
        ranked(data.iter().copied())
    }
}

impl Shown for Components {
    fn value(data: &Least) -> String {
        data.value.to_string()
    }

    /// The largest components.
    fn highest(data: &[Least]) -> Vec<Row> {
        let mut counts = vec![0u32; data.len()];
        for label in data.iter().map(|least| least.value as usize) {
            if let Some(count) = counts.get_mut(label) {
                *count += 1;
            }
        }
        let mut all: Vec<_> = counts.iter().enumerate().filter(|(_, count)| **count > 0).collect();
        all.sort_by_key(|(label, count)| (Reverse(**count), *label));
        all.truncate(ROWS);
        let row = |(label, count): &(usize, &u32)| {
            Row::new().with("component", *label as u64).with("vertices", **count)
        };
        all.iter().map(row).collect()
    }
}

impl Shown for Paths {
    fn value(data: &Least) -> String {
        match data.value {
            u32::MAX => "unreachable".to_owned(),
            distance => distance.to_string(),
        }
    }

    /// The farthest vertices.
    fn highest(data: &[Least]) -> Vec<Row> {
        let reached = data.iter().enumerate().filter(|(_, least)| least.value != u32::MAX);
        let mut all: Vec<_> = reached.map(|(vertex, least)| (Reverse(least.value), vertex)).collect();
        all.sort_unstable();
        all.truncate(ROWS);
        let row = |(Reverse(distance), vertex): &(Reverse<u32>, usize)| {
            Row::new().with("vertex", *vertex as u64).with("distance", *distance)
        };
        all.iter().map(row).collect()
    }

    fn check(&self, vertices: u32) -> Result<(), String> {
        match self.from < vertices {
            true => Ok(()),
            false => Err(format!("there is no vertex {}: the graph has {vertices}", self.from)),
        }
    }
}
