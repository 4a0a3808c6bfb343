//! Operations on memory that the server exposes, as futures (FLOCK section 6). An operation is a ticket like a call.

use super::hub::Engine;
use super::{AsyncClient, AsyncResponse, AsyncWithin, Call};
use crate::client::memory::{Attached, MemoryOperation, RemoteRegion};
use crate::connect::records::send;
use crate::error::{CallError, Cause, MemoryError};
use dunlin_fabric::{Fabric, Host, Link, Nanos, nanos};
use dunlin_wire::handshake::{Attach as Request, Record};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::TryLockError;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll};

/// The times between two looks for the answer to a request for a region, which wakes nobody: the first, and the most.
const LOOKS: (Nanos, Nanos) = (20_000, 2_000_000);

/// The state of a region on a connection.
enum Step {
    Granted(Attached),
    Refused,
    /// The server has not answered yet.
    Asked,
    /// There is no connection.
    Unconnected,
}

impl<F: Fabric> Engine<F> {
    /// Looks for the grant of a region on all connections of a client that are in use, and asks for it the first time.
    fn attach(&mut self, number: u32, region: u16, name: &str) -> Step {
        let strand = self.routes.get(number as usize).and_then(|route| route.as_ref()?.strand.as_ref());
        let Some(strands) = strand.map(|(strands, _)| Arc::clone(strands)) else {
            return self.attach_on(number, region, name);
        };
        let mut granted = Step::Unconnected;
        for route in strands.routes(true) {
            match self.attach_on(route, region, name) {
                Step::Granted(attached) => granted = Step::Granted(attached),
                // Its clones use others from now on.
                Step::Unconnected if self.retire_strand(route) => {}
                other => return other,
            }
        }
        granted
    }

    fn attach_on(&mut self, number: u32, region: u16, name: &str) -> Step {
        let Engine { core, routes, .. } = self;
        let Some(Some(route)) = routes.get_mut(number as usize) else { return Step::Unconnected };
        let first = route.lanes.all().first().copied();
        let Some(first) = first.filter(|_| route.is_usable(core)) else { return Step::Unconnected };
        core.read_control(first);
        let Some(lane) = core.lane(first) else { return Step::Unconnected };
        let (connection, link) = (lane.connection, lane.link.clone());
        core.take_attached(connection, |region, grant| {
            route.attach(region, Attached::of(connection.into(), grant));
        });
        match route.attached.get_mut(usize::from(region)) {
            Some(Some(Some(attached))) => Step::Granted(*attached),
            // The next request asks again.
            Some(refused @ Some(None)) => {
                *refused = None;
                Step::Refused
            }
            _ if !core.attaching.ask(connection, region) => Step::Asked,
            _ => match send(&link, &Record::Attach(Request { name: name.to_owned() })) {
                Ok(()) => Step::Asked,
                Err(_) => {
                    link.close();
                    Step::Unconnected
                }
            },
        }
    }
}

impl<F: Fabric> AsyncClient<F> {
    /// Attaches a region that the server exposes under a name
    /// ([`ServerBuilder::expose`](crate::ServerBuilder::expose)). The future ends within
    /// [`ClientConfig::connect_timeout`](crate::ClientConfig::connect_timeout), and connects again meanwhile if there is
    /// no connection. The region stays attached when the client connects again.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchRegion`], also for a region that this client may not use; [`MemoryError::TooMany`] beyond
    /// 256 regions; "not executed" if the server has not answered.
    pub fn attach(&self, name: &str) -> Attach<F> {
        let inner = self.connection.hub.inner();
        let until = inner.fabric.host().now().saturating_add(nanos(self.connection.config.connect_timeout));
        let region = self.connection.regions.number(name);
        Attach { client: self.again(), region, number: inner.next_number(), until, wait: LOOKS.0 }
    }

    /// READs `length` bytes of a region, without a handler on the server. Bytes that others write meanwhile may be torn,
    /// also within a word on some fabrics.
    ///
    /// # Errors
    /// Those of a call; nothing was sent if the region does not have the bytes or is not exposed for READs.
    pub fn read(&self, region: &RemoteRegion, offset: u64, length: usize) -> MemoryCall<F, AsyncResponse<F>> {
        self.usually().read(region, offset, length)
    }

    /// WRITEs bytes to a region, without a handler on the server. Errors are those of [`read`](AsyncClient::read).
    pub fn write(&self, region: &RemoteRegion, offset: u64, data: &[u8]) -> MemoryCall<F, ()> {
        self.usually().write(region, offset, data)
    }

    /// Adds to 8 aligned bytes of a region, and returns their old value. Atomic among the operations of the server's
    /// device ([`Capabilities::atomics`](dunlin_fabric::Capabilities::atomics)).
    pub fn fetch_add(&self, region: &RemoteRegion, offset: u64, add: u64) -> MemoryCall<F, u64> {
        self.usually().fetch_add(region, offset, add)
    }

    /// Sets 8 aligned bytes of a region to `swap` if they are `expected`, and returns their old value. Atomic as
    /// [`fetch_add`](AsyncClient::fetch_add).
    pub fn compare_swap(
        &self,
        region: &RemoteRegion,
        offset: u64,
        expected: u64,
        swap: u64,
    ) -> MemoryCall<F, u64> {
        self.usually().compare_swap(region, offset, expected, swap)
    }
}

impl<F: Fabric> AsyncWithin<'_, F> {
    /// As [`AsyncClient::read`].
    pub fn read(&self, region: &RemoteRegion, offset: u64, length: usize) -> MemoryCall<F, AsyncResponse<F>> {
        // A region has less than the most bytes that fit, so a longer length is out of its bounds as well.
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        self.operate(region, MemoryOperation::Read { offset, length: bytes }, length, |response, length| {
            (response.len() == length).then_some(response)
        })
    }

    /// As [`AsyncClient::write`].
    pub fn write(&self, region: &RemoteRegion, offset: u64, data: &[u8]) -> MemoryCall<F, ()> {
        self.operate(region, MemoryOperation::Write { offset, data }, 0, |_, _| Some(()))
    }

    /// As [`AsyncClient::fetch_add`].
    pub fn fetch_add(&self, region: &RemoteRegion, offset: u64, add: u64) -> MemoryCall<F, u64> {
        self.operate(region, MemoryOperation::FetchAdd { offset, add }, 8, word)
    }

    /// As [`AsyncClient::compare_swap`].
    pub fn compare_swap(
        &self,
        region: &RemoteRegion,
        offset: u64,
        expected: u64,
        swap: u64,
    ) -> MemoryCall<F, u64> {
        self.operate(region, MemoryOperation::CompareSwap { offset, expected, swap }, 8, word)
    }

    fn operate<T>(
        &self,
        region: &RemoteRegion,
        operation: MemoryOperation<'_>,
        length: usize,
        result: fn(AsyncResponse<F>, usize) -> Option<T>,
    ) -> MemoryCall<F, T> {
        let connection = &self.client.connection;
        let atomics = connection.hub.inner().fabric.capabilities().atomics.exist();
        let call = operation.check(region, atomics).map_err(Some).map(|()| {
            let start = |payload: &mut Vec<u8>| {
                payload.clear();
                let function = operation.encode(region.number, payload);
                // One queue pair keeps the order of a client's operations.
                self.client.start(Some(0), function, payload, self.time)
            };
            match connection.payload.try_lock() {
                Ok(mut payload) => start(&mut payload),
                Err(TryLockError::Poisoned(poisoned)) => start(&mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => start(&mut Vec::new()),
            }
        });
        MemoryCall { call, length, result }
    }
}

fn word<F: Fabric>(response: AsyncResponse<F>, _: usize) -> Option<u64> {
    response.first_chunk().map(|value| u64::from_le_bytes(*value))
}

/// An operation on memory in progress. Dropping it gives it up; the server's memory may be read or written still.
#[derive(Debug)]
#[must_use = "an operation that is dropped is given up"]
pub struct MemoryCall<F: Fabric, T> {
    /// `None` for an error that was reported.
    call: Result<Call<F>, Option<MemoryError>>,
    length: usize,
    result: fn(AsyncResponse<F>, usize) -> Option<T>,
}

impl<F: Fabric, T> Future for MemoryCall<F, T> {
    type Output = Result<T, MemoryError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let MemoryCall { call, length, result } = self.get_mut();
        let unclear = |cause| MemoryError::Call(CallError::MaybeExecuted(cause));
        match call {
            Ok(call) => Pin::new(call).poll(context).map(|ended| {
                // A length that was not asked for.
                result(ended?, *length).ok_or(unclear(Cause::ProtocolViolation))
            }),
            Err(error) => Poll::Ready(Err(error.take().unwrap_or(unclear(Cause::Closed)))),
        }
    }
}

/// A request for a region in progress: [`AsyncClient::attach`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Attach<F: Fabric> {
    client: AsyncClient<F>,
    region: Result<(u16, Arc<str>), MemoryError>,
    /// The key among the tasks that wait for a connection.
    number: u64,
    until: Nanos,
    wait: Nanos,
}

impl<F: Fabric> Future for Attach<F> {
    type Output = Result<RemoteRegion, MemoryError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (region, name) = match &this.region {
            Ok((region, name)) => (*region, Arc::clone(name)),
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        let connection = Arc::clone(this.client.strand());
        let inner = connection.hub.inner();
        let attempts = connection.attempts.load(Ordering::SeqCst);
        inner.forget_unready(this.number);
        let step = inner.try_lead().map_or(Step::Asked, |mut lead| {
            // A connection that just broke is noticed by this.
            lead.work_after_sleep();
            lead.attach(connection.number, region, &name)
        });
        let now = inner.fabric.host().now();
        match step {
            Step::Granted(attached) => return Poll::Ready(Ok(attached.region(region, name))),
            Step::Refused => {
                return Poll::Ready(Err(MemoryError::NoSuchRegion { name: (*name).to_owned() }));
            }
            Step::Asked if now >= this.until => {
                return Poll::Ready(Err(CallError::NotExecuted(Cause::DeadlineExceeded).into()));
            }
            Step::Unconnected if now >= this.until => {
                return Poll::Ready(Err(CallError::NotExecuted(Cause::Disconnected).into()));
            }
            Step::Asked => {
                let until = this.until.min(now.saturating_add(this.wait));
                this.wait = (2 * this.wait).min(LOOKS.1);
                let replaced = inner.unready().insert(this.number, (until, context.waker().clone()));
                drop(replaced);
                fence(Ordering::SeqCst);
                inner.employ(until);
            }
            Step::Unconnected => {
                connection.await_ready((this.number, attempts), this.until, context.waker());
                connection.reconnect(false);
            }
        }
        Poll::Pending
    }
}

impl<F: Fabric> Drop for Attach<F> {
    fn drop(&mut self) {
        self.client.connection.hub.inner().forget_unready(self.number);
    }
}
