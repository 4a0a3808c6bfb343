//! Sources of IDL files.

use crate::source::MAX_FILE;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

/// A source of files: the disk or memory.
pub trait Files {
    /// Returns the canonical path of a file, which is the same for all its names. Fails if the file does not
    /// exist.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf>;
    /// Returns the content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Files for Disk {
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        // One byte more than allowed, so that the caller can detect a file that is too large.
        std::fs::File::open(path)?.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Files in memory.
#[derive(Clone, Debug, Default)]
pub struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Memory {
    /// Creates an empty set.
    pub fn new() -> Self {
        Memory::default()
    }

    /// Adds a file.
    #[must_use]
    pub fn with(mut self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> Self {
        self.0.insert(plain(path.as_ref()), bytes.into());
        self
    }
}

/// Resolves `.` and `..` in a path.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

impl Files for Memory {
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        let path = plain(path);
        if self.0.contains_key(&path) { Ok(path) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.get(&plain(path)).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
