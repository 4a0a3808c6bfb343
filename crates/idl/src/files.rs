//! Where files come from.

use crate::source::MAX_FILE;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

/// Where files come from: the disk, or what was put into memory.
pub trait Files {
    /// A path that is the same for each way to name a file; an error if there is none.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf>;
    /// A file's bytes.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

/// The files of this machine.
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
        // One more than allowed, so that the one who reads sees that it is too many.
        std::fs::File::open(path)?.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Files that are only here.
#[derive(Clone, Debug, Default)]
pub struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Memory {
    /// No files.
    pub fn new() -> Self {
        Memory::default()
    }

    /// The same with one more.
    #[must_use]
    pub fn with(mut self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> Self {
        self.0.insert(plain(path.as_ref()), bytes.into());
        self
    }
}

/// A path without `.` and `..`.
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
