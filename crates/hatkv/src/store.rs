//! The store: one LMDB database.
//!
//! `unsafe` stands here only: LMDB maps its file.

use crate::group::Group;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, MdbError, RwTxn, WithoutTls};
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

/// How writes become transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Each is committed at once and by itself.
    Alone,
    /// Those that wait at the same time are committed together, and none is answered before.
    Together,
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
    group: Group,
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
        Ok(Store { env, pairs, options, group: Group::default(), syncing })
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
        self.transact(|transaction| self.put(transaction, pairs))
    }

    /// Stores pairs, all or none of them, with those of whoever else waits, if that is how it is to be committed.
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

    /// Commits what is done in a write transaction, unless it fails.
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

    /// What eight threads write, one while the seven others wait, and how many transactions that took; of too much the third has
    /// the most.
    fn eight(
        commit: Commit,
        map_size: usize,
        too_much: usize,
    ) -> (Vec<Result<(), StoreError>>, usize, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), map_size, 16, Durability::Durable);
        let before = transactions(&store);
        let results = std::thread::scope(|scope| {
            // Whoever leads waits here for its transaction.
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

    /// What one of them cannot do does not fail the others; and the next write finds everything in order.
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
