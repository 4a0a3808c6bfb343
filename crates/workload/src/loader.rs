//! Reads records for `kv load` from tab-separated or JSON lines. It streams in constant memory, and
//! continues after bad lines.
//!
//! * **Tab-separated**: `key<TAB>value`. The value is everything after the first tab, as raw bytes.
//! * **JSON lines**: `{"key": "...", "value": "..."}` with strings, or `{"key_base64": ..., "value_base64":
//!   ...}` for binary data; the two may be mixed. Any other member is an error, since ignoring a misspelt
//!   name would lose data.
//!
//! Empty lines are skipped. `\r\n` ends a line like `\n`.

use std::io::{self, BufRead, BufReader, Read};

use serde::Deserialize;

/// The format of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `key<TAB>value`.
    TabSeparated,
    /// One JSON object per line.
    JsonLines,
}

/// The size limits of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest key, bytes.
    pub key: usize,
    /// Longest value, bytes.
    pub value: usize,
}

impl Default for Limits {
    /// 64 KiB for a key, 1 MiB for a value.
    fn default() -> Self {
        Self { key: 64 << 10, value: 1 << 20 }
    }
}

impl Limits {
    /// Returns the length limit of a line: JSON escapes a byte with up to six, plus blanks and member
    /// names.
    fn longest_line(self) -> usize {
        (self.key + self.value).saturating_mul(6).saturating_add(4096)
    }
}

/// One key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key; never empty.
    pub key: Vec<u8>,
    /// The value; may be empty.
    pub value: Vec<u8>,
}

/// A line without a valid record. Reading continues after it.
#[derive(Debug, thiserror::Error)]
#[error("line {line_number}: {reason}")]
pub struct BadLine {
    /// Number of the line, from 1.
    pub line_number: u64,
    /// The defect of the line.
    pub reason: BadLineReason,
}

/// The defect of a line.
#[derive(Debug, thiserror::Error)]
pub enum BadLineReason {
    /// The format is tab-separated, and the line has no tab.
    #[error("there is no tab; write the key, one tab, the value")]
    NoTab,
    /// The line is not a JSON object of the expected form.
    #[error("not a JSON object with \"key\" and \"value\" (or \"key_base64\", \"value_base64\"): {0}")]
    Json(String),
    /// A member is not valid base64.
    #[error("\"{member}\" is not base64 (standard alphabet, padded or not)")]
    Base64 {
        /// The member.
        member: &'static str,
    },
    /// The key is empty.
    #[error("the key is empty")]
    EmptyKey,
    /// The key is too long.
    #[error("the key has {length} bytes, and {limit} is the most")]
    KeyTooLong {
        /// Its length, bytes.
        length: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// The value is too long.
    #[error("the value has {length} bytes, and {limit} is the most")]
    ValueTooLong {
        /// Its length, bytes.
        length: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// The line is longer than any valid record. Its bytes were skipped.
    #[error("the line has {length} bytes, more than any record can need ({limit})")]
    LineTooLong {
        /// Its length, bytes.
        length: u64,
        /// The limit, bytes.
        limit: usize,
    },
    /// The file cannot be read further. This is the last item.
    #[error("cannot read on: {0}")]
    Read(io::Error),
}

/// Iterates over the records of a file. The limits bound its memory, whatever the file contains.
///
/// Blocks on the reader. The iterator ends after a [`BadLineReason::Read`].
pub struct Loader<R> {
    reader: BufReader<R>,
    format: Option<Format>,
    limits: Limits,
    line: Vec<u8>,
    line_number: u64,
    bytes_read: u64,
    ended: bool,
}

impl<R: Read> Loader<R> {
    /// Creates a loader that detects the format: JSON lines if the first non-blank byte is `{`, else
    /// tab-separated.
    pub fn new(reader: R, limits: Limits) -> Self {
        Self {
            reader: BufReader::with_capacity(256 << 10, reader),
            format: None,
            limits,
            line: Vec::new(),
            line_number: 0,
            bytes_read: 0,
            ended: false,
        }
    }

    /// Creates a loader for the given format.
    pub fn with_format(reader: R, format: Format, limits: Limits) -> Self {
        Self { format: Some(format), ..Self::new(reader, limits) }
    }

    /// Returns the format once it is known: after the first non-empty line.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        self.format
    }

    /// Returns the number of bytes read so far, for a progress bar.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Returns the number of lines read so far.
    #[must_use]
    pub fn line_number(&self) -> u64 {
        self.line_number
    }

    /// Reads the next line into `self.line`, without its end. Returns `Ok(None)` at the end of the file,
    /// otherwise the length of the line in the file. `self.line` is truncated if the line is too long.
    fn read_line(&mut self) -> io::Result<Option<u64>> {
        let longest = self.limits.longest_line();
        self.line.clear();
        let mut length = 0u64;
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                return Ok((length > 0).then_some(length));
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let piece = &available[..end.unwrap_or(available.len())];
            let room = longest.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            length += piece.len() as u64;
            let used = piece.len() + usize::from(end.is_some());
            self.reader.consume(used);
            self.bytes_read += used as u64;
            if end.is_some() {
                return Ok(Some(length));
            }
        }
    }

    fn parse(&mut self, length: u64) -> Result<Option<Record>, BadLineReason> {
        let limit = self.limits.longest_line();
        if length > self.line.len() as u64 {
            return Err(BadLineReason::LineTooLong { length, limit });
        }
        let mut line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if self.line_number == 1 {
            // Spreadsheets write a byte-order mark at the start of a file.
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        let Some(first) = line.iter().find(|byte| !byte.is_ascii_whitespace()) else {
            // A lone tab is an empty key, not an empty line.
            return if line.contains(&b'\t') && self.format == Some(Format::TabSeparated) {
                Err(BadLineReason::EmptyKey)
            } else {
                Ok(None)
            };
        };
        let found = if *first == b'{' { Format::JsonLines } else { Format::TabSeparated };
        let record = match *self.format.get_or_insert(found) {
            Format::TabSeparated => tab_separated(line)?,
            Format::JsonLines => json(line)?,
        };
        if record.key.is_empty() {
            return Err(BadLineReason::EmptyKey);
        }
        if record.key.len() > self.limits.key {
            return Err(BadLineReason::KeyTooLong { length: record.key.len(), limit: self.limits.key });
        }
        if record.value.len() > self.limits.value {
            return Err(BadLineReason::ValueTooLong { length: record.value.len(), limit: self.limits.value });
        }
        Ok(Some(record))
    }
}

impl<R: Read> Iterator for Loader<R> {
    type Item = Result<Record, BadLine>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let outcome = match self.read_line() {
                Ok(None) => {
                    self.ended = true;
                    return None;
                }
                Ok(Some(length)) => {
                    self.line_number += 1;
                    self.parse(length)
                }
                Err(error) => {
                    self.ended = true;
                    self.line_number += 1;
                    Err(BadLineReason::Read(error))
                }
            };
            match outcome {
                Ok(None) => {}
                Ok(Some(record)) => return Some(Ok(record)),
                Err(reason) => return Some(Err(BadLine { line_number: self.line_number, reason })),
            }
        }
        None
    }
}

fn tab_separated(line: &[u8]) -> Result<Record, BadLineReason> {
    let tab = line.iter().position(|byte| *byte == b'\t').ok_or(BadLineReason::NoTab)?;
    Ok(Record { key: line[..tab].to_vec(), value: line[tab + 1..].to_vec() })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRecord {
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
}

fn json(line: &[u8]) -> Result<Record, BadLineReason> {
    let record: JsonRecord = serde_json::from_slice(line).map_err(|error| {
        let text = error.to_string();
        // The JSON parser sees a single line, so its line number is always 1.
        BadLineReason::Json(text.replace(" at line 1 column ", " at column "))
    })?;
    Ok(Record {
        key: one_of(record.key, record.key_base64, "key", "key_base64")?,
        value: one_of(record.value, record.value_base64, "value", "value_base64")?,
    })
}

fn one_of(
    plain: Option<String>,
    encoded: Option<String>,
    plain_name: &'static str,
    encoded_name: &'static str,
) -> Result<Vec<u8>, BadLineReason> {
    match (plain, encoded) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(text)) => decode_base64(&text).ok_or(BadLineReason::Base64 { member: encoded_name }),
        (None, None) => {
            Err(BadLineReason::Json(format!("there is neither \"{plain_name}\" nor \"{encoded_name}\"")))
        }
        (Some(_), Some(_)) => {
            Err(BadLineReason::Json(format!("there is both \"{plain_name}\" and \"{encoded_name}\"")))
        }
    }
}

/// Decodes standard base64 (RFC 4648 section 4). Padding is optional, but must be right if present, and
/// unused bits must be zero.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let digits = match bytes {
        [rest @ .., b'=', b'='] if bytes.len().is_multiple_of(4) => rest,
        [rest @ .., b'='] if bytes.len().is_multiple_of(4) => rest,
        _ => bytes,
    };
    let mut decoded = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for digit in group {
            bits = bits << 6
                | u32::from(match digit {
                    b'A'..=b'Z' => digit - b'A',
                    b'a'..=b'z' => digit - b'a' + 26,
                    b'0'..=b'9' => digit - b'0' + 52,
                    b'+' => 62,
                    b'/' => 63,
                    _ => return None,
                });
        }
        bits <<= 6 * (4 - group.len());
        let whole = group.len() * 6 / 8;
        let out = bits.to_be_bytes();
        if group.len() == 1 || out[1 + whole..].iter().any(|byte| *byte != 0) {
            return None;
        }
        decoded.extend_from_slice(&out[1..1 + whole]);
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits { key: 8, value: 16 };

    type Loaded = Result<(Vec<u8>, Vec<u8>), (u64, String)>;

    fn load(text: &[u8]) -> Vec<Loaded> {
        Loader::new(text, SMALL)
            .map(|item| {
                item.map(|record| (record.key, record.value))
                    .map_err(|bad| (bad.line_number, bad.reason.to_string()))
            })
            .collect()
    }

    fn record(key: &str, value: &str) -> Loaded {
        Ok((key.into(), value.into()))
    }

    #[test]
    fn tab_separated_lines() {
        let found = load(b"a\t1\r\nb\tx\ty\n\nc\t\nd\t\xff\xfe");
        assert_eq!(
            found,
            [record("a", "1"), record("b", "x\ty"), record("c", ""), Ok((b"d".to_vec(), vec![0xff, 0xfe]))]
        );
    }

    #[test]
    fn json_lines() {
        let text = br#"
 {"key":"a","value":"1"}
{"value":"\u00e9\n", "key":"b"}
{"key_base64":"/w==","value_base64":"AAE"}
"#;
        assert_eq!(load(text), [record("a", "1"), record("b", "\u{e9}\n"), Ok((vec![0xff], vec![0, 1]))]);
    }

    #[test]
    fn bad_lines_are_numbered_and_reading_goes_on() {
        let found = load(b"a\t1\nno tab\n\nlongkeylong\t1\n\tx\nb\t12345678901234567\nc\t3\n");
        let lines: Vec<Option<u64>> =
            found.iter().map(|item| item.as_ref().err().map(|(line, _)| *line)).collect();
        assert_eq!(lines, [None, Some(2), Some(4), Some(5), Some(6), None]);
        assert_eq!(found[5], record("c", "3"));
        let found = load(
            b"{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":1}\n{\"key\":\"a\",\"valeu\":\"1\"}\n{\"key\":\"a\"}\n{\"key\":\"a\",\"value_base64\":\"?\"}\nx\ty\n{\"key\":\"b\",\"value\":\"2\"}",
        );
        let lines: Vec<Option<u64>> =
            found.iter().map(|item| item.as_ref().err().map(|(line, _)| *line)).collect();
        assert_eq!(lines, [None, Some(2), Some(3), Some(4), Some(5), Some(6), None]);
        assert!(matches!(&found[2], Err((_, reason)) if reason.contains("valeu")), "{:?}", found[2]);
    }

    #[test]
    fn over_long_lines_cost_bounded_memory() {
        let long = 50_000_000usize;
        let text = io::Read::chain(
            &b"a\t1\nb\t"[..],
            io::Read::chain(io::repeat(b'x').take(long as u64), &b"\nc\t3\n"[..]),
        );
        let mut loader = Loader::new(text, SMALL);
        let mut found = Vec::new();
        while let Some(item) = loader.next() {
            found.push(item.map_err(|bad| bad.reason));
            assert!(loader.line.capacity() < 100_000);
        }
        assert_eq!(found.len(), 3);
        assert!(
            matches!(found[1], Err(BadLineReason::LineTooLong { length, .. }) if length == long as u64 + 2),
            "{:?}",
            found[1]
        );
        assert_eq!(loader.bytes_read(), long as u64 + 11);
        assert_eq!(loader.line_number(), 3);
    }

    #[test]
    fn format_by_flag_and_byte_order_mark() {
        let items: Vec<_> = Loader::with_format(&b"{a\t1\n"[..], Format::TabSeparated, SMALL).collect();
        assert_eq!(items[0].as_ref().expect("a record").key, b"{a");
        assert_eq!(load(b"\xef\xbb\xbfa\t1\n"), [record("a", "1")]);
        let mut loader = Loader::new(&b"\n{\"key\":\"a\",\"value\":\"\"}"[..], SMALL);
        assert_eq!(loader.format(), None);
        assert!(loader.next().is_some_and(|item| item.is_ok()));
        assert_eq!(loader.format(), Some(Format::JsonLines));
    }

    #[test]
    fn a_read_error_is_the_last_item() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("disk on fire"))
            }
        }
        let mut loader = Loader::new(io::Read::chain(&b"a\t1\n"[..], Broken), SMALL);
        assert!(loader.next().is_some_and(|item| item.is_ok()));
        let bad = loader.next().expect("an item").expect_err("an error");
        assert_eq!(bad.line_number, 2);
        assert!(bad.to_string().contains("disk on fire"));
        assert!(loader.next().is_none());
    }

    #[test]
    fn base64_vectors_of_rfc_4648() {
        let cases: [(&str, &str); 7] = [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ];
        for (text, plain) in cases {
            assert_eq!(decode_base64(text).as_deref(), Some(plain.as_bytes()));
            assert_eq!(decode_base64(text.trim_end_matches('=')).as_deref(), Some(plain.as_bytes()));
        }
        for broken in ["Z", "Zg=", "Zh==", "Zm9=", "Zg==Zg==", "Zm 9v", "====", "Zm9v="] {
            assert_eq!(decode_base64(broken), None, "{broken}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic_and_every_byte_is_counted(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let mut loader = Loader::new(&bytes[..], SMALL);
            while loader.next().is_some() {}
            proptest::prop_assert_eq!(loader.bytes_read(), bytes.len() as u64);
        }
    }
}
