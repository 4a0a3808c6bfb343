//! Operations on memory that a server exposes, on the fabric that the client's address selects.

use crate::client::{AnyClient, Client, UNCONNECTED};
use dunlin_rpc::{CallId, MemoryError, RemoteRegion};

impl Client {
    /// Attaches a region that the server exposes by name; see [`dunlin_rpc::Client::attach`].
    pub fn attach(&mut self, name: &str) -> Result<RemoteRegion, MemoryError> {
        self.resolved()?;
        each_or!(AnyClient, &mut self.on, client => client.attach(name), AnyClient::Later(_) => Err(UNCONNECTED.into()))
    }

    /// READs bytes of a region; see [`dunlin_rpc::Client::read`].
    pub fn read(&mut self, region: &RemoteRegion, offset: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        each_or!(AnyClient, &mut self.on, client => client.read(region, offset, into), AnyClient::Later(_) => Err(UNCONNECTED.into()))
    }

    /// WRITEs bytes to a region; see [`dunlin_rpc::Client::write`].
    pub fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        each_or!(AnyClient, &mut self.on, client => client.write(region, offset, data), AnyClient::Later(_) => Err(UNCONNECTED.into()))
    }

    /// Adds to 8 aligned bytes of a region; see [`dunlin_rpc::Client::fetch_add`].
    pub fn fetch_add(&mut self, region: &RemoteRegion, offset: u64, add: u64) -> Result<u64, MemoryError> {
        each_or!(AnyClient, &mut self.on, client => client.fetch_add(region, offset, add), AnyClient::Later(_) => Err(UNCONNECTED.into()))
    }

    /// Sets 8 aligned bytes of a region if they are as expected; see [`dunlin_rpc::Client::compare_swap`].
    pub fn compare_swap(
        &mut self,
        region: &RemoteRegion,
        offset: u64,
        expected: u64,
        swap: u64,
    ) -> Result<u64, MemoryError> {
        each_or!(AnyClient, &mut self.on, client => client.compare_swap(region, offset, expected, swap), AnyClient::Later(_) => Err(UNCONNECTED.into()))
    }

    /// Posts a READ, whose result is taken as that of a call; see [`dunlin_rpc::Client::submit_read`].
    pub fn submit_read(
        &mut self,
        region: &RemoteRegion,
        offset: u64,
        length: usize,
    ) -> Result<CallId, MemoryError> {
        each_or!(AnyClient, &mut self.on, client => client.submit_read(region, offset, length), AnyClient::Later(_) => Err(UNCONNECTED.into()))
    }

    /// Posts a WRITE, whose result is taken as that of a call; see [`dunlin_rpc::Client::submit_write`].
    pub fn submit_write(
        &mut self,
        region: &RemoteRegion,
        offset: u64,
        data: &[u8],
    ) -> Result<CallId, MemoryError> {
        each_or!(AnyClient, &mut self.on, client => client.submit_write(region, offset, data), AnyClient::Later(_) => Err(UNCONNECTED.into()))
    }
}
