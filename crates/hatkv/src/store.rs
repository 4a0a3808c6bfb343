//! The store: one LMDB database.
//!
//! The only module with `unsafe` code: LMDB maps its file into memory.

use crate::group::Group;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, MdbError, RwTxn, WithoutTls};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// The longest key that LMDB accepts, in bytes.
pub const MAX_KEY: usize = 511;

/// The events that an answered write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// All: each write transaction is on disk before it is answered.
    Durable,
    /// The end of the process, kill -9 included, since the system holds the pages. A crash of the machine may
    /// lose the writes since about the last `sync_every`. LMDB does not guarantee an intact file after that
    /// if the file system reorders writes. Suitable for data that can be restored.
    Fast {
        /// The interval between writes of all data to disk.
        sync_every: Duration,
    },
}

/// The mapping of writes to transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Each write is committed separately and immediately.
    Alone,
    /// Concurrent writes are committed together; each is answered after the commit.
    Together,
}

/// Settings of a store. They have no defaults of their own: a program sets each, or opens a
/// [`Handler`](crate::Handler), which takes them from [`Tuning`](crate::Tuning).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The size of the memory map in bytes, which limits the store. Only the used part takes space. No default;
    /// the program `dunlin-hatkv` has 1 GiB.
    pub map_size: usize,
    /// The maximum number of concurrent reads. No default; [`Tuning::hinted`](crate::Tuning::hinted) has the largest
    /// `concurrency` of the service's hints, or else 128.
    pub max_readers: u32,
    /// The durability of writes. No default; [`Tuning::hinted`](crate::Tuning::hinted) has
    /// [`Durability::Durable`], or [`Durability::Fast`] if all functions that write have `priority = low`.
    pub durability: Durability,
}

/// The error of opening a store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder cannot be created.
    #[error("cannot make the folder {path}: {error}")]
    Folder {
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// LMDB cannot open the store.
    #[error("cannot open the store in {path}: {error}")]
    Store {
        /// The path.
        path: PathBuf,
        /// LMDB's error.
        error: heed::Error,
    },
}

/// The error of an operation on the store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The key is empty or too long.
    #[error("keys have 1 to {MAX_KEY} bytes; this one has {0}")]
    Key(usize),
    /// The map is full.
    #[error("the memory map of {limit} bytes is full: open the store with a larger one")]
    MapFull {
        /// The size of the map in bytes.
        limit: usize,
    },
    /// All reader slots are in use.
    #[error("all {limit} reader slots are taken: open the store with more, by the hint concurrency")]
    ReadersFull {
        /// The number of reader slots.
        limit: u32,
    },
    /// Another error of LMDB.
    #[error("LMDB: {0}")]
    Other(heed::Error),
}

/// The store. Any thread may use it. Write transactions are serialized.
#[derive(Debug)]
pub struct Store {
    env: Env<WithoutTls>,
    pairs: Database<Bytes, Bytes>,
    options: Options,
    group: Group,
    /// A thread that periodically writes to disk until the sender is dropped.
    syncing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Store {
    /// Opens the store in a folder, which is created if necessary.
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Store { path: path.into(), error };
        std::fs::create_dir_all(path).map_err(|error| OpenError::Folder { path: path.into(), error })?;
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(options.map_size.next_multiple_of(4096)).max_readers(options.max_readers.max(1));
        if let Durability::Fast { .. } = options.durability {
            // SAFETY: the flag gives up durability, as documented; it does not make reading unsafe.
            unsafe { open.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: the file is mapped, so another process that writes into the folder could change it under
        // us. The folder belongs to the server, as is usual for LMDB's files, and LMDB's lock synchronizes
        // other users of LMDB.
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
                        // A failed sync may succeed the next time. Callers that need certainty choose
                        // `Durable`.
                        let _ = env.force_sync();
                    }
                    let _ = env.force_sync();
                };
                Some((sender, std::thread::spawn(sync)))
            }
        };
        Ok(Store { env, pairs, options, group: Group::default(), syncing })
    }

    /// Returns the settings with which the store was opened.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Passes the values of keys to `each`, in order and from one snapshot of the store.
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

    /// Stores all pairs or none.
    pub fn write<'p>(&self, pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8])>) -> Result<(), StoreError> {
        self.transact(|transaction| self.put(transaction, pairs))
    }

    /// Stores all pairs or none, in one transaction with other concurrent writes if `commit` asks for that.
    pub fn write_by<'p>(
        &self,
        commit: Commit,
        pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8]), IntoIter: Clone>,
    ) -> Result<(), StoreError> {
        match commit {
            Commit::Alone => self.write(pairs),
            Commit::Together => self.group.write(self, pairs.into_iter()),
        }
    }

    /// Runs `act` in a write transaction and commits it, unless it fails.
    pub(crate) fn transact(
        &self,
        act: impl FnOnce(&mut RwTxn<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.env.write_txn().map_err(|error| self.error(error))?;
        act(&mut transaction)?;
        transaction.commit().map_err(|error| self.error(error))
    }

    pub(crate) fn put<'p>(
        &self,
        transaction: &mut RwTxn<'_>,
        pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8])>,
    ) -> Result<(), StoreError> {
        for (key, value) in pairs {
            check(key)?;
            self.pairs.put(transaction, key, value).map_err(|error| self.error(error))?;
        }
        Ok(())
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

pub(crate) fn check(key: &[u8]) -> Result<(), StoreError> {
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

    fn transactions(store: &Store) -> usize {
        store.env.info().last_txn_id
    }

    /// Runs eight writers, seven of which wait behind the first. Writer 3 writes `too_much` bytes. Returns
    /// their results and the number of transactions.
    fn eight(
        commit: Commit,
        map_size: usize,
        too_much: usize,
    ) -> (Vec<Result<(), StoreError>>, usize, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), map_size, 16, Durability::Durable);
        let before = transactions(&store);
        let results = std::thread::scope(|scope| {
            // The leader waits here for its transaction.
            let held = store.env.write_txn().unwrap();
            let store = &store;
            let threads: Vec<_> = (0..8u8)
                .map(|number| {
                    let value = vec![number; if number == 3 { too_much } else { 10 }];
                    scope.spawn(move || store.write_by(commit, [(&[number][..], &value[..])]))
                })
                .collect();
            while commit == Commit::Together && store.group.waiting() < 7 {
                std::thread::yield_now();
            }
            drop(held);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        (results, transactions(&store) - before, store)
    }

    #[test]
    fn writes_that_wait_are_committed_together_or_each_alone() {
        for (commit, expected) in [(Commit::Together, 1), (Commit::Alone, 8)] {
            let (results, transactions, store) = eight(commit, 1 << 20, 10);
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            assert_eq!(transactions, expected);
            (0..8).for_each(|number| assert_eq!(value(&store, &[number]).unwrap(), [number; 10]));
        }
    }

    /// A failing write does not affect the others, and the next write succeeds.
    #[test]
    fn of_writes_together_each_has_its_own_result() {
        let (results, _, store) = eight(Commit::Together, 64 * 1024, 100_000);
        for (number, result) in results.iter().enumerate() {
            match number {
                3 => assert!(matches!(result, Err(StoreError::MapFull { limit: 65536 })), "{result:?}"),
                _ => assert!(result.is_ok(), "{result:?}"),
            }
            assert_eq!(value(&store, &[number as u8]).is_some(), number != 3);
        }
        store.write_by(Commit::Together, [(&b"k"[..], &b"v"[..])]).unwrap();
        let bad = store.write_by(Commit::Together, [(&b"l"[..], &b"v"[..]), (b"", b"")]);
        assert!(matches!(bad, Err(StoreError::Key(0))));
        assert_eq!((value(&store, b"k"), value(&store, b"l")), (Some(b"v".to_vec()), None));
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
