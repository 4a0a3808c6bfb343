//! The handler of the service.

use crate::hatkv::{
    BadRequest, Found, HAT_KV_SERVICE, HatKv, HatKvGetException, HatKvMultigetException,
    HatKvMultiputException, HatKvProcessor, HatKvPutException, MapFull, NotFound, ReadersFull,
};
use crate::store::{Durability, OpenError, Options, Store, StoreError};
use crate::tuning::Tuning;
use dunlin::hints::ProcessTime;
use dunlin::thrift::{Bytes, Context, Failure, Input, Processor, Responder, ServiceDescriptor};
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// The handler. Clones share the store.
#[derive(Clone, Debug)]
pub struct Handler {
    store: Arc<Store>,
    tuning: Tuning,
}

impl Handler {
    /// Opens the store in a folder with the tuning that the service's hints select, except for its
    /// durability. `map_size` is in bytes.
    pub fn open(folder: &Path, map_size: usize, durability: Durability) -> Result<Self, OpenError> {
        let tuning = Tuning { durability, ..Tuning::hinted(HAT_KV_SERVICE.functions) };
        Handler::open_with(folder, map_size, tuning)
    }

    /// Opens the store in a folder with this tuning. `map_size` is in bytes.
    pub fn open_with(folder: &Path, map_size: usize, tuning: Tuning) -> Result<Self, OpenError> {
        let options = Options { map_size, max_readers: tuning.max_readers, durability: tuning.durability };
        Ok(Handler { store: Arc::new(Store::open(folder, options)?), tuning })
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the tuning.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }
}

/// The service with tuned function modes: if writes may wait for the disk, they run in the pool, so that
/// reads do not wait behind them and many writes can share a transaction.
#[derive(Clone, Debug)]
pub struct TunedProcessor(HatKvProcessor<Handler>);

impl TunedProcessor {
    /// Creates the service with this handler.
    pub fn new(handler: Handler) -> Self {
        TunedProcessor(HatKvProcessor(handler))
    }
}

impl Processor for TunedProcessor {
    fn service(&self) -> &'static ServiceDescriptor {
        /// The service's descriptor with writes marked as long.
        static ON_DISK: LazyLock<ServiceDescriptor> = LazyLock::new(|| {
            let mut functions = HAT_KV_SERVICE.functions.to_vec();
            for function in &mut functions {
                if ["put", "multiput"].contains(&&*function.name) {
                    function.server.process_time = Some(ProcessTime::Long);
                }
            }
            ServiceDescriptor { functions: functions.leak(), ..HAT_KV_SERVICE }
        });
        match self.0.0.tuning.durability {
            Durability::Durable => &ON_DISK,
            Durability::Fast { .. } => &HAT_KV_SERVICE,
        }
    }

    fn process<'a, I: Input<'a>, R: Responder>(
        &self,
        function: usize,
        input: &mut I,
        context: &Context,
        responder: R,
    ) -> R::Done {
        self.0.process(function, input, context, responder)
    }
}

/// Converts the store's errors to the declared exceptions of a function.
macro_rules! failures {
    ($($exception:ty => $($variant:ident)*;)*) => {
        $(impl From<StoreError> for Failure<$exception> {
            fn from(error: StoreError) -> Self {
                match error {
                    StoreError::Key(_) => BadRequest { why: error.to_string().into() }.into(),
                    $(failures!(@pattern $variant limit) => failures!(@value $variant limit),)*
                    // Errors that the function does not declare, because its operations cannot cause them.
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
        self.store.read([key], |value| found = value.map(Bytes::copy_from_slice))?;
        Ok(found.ok_or_else(|| NotFound { key: Bytes::copy_from_slice(key) })?)
    }

    fn put(&self, _: &Context, key: &[u8], value: &[u8]) -> Result<(), Failure<HatKvPutException>> {
        Ok(self.store.write_by(self.tuning.put, [(key, value)])?)
    }

    fn multiget(&self, _: &Context, keys: Vec<Bytes>) -> Result<Vec<Found>, Failure<HatKvMultigetException>> {
        let mut found = Vec::with_capacity(keys.len());
        let each = |value: Option<&[u8]>| found.push(Found { value: value.map(Bytes::copy_from_slice) });
        self.store.read(keys.iter().map(|key| &key[..]), each)?;
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
        let pairs = keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..]));
        Ok(self.store.write_by(self.tuning.multiput, pairs)?)
    }
}
