//! The store: one LMDB database.
//!
//! `unsafe` stands here only: LMDB maps its file.

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, MdbError, WithoutTls};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// The longest key that LMDB takes.
pub const MAX_KEY: usize = 511;

/// What a write that was answered survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Everything: each write transaction is on the disk before it is answered.
    Durable,
    /// The end of the process, kill -9 included, since the system has the pages. When the machine stops, what was written
    /// in about the last `sync_every` may be lost, and LMDB does not promise that the file is then whole where the file
    /// system reorders writes: for data that can be had again.
    Fast {
        /// How often everything is written to the disk.
        sync_every: Duration,
    },
}

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The size of the memory map in bytes, which bounds the store. Only what is used takes space.
    pub map_size: usize,
    /// Reads at the same time.
    pub max_readers: u32,
    /// What a write survives.
    pub durability: Durability,
}

/// Why a store cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Its folder.
    #[error("cannot make the folder {path}: {error}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// LMDB.
    #[error("cannot open the store in {path}: {error}")]
    Store {
        /// Where.
        path: PathBuf,
        /// What LMDB said.
        error: heed::Error,
    },
}

/// Why the store did not do something.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The key is empty or too long.
    #[error("keys have 1 to {MAX_KEY} bytes; this one has {0}")]
    Key(usize),
    /// The map is full.
    #[error("the memory map of {limit} bytes is full: open the store with a larger one")]
    MapFull {
        /// Its size in bytes.
        limit: usize,
    },
    /// All reader slots are taken.
    #[error("all {limit} reader slots are taken: open the store with more, by the hint concurrency")]
    ReadersFull {
        /// How many there are.
        limit: u32,
    },
    /// Anything else that LMDB says.
    #[error("LMDB: {0}")]
    Other(heed::Error),
}

/// The store. Any thread may use it; writers take turns.
#[derive(Debug)]
pub struct Store {
    env: Env<WithoutTls>,
    pairs: Database<Bytes, Bytes>,
    options: Options,
    /// Writes to the disk now and then, until the sender is dropped.
    syncing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Store {
    /// Opens the store in a folder, which is made if need be.
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Store { path: path.into(), error };
        std::fs::create_dir_all(path).map_err(|error| OpenError::Folder { path: path.into(), error })?;
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(options.map_size.next_multiple_of(4096)).max_readers(options.max_readers.max(1));
        if let Durability::Fast { .. } = options.durability {
            // SAFETY: the flag gives up durability, as documented; it does not make reading unsafe.
            unsafe { open.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: the file is mapped. Who else may write into the folder could change it under us; it belongs to the server,
        // as LMDB's files always do, and LMDB's lock keeps other users of LMDB in order.
        let env = unsafe { open.open(path) }.map_err(failed)?;
        let mut transaction = env.write_txn().map_err(failed)?;
        let pairs = env.create_database(&mut transaction, None).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        let syncing = match options.durability {
            Durability::Durable => None,
            Durability::Fast { sync_every } => {
                let (sender, ended) = channel();
                let env = env.clone();
                let sync = move || {
                    while ended.recv_timeout(sync_every) == Err(RecvTimeoutError::Timeout) {
                        // A disk that refuses now may take it the next time; who must know chooses Durable.
                        let _ = env.force_sync();
                    }
                    let _ = env.force_sync();
                };
                Some((sender, std::thread::spawn(sync)))
            }
        };
        Ok(Store { env, pairs, options, syncing })
    }

    /// How it was opened.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Shows the values of keys, in their order and in one view of the store, to `each`.
    pub fn read<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]>,
        mut each: impl FnMut(Option<&[u8]>),
    ) -> Result<(), StoreError> {
        let transaction = self.env.read_txn().map_err(|error| self.error(error))?;
        for key in keys {
            check(key)?;
            each(self.pairs.get(&transaction, key).map_err(|error| self.error(error))?);
        }
        Ok(())
    }

    /// Stores pairs, all or none of them.
    pub fn write<'p>(&self, pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8])>) -> Result<(), StoreError> {
        let mut transaction = self.env.write_txn().map_err(|error| self.error(error))?;
        for (key, value) in pairs {
            check(key)?;
            self.pairs.put(&mut transaction, key, value).map_err(|error| self.error(error))?;
        }
        transaction.commit().map_err(|error| self.error(error))
    }

    fn error(&self, error: heed::Error) -> StoreError {
        match error {
            heed::Error::Mdb(MdbError::MapFull) => StoreError::MapFull { limit: self.options.map_size },
            heed::Error::Mdb(MdbError::ReadersFull) => {
                StoreError::ReadersFull { limit: self.options.max_readers }
            }
            other => StoreError::Other(other),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.syncing.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

fn check(key: &[u8]) -> Result<(), StoreError> {
    if (1..=MAX_KEY).contains(&key.len()) { Ok(()) } else { Err(StoreError::Key(key.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path, map_size: usize, max_readers: u32, durability: Durability) -> Store {
        Store::open(folder, Options { map_size, max_readers, durability }).unwrap()
    }

    fn value(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
        let mut found = None;
        store.read([key], |value| found = value.map(<[u8]>::to_vec)).unwrap();
        found
    }

    #[test]
    fn pairs_stay_when_the_store_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        for durability in [Durability::Durable, Durability::Fast { sync_every: Duration::from_millis(1) }] {
            let store = open(folder.path(), 1 << 20, 4, durability);
            store.write([(&b"a"[..], &b"1"[..]), (b"b", b"2")]).unwrap();
            drop(store);
            let store = open(folder.path(), 1 << 20, 4, durability);
            assert_eq!((value(&store, b"a"), value(&store, b"c")), (Some(b"1".to_vec()), None));
        }
    }

    #[test]
    fn a_full_map_stores_nothing_of_a_batch_and_says_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), 64 * 1024, 4, Durability::Durable);
        let value_of = vec![7; 4000];
        let keys: Vec<[u8; 4]> = (0..1000u32).map(u32::to_be_bytes).collect();
        let batch = keys.iter().map(|key| (&key[..], &value_of[..]));
        assert!(matches!(store.write(batch), Err(StoreError::MapFull { limit: 65536 })));
        assert_eq!(value(&store, &keys[0]), None);
        store.write([(&keys[0][..], &b"small"[..])]).unwrap();
        assert_eq!(value(&store, &keys[0]).unwrap(), b"small");
    }

    #[test]
    fn readers_beyond_the_slots_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), 1 << 20, 1, Durability::Durable);
        let mut second = None;
        store.read([&b"k"[..]], |_| second = Some(store.read([&b"k"[..]], |_| {}))).unwrap();
        assert!(matches!(second, Some(Err(StoreError::ReadersFull { limit: 1 }))), "{second:?}");
        store.read([&b"k"[..]], |_| {}).unwrap();
    }

    #[test]
    fn keys_have_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), 1 << 20, 4, Durability::Durable);
        for length in [0, MAX_KEY + 1] {
            assert!(matches!(store.write([(&vec![1; length][..], &b""[..])]), Err(StoreError::Key(_))));
            assert!(matches!(store.read([&vec![1; length][..]], |_| {}), Err(StoreError::Key(_))));
        }
        store.write([(&[1; MAX_KEY][..], &b""[..])]).unwrap();
    }
}
