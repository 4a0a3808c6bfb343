//! Results as people read them.

use dunlin_app_mapreduce::{Grep, Index, WordCount, count_of};
use dunlin_report::Row;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A program whose results can be shown.
pub(super) trait Shown {
    /// All results are printed, in place of those with the highest scores.
    const PRINTS_ALL: bool;
    /// Returns the line of a result in a file.
    fn line(key: &[u8], value: &[u8]) -> Vec<u8>;
    /// Returns the score of a result.
    fn score(value: &[u8]) -> u64;
    /// Returns the row of a result.
    fn row(key: &[u8], value: &[u8]) -> Row;
}

/// A result in the order of the table: score, key, value.
type Ranked = (u64, Reverse<Vec<u8>>, Vec<u8>);

/// The results with the highest scores; of equal ones the first keys.
pub(super) struct Top {
    most: usize,
    heap: BinaryHeap<Reverse<Ranked>>,
}

impl Top {
    pub(super) fn new(most: usize) -> Top {
        Top { most, heap: BinaryHeap::new() }
    }

    /// Keys come in ascending order.
    pub(super) fn add(&mut self, score: u64, key: &[u8], value: &[u8]) {
        if self.heap.len() < self.most {
            self.heap.push(Reverse((score, Reverse(key.to_vec()), value.to_vec())));
        } else if self.heap.peek().is_some_and(|Reverse(least)| score > least.0) {
            self.heap.pop();
            self.heap.push(Reverse((score, Reverse(key.to_vec()), value.to_vec())));
        }
    }

    pub(super) fn rows<P: Shown>(self) -> Vec<Row> {
        let best = self.heap.into_sorted_vec();
        best.iter().map(|Reverse((_, Reverse(key), value))| P::row(key, value)).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Shown for WordCount {
    const PRINTS_ALL: bool = false;

    fn line(key: &[u8], value: &[u8]) -> Vec<u8> {
        [key, format!(" {}\n", count_of(value)).as_bytes()].concat()
    }

    fn score(value: &[u8]) -> u64 {
        count_of(value)
    }

    fn row(key: &[u8], value: &[u8]) -> Row {
        Row::new().with("word", text(key)).with("count", count_of(value))
    }
}

impl Shown for Grep {
    const PRINTS_ALL: bool = true;

    fn line(key: &[u8], value: &[u8]) -> Vec<u8> {
        let (source, offset) = Grep::place(key).unwrap_or((key, 0));
        [source, format!(":{offset}: ").as_bytes(), value, b"\n"].concat()
    }

    fn score(_value: &[u8]) -> u64 {
        0
    }

    fn row(key: &[u8], value: &[u8]) -> Row {
        Row::new().with("line", text(&Self::line(key, value)))
    }
}

impl Shown for Index {
    const PRINTS_ALL: bool = false;

    fn line(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut line = key.to_vec();
        for source in Index::sources(value) {
            line.push(b' ');
            line.extend_from_slice(source);
        }
        line.push(b'\n');
        line
    }

    fn score(value: &[u8]) -> u64 {
        Index::sources(value).count() as u64
    }

    fn row(key: &[u8], value: &[u8]) -> Row {
        Row::new().with("word", text(key)).with("files", Self::score(value))
    }
}
