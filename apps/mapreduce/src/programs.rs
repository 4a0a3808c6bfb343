//! Programs that come with the engine.

use crate::program::{Program, Split};

/// Counts words: maximal runs of letters and digits of ASCII, and of bytes from 128 on, so that words in UTF-8 stay
/// whole. Letters of ASCII count as lower case. A value is a count of 8 bytes, little-endian.
#[derive(Clone, Copy, Debug, Default)]
pub struct WordCount;

/// The longest word; a longer one is cut, and the rest is a word of its own.
const MAX_WORD: usize = 256;

fn is_of_word(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte >= 128
}

/// Returns the count that a value holds; 0 for a value of another form.
pub fn count_of(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

/// Calls `each` for the words of a text, in lower case.
fn words(text: &[u8], mut each: impl FnMut(&[u8])) {
    let mut lower = [0; MAX_WORD];
    for run in text.split(|byte| !is_of_word(byte)).filter(|run| !run.is_empty()) {
        for word in run.chunks(MAX_WORD) {
            let place = &mut lower[..word.len()];
            place.copy_from_slice(word);
            place.make_ascii_lowercase();
            each(place);
        }
    }
}

impl Program for WordCount {
    fn name(&self) -> String {
        "wordcount".to_owned()
    }

    fn map(&self, split: Split<'_>, emit: &mut dyn FnMut(&[u8], &[u8])) {
        words(split.bytes, |word| emit(word, &1u64.to_le_bytes()));
    }

    fn combine(&self, _key: &[u8], held: &mut Vec<u8>, value: &[u8]) {
        let sum = count_of(held).saturating_add(count_of(value));
        held.clear();
        held.extend_from_slice(&sum.to_le_bytes());
    }
}

/// Finds the lines that contain a pattern, byte by byte. A key is the source, a zero byte and the offset of the line in 8
/// bytes, big-endian, so that keys are in the order of the source; a value is the line.
#[derive(Clone, Debug)]
pub struct Grep {
    /// The pattern; an empty one is in every line.
    pub pattern: Vec<u8>,
}

/// The longest line that is kept whole, in bytes; the rest of a longer one is left out of the result.
const MAX_LINE: usize = 4096;

impl Grep {
    /// Returns the source and the offset of a key.
    pub fn place(key: &[u8]) -> Option<(&[u8], u64)> {
        let (source, offset) = key.split_at_checked(key.len().checked_sub(9)?)?;
        Some((source, u64::from_be_bytes(offset[1..].try_into().ok()?)))
    }
}

impl Program for Grep {
    fn name(&self) -> String {
        format!("grep {}", self.pattern.escape_ascii())
    }

    fn map(&self, split: Split<'_>, emit: &mut dyn FnMut(&[u8], &[u8])) {
        let mut key = [split.source.as_bytes(), &[0]].concat();
        let prefix = key.len();
        let mut offset = split.offset;
        for line in split.bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            if contains(text, &self.pattern) {
                key.truncate(prefix);
                key.extend_from_slice(&offset.to_be_bytes());
                emit(&key, &text[..text.len().min(MAX_LINE)]);
            }
            offset += line.len() as u64;
        }
    }

    /// A line has one value; a second one is the same.
    fn combine(&self, _key: &[u8], _held: &mut Vec<u8>, _value: &[u8]) {}
}

fn contains(text: &[u8], pattern: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return true };
    let mut left = text;
    while let Some(at) = left.iter().position(|byte| byte == first) {
        left = &left[at + 1..];
        if left.starts_with(rest) {
            return true;
        }
    }
    false
}

/// Lists the sources that each word is in: an inverted index. A value has the names of sources in ascending order, each
/// followed by a zero byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Index;

impl Index {
    /// Returns the sources of a value.
    pub fn sources(value: &[u8]) -> impl Iterator<Item = &[u8]> {
        value.split_inclusive(|byte| *byte == 0).map(|one| one.strip_suffix(&[0]).unwrap_or(one))
    }
}

impl Program for Index {
    fn name(&self) -> String {
        "index".to_owned()
    }

    fn map(&self, split: Split<'_>, emit: &mut dyn FnMut(&[u8], &[u8])) {
        let value = [split.source.as_bytes(), &[0]].concat();
        words(split.bytes, |word| emit(word, &value));
    }

    fn combine(&self, _key: &[u8], held: &mut Vec<u8>, value: &[u8]) {
        if held == value {
            return;
        }
        let (mut old, mut new) = (Self::sources(held).peekable(), Self::sources(value).peekable());
        let mut both = Vec::with_capacity(held.len() + value.len());
        loop {
            let next = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(one), Some(other)) if one == other => {
                    new.next();
                    old.next()
                }
                (Some(one), Some(other)) if one > other => new.next(),
                (None, Some(_)) => new.next(),
                (Some(_), _) => old.next(),
            };
            both.extend_from_slice(next.unwrap_or_default());
            both.push(0);
        }
        drop((old, new));
        *held = both;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn mapped(program: &impl Program, source: &str, offset: u64, bytes: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        program.map(Split { source, offset, bytes }, &mut |key, value| match all.get_mut(key) {
            Some(held) => program.combine(key, held, value),
            None => {
                all.insert(key.to_vec(), value.to_vec());
            }
        });
        all
    }

    #[test]
    fn words_are_counted_in_lower_case_and_bytes_that_are_no_text_too() {
        let found = mapped(&WordCount, "a", 0, b"The cat, the \xc3\xa4pfel! 2nd\0cat\xff\n");
        let counts: Vec<(&[u8], u64)> =
            found.iter().map(|(word, value)| (&word[..], count_of(value))).collect();
        assert_eq!(
            counts,
            [(&b"2nd"[..], 1), (b"cat", 1), (b"cat\xff", 1), (b"the", 2), ("äpfel".as_bytes(), 1)]
        );
        let long = mapped(&WordCount, "a", 0, &[b'x'; 600]);
        assert_eq!(long.keys().map(Vec::len).collect::<Vec<_>>(), [88, 256]);
        assert_eq!(count_of(&long[&vec![b'x'; 256]]), 2);
        assert_eq!(count_of(b"seven"), 0);
    }

    #[test]
    fn lines_have_their_offsets_in_the_source() {
        let grep = Grep { pattern: b"aab".to_vec() };
        let found = mapped(&grep, "f", 100, b"aaab\nno\nxaab");
        let places: Vec<_> =
            found.iter().map(|(key, line)| (Grep::place(key).unwrap(), line.as_slice())).collect();
        assert_eq!(places, [((&b"f"[..], 100), &b"aaab"[..]), ((b"f", 108), b"xaab")]);
        assert_eq!(Grep::place(b"short"), None);
        assert_eq!(mapped(&Grep { pattern: Vec::new() }, "f", 0, b"a\n\nb").len(), 3);
    }

    #[test]
    fn an_index_has_each_source_once_in_order() {
        let all = |order: &[&str]| {
            let mut held = Vec::new();
            for source in order {
                let value = mapped(&Index, source, 0, b"w W").remove(&b"w"[..]).unwrap();
                Index.combine(b"w", &mut held, &value);
            }
            held
        };
        let held = all(&["b", "a", "c", "a", "b"]);
        assert_eq!(Index::sources(&held).collect::<Vec<_>>(), [b"a", b"b", b"c"]);
        assert_eq!(held, all(&["c", "b", "a"]));
        // Any bytes are sources.
        let mut odd = b"x".to_vec();
        Index.combine(b"w", &mut odd, b"\0\0y");
        assert!(!odd.is_empty());
    }
}
