//! Lists of edges: from text, from binary pairs, or generated.

use crate::error::LoadError;
use std::io::{BufRead, Read};

/// The most vertices of a graph.
pub const MAX_VERTICES: u32 = u32::MAX - 1;
/// The most vertices of a graph whose number of vertices is not given.
const MOST_IMPLIED: u32 = 1 << 28;
/// The longest line of text, in bytes.
const LONGEST_LINE: usize = 4096;
/// Edges that are generated between two questions whether to go on.
const STEP: usize = 1 << 16;
/// The largest scale of a generated graph.
pub const MAX_SCALE: u32 = 28;
/// Probabilities of the first three quadrants of R-MAT in 65536ths: 0.57, 0.19, 0.19 (those of Graph500).
const QUADRANTS: [u64; 3] = [37_355, 37_355 + 12_452, 37_355 + 2 * 12_452];

/// A list of directed edges, in 8 bytes each. Duplicates and self-loops count as any other edge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    vertices: u32,
    list: Vec<(u32, u32)>,
}

/// Vertices as they are found.
struct Finding {
    given: Option<u32>,
    next: u32,
}

impl Finding {
    fn new(given: Option<u32>) -> Self {
        Finding { given, next: 0 }
    }

    /// Returns the first number that no vertex may have.
    fn limit(&self) -> u32 {
        self.given.unwrap_or(MOST_IMPLIED).min(MAX_VERTICES)
    }

    /// Takes a vertex, unless its number is too large.
    fn vertex(&mut self, number: u64) -> Option<u32> {
        let number = u32::try_from(number).ok().filter(|number| *number < self.limit())?;
        self.next = self.next.max(number + 1);
        Some(number)
    }

    fn vertices(&self) -> u32 {
        self.given.unwrap_or(self.next)
    }
}

impl Edges {
    /// Makes a graph of `vertices` vertices.
    ///
    /// # Errors
    /// An edge names a vertex that is not there, or there are too many vertices.
    pub fn new(vertices: u32, list: Vec<(u32, u32)>) -> Result<Self, LoadError> {
        let limit = vertices.min(MAX_VERTICES);
        let bad = list.iter().position(|(from, to)| *from >= limit || *to >= limit);
        match bad {
            None if vertices <= MAX_VERTICES => Ok(Edges { vertices, list }),
            bad => Err(LoadError::Edge { edge: bad.unwrap_or(0) as u64, vertices: limit }),
        }
    }

    /// Returns the number of vertices.
    pub fn vertices(&self) -> u32 {
        self.vertices
    }

    /// Returns the number of edges.
    pub fn len(&self) -> u64 {
        self.list.len() as u64
    }

    /// Returns whether there is no edge.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the edges, each as source and target, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.list.iter().copied()
    }

    /// Adds the edges of another list, whose vertices are the same ones.
    #[must_use]
    pub fn join(mut self, other: Edges) -> Self {
        self.vertices = self.vertices.max(other.vertices);
        if self.list.is_empty() {
            self.list = other.list;
        } else {
            self.list.extend(other.list);
        }
        self
    }

    /// Adds the reverse of each edge, except of self-loops.
    #[must_use]
    pub fn both_ways(mut self) -> Self {
        let count = self.list.len();
        self.list.reserve_exact(count);
        for at in 0..count {
            let (from, to) = self.list[at];
            if from != to {
                self.list.push((to, from));
            }
        }
        self
    }

    /// Reads text: two numbers a line, source and target, with spaces or tabs between them. Empty lines and those that
    /// begin with `#` are skipped. Without `vertices`, there are as many as the largest number implies, at most 2^28.
    ///
    /// # Errors
    /// A line is no edge, a number is too large, or reading fails.
    pub fn read_text(mut text: impl BufRead, vertices: Option<u32>) -> Result<Self, LoadError> {
        let (mut found, mut list) = (Finding::new(vertices), Vec::new());
        let (mut line, mut number) = (Vec::with_capacity(64), 0u64);
        loop {
            line.clear();
            number += 1;
            let read = (&mut text).take(LONGEST_LINE as u64 + 1).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(Edges { vertices: found.vertices(), list });
            }
            if read > LONGEST_LINE {
                return Err(LoadError::LongLine { line: number, longest: LONGEST_LINE });
            }
            if let Some(edge) = edge(&line, number, &mut found)? {
                list.push(edge);
            }
        }
    }

    /// Reads pairs of 32-bit little-endian numbers, source and target.
    ///
    /// # Errors
    /// The bytes end within a pair, a number is too large, or reading fails.
    pub fn read_binary(mut bytes: impl Read, vertices: Option<u32>) -> Result<Self, LoadError> {
        let (mut found, mut list) = (Finding::new(vertices), Vec::new());
        let (mut buffer, mut have) = (vec![0; 1 << 16], 0);
        loop {
            let read = match bytes.read(&mut buffer[have..]) {
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if read == 0 {
                break;
            }
            have += read;
            let whole = have - have % 8;
            for pair in buffer[..whole].chunks_exact(8) {
                let edge = list.len() as u64;
                let mut end = |at: usize| {
                    let number = u32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
                    let limit = found.limit();
                    found.vertex(number.into()).ok_or(LoadError::Edge { edge, vertices: limit })
                };
                list.push((end(0)?, end(4)?));
            }
            buffer.copy_within(whole..have, 0);
            have -= whole;
        }
        match have {
            0 => Ok(Edges { vertices: found.vertices(), list }),
            have => Err(LoadError::Truncated { edges: list.len() as u64, bytes: have }),
        }
    }

    /// Generates an R-MAT graph of `2^scale` vertices with `each` edges for each vertex, with the probabilities of
    /// Graph500. The same seed gives the same graph.
    ///
    /// # Errors
    /// The scale is above [`MAX_SCALE`], or there is no memory for the edges.
    pub fn rmat(scale: u32, each: u32, seed: u64) -> Result<Self, LoadError> {
        Self::rmat_while(scale, each, seed, |_| true)
    }

    /// As [`rmat`](Edges::rmat), and calls `goes_on` with the number of edges every 65 536 of them.
    ///
    /// # Errors
    /// As [`rmat`](Edges::rmat), and [`LoadError::Stopped`] if `goes_on` returns `false`.
    pub fn rmat_while(
        scale: u32,
        each: u32,
        seed: u64,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> Result<Self, LoadError> {
        if scale > MAX_SCALE {
            return Err(LoadError::Scale { scale, largest: MAX_SCALE });
        }
        let (vertices, mut state) = (1u32 << scale, seed);
        let mut edge = |_| {
            let (mut from, mut to, mut bits) = (0u32, 0u32, 0u64);
            for level in 0..scale {
                if level % 4 == 0 {
                    bits = random(&mut state);
                }
                let draw = bits & 0xffff;
                bits >>= 16;
                let quadrant = QUADRANTS.iter().filter(|bound| draw >= **bound).count() as u32;
                (from, to) = (2 * from + quadrant / 2, 2 * to + quadrant % 2);
            }
            (from, to)
        };
        let edges = u64::from(vertices) * u64::from(each);
        let mut list = Vec::new();
        let count = usize::try_from(edges).unwrap_or(usize::MAX);
        list.try_reserve_exact(count).map_err(|_| LoadError::Memory { edges })?;
        for first in (0..edges).step_by(STEP) {
            if !goes_on(first) {
                return Err(LoadError::Stopped);
            }
            list.extend((first..edges.min(first + STEP as u64)).map(&mut edge));
        }
        Ok(Edges { vertices, list })
    }

    /// Returns a hash of the graph, which depends on the order of the edges.
    pub(crate) fn hash(&self) -> u64 {
        let mix = |hash: u64, (from, to): &(u32, u32)| {
            (hash.rotate_left(5) ^ (u64::from(*from) << 32 | u64::from(*to)))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        self.list.iter().fold(u64::from(self.vertices), mix)
    }
}

/// Returns the next random number (SplitMix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Parses a line; `None` without an edge.
fn edge(text: &[u8], line: u64, found: &mut Finding) -> Result<Option<(u32, u32)>, LoadError> {
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let Some(first) = words.next() else { return Ok(None) };
    if first[0] == b'#' {
        return Ok(None);
    }
    let from = vertex(first, line, found)?;
    let Some(second) = words.next() else { return Err(LoadError::Missing { line }) };
    let to = vertex(second, line, found)?;
    match words.next() {
        None => Ok(Some((from, to))),
        Some(word) => Err(LoadError::Surplus { line, word: shown(word) }),
    }
}

fn vertex(word: &[u8], line: u64, found: &mut Finding) -> Result<u32, LoadError> {
    let mut number = 0u64;
    for digit in word {
        if !digit.is_ascii_digit() {
            return Err(LoadError::Word { line, word: shown(word) });
        }
        number = number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    }
    let vertices = found.limit();
    found.vertex(number).ok_or_else(|| LoadError::Range { line, word: shown(word), vertices })
}

/// Returns the beginning of a word for an error.
fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(40)]).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(text: &str) -> Result<Edges, LoadError> {
        Edges::read_text(text.as_bytes(), None)
    }

    fn says(error: Result<Edges, LoadError>, words: &str) {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn text_has_comments_blanks_and_any_space() {
        let found = text("# a comment\n\n 0\t1\r\n2 2\n   # another\n1 0").unwrap();
        assert_eq!(found, Edges::new(3, vec![(0, 1), (2, 2), (1, 0)]).unwrap());
        assert_eq!(text("").unwrap(), Edges::default());
        let alone = Edges::read_text("".as_bytes(), Some(7)).unwrap();
        assert_eq!((alone.vertices(), alone.len()), (7, 0));
    }

    #[test]
    fn errors_of_text_name_the_line() {
        says(text("0 1\n0 x1\n"), "line 2: 'x1'");
        says(text("0 1\n\n#\n7\n"), "line 4: ");
        says(text("0 1 2\n"), "line 1: '2'");
        says(text("0 -1\n"), "line 1: '-1'");
        says(text("0 99999999999999999999999\n"), "line 1: ");
        says(text("268435456 0\n"), "line 1: ");
        says(Edges::read_text("0 4\n4 5\n".as_bytes(), Some(5)), "line 2: '5'");
        says(text(&format!("0 1\n{}", " ".repeat(5000))), "line 2");
    }

    #[test]
    fn binary_pairs() {
        let bytes: Vec<u8> = [3u32, 1, 0, 2].iter().flat_map(|number| number.to_le_bytes()).collect();
        let found = Edges::read_binary(&bytes[..], None).unwrap();
        assert_eq!(found, Edges::new(4, vec![(3, 1), (0, 2)]).unwrap());
        says(Edges::read_binary(&bytes[..11], None), "after 1 edges");
        says(Edges::read_binary(&bytes[..], Some(3)), "edge 0");
    }

    #[test]
    fn generated_graphs_follow_their_seed() {
        let one = Edges::rmat(8, 4, 1).unwrap();
        assert_eq!((one.vertices(), one.len()), (256, 1024));
        assert_eq!(one, Edges::rmat(8, 4, 1).unwrap());
        assert_ne!(one, Edges::rmat(8, 4, 2).unwrap());
        assert!(one.iter().filter(|(from, _)| *from < 128).count() > 650, "R-MAT is skewed");
        assert!(Edges::rmat(29, 1, 1).is_err());
        assert!(matches!(Edges::rmat(28, u32::MAX, 1), Err(LoadError::Memory { .. })));
        let mut asked = Vec::new();
        let stopped = Edges::rmat_while(16, 4, 1, |edges| {
            asked.push(edges);
            edges < 2 << 16
        });
        assert!(matches!(stopped, Err(LoadError::Stopped)));
        assert_eq!(asked, [0, 1 << 16, 2 << 16]);
        assert_eq!(Edges::rmat(0, 3, 1).unwrap(), Edges::new(1, vec![(0, 0); 3]).unwrap());
    }

    #[test]
    fn reverses_are_added_except_of_loops() {
        let both = Edges::new(3, vec![(0, 1), (2, 2)]).unwrap().both_ways();
        assert_eq!(both.iter().collect::<Vec<_>>(), [(0, 1), (2, 2), (1, 0)]);
        assert!(Edges::new(2, vec![(0, 2)]).is_err());
        let joined = Edges::new(2, vec![(0, 1)]).unwrap().join(Edges::new(4, vec![(3, 1)]).unwrap());
        assert_eq!(joined, Edges::new(4, vec![(0, 1), (3, 1)]).unwrap());
    }

    proptest! {
        #[test]
        fn any_bytes_are_edges_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(edges) = Edges::read_text(&bytes[..], Some(1000)) {
                prop_assert!(edges.iter().all(|(from, to)| from < 1000 && to < 1000));
            }
            let _ = Edges::read_binary(&bytes[..], Some(1000));
        }

        #[test]
        fn written_edges_are_read_again(list in prop::collection::vec((0u32..500, 0u32..500), 0..200)) {
            let edges = Edges::new(500, list.clone()).unwrap();
            let lines: String = list.iter().map(|(from, to)| format!("{from} {to}\n")).collect();
            prop_assert_eq!(&Edges::read_text(lines.as_bytes(), Some(500)).unwrap(), &edges);
            let bytes: Vec<u8> =
                list.iter().flat_map(|(from, to)| [from.to_le_bytes(), to.to_le_bytes()].concat()).collect();
            prop_assert_eq!(&Edges::read_binary(&bytes[..], Some(500)).unwrap(), &edges);
        }
    }
}
