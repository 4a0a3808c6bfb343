//! The service on the store.

use crate::hatkv::{
    BadRequest, Found, HAT_KV_SERVICE, HatKv, HatKvGetException, HatKvMultigetException,
    HatKvMultiputException, HatKvPutException, MapFull, NotFound, ReadersFull,
};
use crate::store::{Durability, OpenError, Options, Store, StoreError};
use dunlin::thrift::{Bytes, Context, Failure};
use std::path::Path;
use std::sync::Arc;

/// The handler; clones share the store.
#[derive(Clone, Debug)]
pub struct Handler(Arc<Store>);

impl Handler {
    /// Opens the store of `map_size` bytes in a folder, as the service's hints say.
    pub fn open(folder: &Path, map_size: usize, durability: Durability) -> Result<Self, OpenError> {
        // As many readers as clients are hinted: each may have a read under way on a thread of its own.
        let hinted = HAT_KV_SERVICE.functions.iter().filter_map(|function| function.server.concurrency).max();
        let options = Options { map_size, max_readers: hinted.unwrap_or(128), durability };
        Ok(Handler(Arc::new(Store::open(folder, options)?)))
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.0
    }
}

/// From the store's errors to a function's exceptions, of those that it declares.
macro_rules! failures {
    ($($exception:ty => $($variant:ident)*;)*) => {
        $(impl From<StoreError> for Failure<$exception> {
            fn from(error: StoreError) -> Self {
                match error {
                    StoreError::Key(_) => BadRequest { why: error.to_string().into() }.into(),
                    $(failures!(@pattern $variant limit) => failures!(@value $variant limit),)*
                    // What the function does not declare, as the store's other end of the work cannot meet it.
                    #[allow(unreachable_patterns)]
                    other => Failure::internal(other.to_string()),
                }
            }
        })*
    };
    (@pattern MapFull $limit:ident) => { StoreError::MapFull { limit: $limit } };
    (@pattern ReadersFull $limit:ident) => { StoreError::ReadersFull { limit: $limit } };
    (@value MapFull $limit:ident) => { MapFull { limit: $limit as i64 }.into() };
    (@value ReadersFull $limit:ident) => { ReadersFull { limit: $limit as i32 }.into() };
}

failures! {
    HatKvGetException => ReadersFull;
    HatKvMultigetException => ReadersFull;
    HatKvPutException => MapFull;
    HatKvMultiputException => MapFull;
}

impl HatKv for Handler {
    fn get(&self, _: &Context, key: &[u8]) -> Result<Bytes, Failure<HatKvGetException>> {
        let mut found = None;
        self.0.read([key], |value| found = value.map(Bytes::copy_from_slice))?;
        Ok(found.ok_or_else(|| NotFound { key: Bytes::copy_from_slice(key) })?)
    }

    fn put(&self, _: &Context, key: &[u8], value: &[u8]) -> Result<(), Failure<HatKvPutException>> {
        Ok(self.0.write([(key, value)])?)
    }

    fn multiget(&self, _: &Context, keys: Vec<Bytes>) -> Result<Vec<Found>, Failure<HatKvMultigetException>> {
        let mut found = Vec::with_capacity(keys.len());
        let each = |value: Option<&[u8]>| found.push(Found { value: value.map(Bytes::copy_from_slice) });
        self.0.read(keys.iter().map(|key| &key[..]), each)?;
        Ok(found)
    }

    fn multiput(
        &self,
        _: &Context,
        keys: Vec<Bytes>,
        values: Vec<Bytes>,
    ) -> Result<(), Failure<HatKvMultiputException>> {
        if keys.len() != values.len() {
            let why = format!("{} keys and {} values", keys.len(), values.len());
            return Err(BadRequest { why: why.into() }.into());
        }
        Ok(self.0.write(keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..])))?)
    }
}
