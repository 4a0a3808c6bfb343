//! The input of a job, cut into splits of whole lines.

use crate::error::MapReduceError;
use crate::program::Split;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// The most bytes of a line behind the split in which it begins, and so the shortest split. A longer line is cut.
const MAX_LINE: u64 = 64 << 10;
/// The most splits of a job.
const MAX_SPLITS: u64 = 1 << 20;

/// The input of a job. All processes of a job have the same.
pub trait Input: Send + Sync + 'static {
    /// Returns the number of splits.
    fn splits(&self) -> u32;

    /// Reads a split into `buffer`, and passes it to `map`. Blocks.
    ///
    /// # Errors
    /// The source cannot be read, or has changed. The job ends.
    fn read(
        &self,
        split: u32,
        buffer: &mut Vec<u8>,
        map: &mut dyn FnMut(Split<'_>),
    ) -> Result<(), MapReduceError>;

    /// Returns a text that equal inputs have in common.
    fn fingerprint(&self) -> String;
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    name: String,
    length: u64,
    first: u32,
}

/// Files, which every worker opens by the same paths. They are read split by split and never held as a whole, so they may
/// be larger than the memory.
#[derive(Debug)]
pub struct Files {
    sources: Vec<Source>,
    split: u64,
    splits: u32,
}

impl Files {
    /// Opens files, to be read in splits of `split` bytes, about. A line belongs to the split in which it begins; one
    /// that goes on for more than 64 KiB behind it is cut there.
    ///
    /// # Errors
    /// A file cannot be opened, or is none; the split is shorter than 64 KiB, or there are more than 1 048 576.
    pub fn open(paths: impl IntoIterator<Item = PathBuf>, split: u64) -> Result<Files, MapReduceError> {
        if split < MAX_LINE {
            return Err(MapReduceError::Settings(format!("a split has at least {MAX_LINE} bytes")));
        }
        let (mut sources, mut count) = (Vec::new(), 0u64);
        for path in paths {
            let name = path.display().to_string();
            let length = std::fs::metadata(&path).and_then(|found| match found.is_file() {
                true => Ok(found.len()),
                false => Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file")),
            });
            let length =
                length.map_err(|source| MapReduceError::Input { source_name: name.clone(), source })?;
            sources.push(Source { path, name, length, first: count.min(MAX_SPLITS) as u32 });
            count += length.div_ceil(split);
        }
        if count > MAX_SPLITS {
            return Err(MapReduceError::Settings(format!(
                "{count} splits are too many: make them longer than {split} bytes"
            )));
        }
        Ok(Files { sources, split, splits: count as u32 })
    }

    /// Returns the length of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.length).sum()
    }
}

impl Input for Files {
    fn splits(&self) -> u32 {
        self.splits
    }

    fn read(
        &self,
        split: u32,
        buffer: &mut Vec<u8>,
        map: &mut dyn FnMut(Split<'_>),
    ) -> Result<(), MapReduceError> {
        let after = self.sources.partition_point(|source| source.first <= split);
        // Empty files have the number of the next split too.
        let Some(source) = after.checked_sub(1).and_then(|at| self.sources.get(at)) else { return Ok(()) };
        let begin = u64::from(split - source.first) * self.split;
        let failed = |error| MapReduceError::Input { source_name: source.name.clone(), source: error };
        let mut file = File::open(&source.path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() != source.length {
            return Err(failed(io::Error::other("its length has changed since the job began")));
        }
        let range =
            lines(&mut file, (begin, (begin + self.split).min(source.length)), buffer).map_err(failed)?;
        if !range.1.is_empty() {
            map(Split { source: &source.name, offset: range.0, bytes: range.1 });
        }
        Ok(())
    }

    fn fingerprint(&self) -> String {
        let names = self.sources.iter().map(|source| format!("{}\0{}\0", source.name, source.length));
        format!("files {} {:x}", self.split, xxh3_64(names.collect::<String>().as_bytes()))
    }
}

/// Reads the lines that begin in a range, and returns them with the offset of the first one.
fn lines<'a>(
    file: &mut (impl Read + Seek),
    (begin, end): (u64, u64),
    buffer: &'a mut Vec<u8>,
) -> io::Result<(u64, &'a [u8])> {
    buffer.clear();
    // With the byte before, it shows whether a line begins at the first byte.
    let from = begin.saturating_sub(1);
    file.seek(SeekFrom::Start(from))?;
    file.by_ref().take(end - from).read_to_end(buffer)?;
    if (buffer.len() as u64) < end - from {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let skipped = match begin {
        0 => 0,
        // The split before has the rest of its last line, up to the limit.
        _ => match buffer.iter().take(MAX_LINE as usize + 1).position(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None => buffer.len().min(MAX_LINE as usize + 1),
        },
    };
    // The last line goes on in the next split.
    let mut chunk = [0; 4096];
    let mut left = MAX_LINE;
    while buffer.last() != Some(&b'\n') && left > 0 {
        let most = chunk.len().min(left as usize);
        let read = file.read(&mut chunk[..most])?;
        if read == 0 {
            break;
        }
        left -= read as u64;
        let ends = chunk[..read].iter().position(|byte| *byte == b'\n');
        buffer.extend_from_slice(&chunk[..ends.map_or(read, |at| at + 1)]);
    }
    Ok((from + skipped as u64, &buffer[skipped..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    /// Texts with short lines, and with lines around the limit.
    fn texts() -> impl Strategy<Value = Vec<u8>> {
        let limit = MAX_LINE as usize;
        let line = prop_oneof![
            6 => 0usize..200,
            2 => limit - 3..limit + 3,
            1 => 2 * limit - 3..2 * limit + 3,
            1 => 0usize..5 * limit,
        ];
        proptest::collection::vec(line, 0..12).prop_map(|lines| {
            let mut text = Vec::new();
            for (number, line) in lines.into_iter().enumerate() {
                text.resize(text.len() + line, b'a' + number as u8);
                text.push(b'\n');
            }
            text
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn each_byte_is_in_one_split_and_short_lines_are_whole(
            mut text in texts(), split in MAX_LINE..3 * MAX_LINE, is_cut: bool,
        ) {
            if is_cut {
                text.pop();
            }
            let (mut next, mut buffer) = (0, Vec::new());
            for number in 0..(text.len() as u64).div_ceil(split) {
                let range = (number * split, ((number + 1) * split).min(text.len() as u64));
                let (offset, bytes) = lines(&mut Cursor::new(&text), range, &mut buffer).unwrap();
                prop_assert_eq!(offset, next as u64);
                prop_assert_eq!(bytes, &text[next..next + bytes.len()]);
                next += bytes.len();
                // A split ends with a line, or a long one is cut.
                let line = text[..next].iter().rev().take_while(|byte| **byte != b'\n').count() as u64;
                prop_assert!(line == 0 || line > MAX_LINE || next == text.len(), "{line} at {next}");
            }
            prop_assert_eq!(next, text.len());
        }
    }
}
