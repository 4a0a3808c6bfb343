//! The service on the store.

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

/// The handler; clones share the store.
#[derive(Clone, Debug)]
pub struct Handler {
    store: Arc<Store>,
    tuning: Tuning,
}

impl Handler {
    /// Opens the store of `map_size` bytes in a folder, as the service's hints say, but for what writes survive.
    pub fn open(folder: &Path, map_size: usize, durability: Durability) -> Result<Self, OpenError> {
        let tuning = Tuning { durability, ..Tuning::hinted(HAT_KV_SERVICE.functions) };
        Handler::open_with(folder, map_size, tuning)
    }

    /// Opens the store of `map_size` bytes in a folder.
    pub fn open_with(folder: &Path, map_size: usize, tuning: Tuning) -> Result<Self, OpenError> {
        let options = Options { map_size, max_readers: tuning.max_readers, durability: tuning.durability };
        Ok(Handler { store: Arc::new(Store::open(folder, options)?), tuning })
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How it is run.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }
}

/// The service as a server runs it whose writes may wait for the disk: those then run in the pool, so that no read waits behind
/// them, and many can wait for one transaction.
#[derive(Clone, Debug)]
pub struct TunedProcessor(HatKvProcessor<Handler>);

impl TunedProcessor {
    /// The service on this handler.
    pub fn new(handler: Handler) -> Self {
        TunedProcessor(HatKvProcessor(handler))
    }
}

impl Processor for TunedProcessor {
    fn service(&self) -> &'static ServiceDescriptor {
        /// The service with writes that take long.
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
