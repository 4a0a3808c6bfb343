//! The tier for applications that do not care where the node is: in their own process ([`Tier`]), or in one of its own
//! (`dunlin-tier-client`). Each method is that of the same name of both types.

use crate::asynchronous::TimedLmr;
use crate::calling::EachCall;
use crate::error::{ListError, OperationError, ReceiveError, RequestError};
use crate::list::{Operations, Outcomes};
use crate::lmr::Lmr;
use crate::locks::{Guard, LockError};
use crate::memcpy::Position;
use crate::serving::Calls;
use crate::spec::Spec;
use crate::tier::Tier;
use dunlin_fabric::{Fabric, Host};
use dunlin_rpc::Status;
use dunlin_tier::Rights;
use std::time::Duration;

/// A tier, by whichever way it is reached. Clones are the same one; all methods may be called from any thread.
pub trait AnyTier: Clone + Send + Sync + 'static {
    /// A region that is mapped.
    type Lmr: AnyLmr;
    /// A lock that is held.
    type Guard: AnyGuard;
    /// Time, waiting and threads: those of the machine, or virtual ones.
    type Host: Host;

    /// Returns the host.
    fn host(&self) -> &Self::Host;

    /// Returns the name of the own node, or of the node that this process is attached to.
    fn node_name(&self) -> &str;

    /// Returns the names of all nodes, in the order of the list. Blocks as a request does, if the node is another process.
    ///
    /// # Errors
    /// The node has ended, or does not answer.
    #[cfg_attr(feature = "counted", deprecated)]
    fn node_names(&self) -> Result<Vec<String>, RequestError>;

    /// Allocates a zeroed region: [`Tier::malloc`].
    ///
    /// # Errors
    /// As [`Tier::malloc`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn malloc(&self, length: u64, spec: Spec) -> Result<Self::Lmr, RequestError>;

    /// Maps a region by its name: [`Tier::map`].
    ///
    /// # Errors
    /// As [`Tier::map`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn map(&self, name: &[u8], rights: Rights) -> Result<Self::Lmr, RequestError>;

    /// Takes the lock of a name: [`Tier::lock`].
    ///
    /// # Errors
    /// As [`Tier::lock`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn lock(&self, name: &[u8]) -> Result<Self::Guard, LockError>;

    /// Takes the lock of a name, and waits for at most `time`: [`Tier::lock_within`].
    ///
    /// # Errors
    /// As [`Tier::lock`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn lock_within(&self, name: &[u8], time: Duration) -> Result<Self::Guard, LockError>;

    /// Takes the lock of a name if it is free: [`Tier::try_lock`].
    ///
    /// # Errors
    /// As [`Tier::try_lock`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn try_lock(&self, name: &[u8]) -> Result<Option<Self::Guard>, LockError>;

    /// Returns the name of the node that owns the lock of a name: [`Tier::lock_home`]. Blocks as a request does, if the
    /// node is another process.
    ///
    /// # Errors
    /// The name is invalid, or the node has ended, or does not answer.
    #[cfg_attr(feature = "counted", deprecated)]
    fn lock_home(&self, name: &[u8]) -> Result<String, RequestError>;

    /// Waits at the barrier of a name: [`Tier::barrier`].
    ///
    /// # Errors
    /// As [`Tier::barrier`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn barrier(&self, name: &[u8], members: u16) -> Result<(), LockError>;

    /// Waits at the barrier of a name for at most `time`: [`Tier::barrier_within`].
    ///
    /// # Errors
    /// As [`Tier::barrier`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn barrier_within(&self, name: &[u8], members: u16, time: Duration) -> Result<(), LockError>;
}

/// The calls of a tier to services, and its own services, by whichever way it is reached.
pub trait AnyServices: AnyTier {
    /// A function of a service that this program serves.
    type Calls: AnyCalls;

    /// Returns the principal for whom this tier acts.
    #[cfg_attr(feature = "counted", deprecated)]
    fn principal(&self) -> &str;

    /// Registers a function of a service at the own node: [`Tier::register`].
    ///
    /// # Errors
    /// As [`Tier::register`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn register(&self, service: &[u8], function: u16) -> Result<Self::Calls, RequestError>;

    /// Calls a function (node, service, number), and copies the result into `answer`; returns its length. Blocks for
    /// `time` at most: [`Tier::call_within`].
    ///
    /// # Errors
    /// As [`Tier::call`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn call_within(
        &self,
        time: Duration,
        to: (&str, &[u8], u16),
        request: &[u8],
        answer: &mut [u8],
    ) -> Result<usize, RequestError>;

    /// Makes several calls at the same time: [`Tier::call_each`].
    ///
    /// # Errors
    /// As [`Tier::call_each`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn call_each(
        &self,
        time: Duration,
        calls: &[EachCall<'_>],
    ) -> Result<Vec<Result<Vec<u8>, RequestError>>, RequestError>;

    /// Sends a request whose result nobody waits for, to a function (node, service, number): [`Tier::send`].
    ///
    /// # Errors
    /// As [`Tier::send`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn send(&self, to: (&str, &[u8], u16), request: &[u8]) -> Result<(), RequestError>;

    /// Returns the names of the nodes at which a service is registered: [`Tier::servers`].
    ///
    /// # Errors
    /// As [`Tier::servers`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn servers(&self, service: &[u8]) -> Result<Vec<String>, RequestError>;
}

/// A function of a service that is served, by whichever way. Dropping it ends the registration.
pub trait AnyCalls: Send + Sync + 'static {
    /// Receives one call into `buffer`, passes the caller's principal and the request to `answer`, and replies with its
    /// bytes. Without bytes the call is refused. Blocks until a call comes.
    ///
    /// # Errors
    /// The node has ended, or the call is longer than the buffer. A reply that could not be sent is no error: its caller
    /// hears that the call may have been executed.
    #[cfg_attr(feature = "counted", deprecated)]
    fn serve_one(
        &self,
        buffer: &mut [u8],
        answer: impl FnOnce(&str, &[u8]) -> Option<Vec<u8>>,
    ) -> Result<(), ReceiveError>;
}

/// A lock that is held, by whichever way: the methods of [`Guard`]. Dropping it gives the lock back.
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait AnyGuard: Send + 'static {
    #[cfg_attr(feature = "counted", deprecated)]
    fn fence(&self) -> u64;
    #[cfg_attr(feature = "counted", deprecated)]
    fn is_poisoned(&self) -> bool;
    #[cfg_attr(feature = "counted", deprecated)]
    fn unlock(self) -> Result<(), LockError>;
}

/// A region that is mapped, by whichever way: the methods of [`Lmr`].
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait AnyLmr: Send + Sync + 'static {
    #[cfg_attr(feature = "counted", deprecated)]
    fn len(&self) -> u64;
    #[cfg_attr(feature = "counted", deprecated)]
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    #[cfg_attr(feature = "counted", deprecated)]
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError>;
    #[cfg_attr(feature = "counted", deprecated)]
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError>;
    #[cfg_attr(feature = "counted", deprecated)]
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OperationError>;
    #[cfg_attr(feature = "counted", deprecated)]
    fn compare_swap(&self, offset: u64, expected: u64, swap: u64) -> Result<u64, OperationError>;
    #[cfg_attr(feature = "counted", deprecated)]
    fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError>;
    #[cfg_attr(feature = "counted", deprecated)]
    fn grant_anyone(&self, rights: Rights) -> Result<(), RequestError>;
    #[cfg_attr(feature = "counted", deprecated)]
    fn free(self) -> Result<(), RequestError>;
}

/// An operation of a list, by whichever way: those of [`Operations`].
#[derive(Debug)]
#[allow(missing_docs)]
pub enum AnyOperation<'a, L> {
    Read { lmr: &'a L, offset: u64, into: &'a mut [u8] },
    Write { lmr: &'a L, offset: u64, from: &'a [u8] },
    FetchAdd { lmr: &'a L, offset: u64, add: u64 },
    CompareSwap { lmr: &'a L, offset: u64, expected: u64, swap: u64 },
    Memset { lmr: &'a L, offset: u64, length: u64, value: u8 },
    Memcpy { to: Position<'a, L>, from: Position<'a, L>, length: u64 },
}

/// Lists of operations of a tier, by whichever way it is reached.
pub trait AnyLists: AnyTier<Lmr: TimedLmr> {
    /// Runs a list of at most [`MAX_LISTED`](dunlin_tier::process::list::MAX_LISTED) operations that move
    /// [`MAX_LISTED_BYTES`](dunlin_tier::process::list::MAX_LISTED_BYTES) bytes: [`Operations::run`].
    ///
    /// # Errors
    /// As [`Operations::run`].
    #[cfg_attr(feature = "counted", deprecated)]
    fn run_list(&self, list: Vec<AnyOperation<'_, Self::Lmr>>) -> Result<Outcomes, ListError> {
        <Self::Lmr as TimedLmr>::run_list(None, list)
    }
}

impl<T: AnyTier<Lmr: TimedLmr>> AnyLists for T {}

/// Implements [`AnyServices`] by the methods of the same names of a type.
#[macro_export]
macro_rules! any_services {
    ($tier:ident, $calls:ident, $fabric:path) => {
        impl<F: $fabric> $crate::AnyServices for $tier<F> {
            type Calls = $calls<F>;

            fn principal(&self) -> &str {
                self.principal()
            }

            fn register(&self, service: &[u8], function: u16) -> Result<$calls<F>, $crate::RequestError> {
                self.register(service, function)
            }

            fn call_within(
                &self,
                time: std::time::Duration,
                to: (&str, &[u8], u16),
                request: &[u8],
                answer: &mut [u8],
            ) -> Result<usize, $crate::RequestError> {
                self.call_within(time, to, request, answer)
            }

            fn call_each(
                &self,
                time: std::time::Duration,
                calls: &[$crate::EachCall<'_>],
            ) -> Result<Vec<Result<Vec<u8>, $crate::RequestError>>, $crate::RequestError> {
                self.call_each(time, calls)
            }

            fn send(&self, to: (&str, &[u8], u16), request: &[u8]) -> Result<(), $crate::RequestError> {
                self.send(to.0, to.1, to.2, request)
            }

            fn servers(&self, service: &[u8]) -> Result<Vec<String>, $crate::RequestError> {
                self.servers(service)
            }
        }
    };
}

any_services!(Tier, Calls, Fabric);

impl<F: Fabric> AnyCalls for Calls<F> {
    fn serve_one(
        &self,
        buffer: &mut [u8],
        answer: impl FnOnce(&str, &[u8]) -> Option<Vec<u8>>,
    ) -> Result<(), ReceiveError> {
        let request = self.receive(buffer)?;
        // Without a caller the call was forgotten: its time was over.
        if let Some(caller) = request.caller() {
            match answer(caller.as_str(), &buffer[..request.len()]) {
                Some(bytes) => request.reply(&bytes),
                None => request.refuse(Status::Unauthorised),
            }
        }
        Ok(())
    }
}

/// Implements the methods of [`AnyTier`] for locks and barriers by those of the same names of a type.
#[macro_export]
macro_rules! any_locks {
    ($guard:ty) => {
        fn lock(&self, name: &[u8]) -> Result<$guard, $crate::LockError> {
            self.lock(name)
        }

        fn lock_within(&self, name: &[u8], time: std::time::Duration) -> Result<$guard, $crate::LockError> {
            self.lock_within(name, time)
        }

        fn try_lock(&self, name: &[u8]) -> Result<Option<$guard>, $crate::LockError> {
            self.try_lock(name)
        }

        fn barrier(&self, name: &[u8], members: u16) -> Result<(), $crate::LockError> {
            self.barrier(name, members)
        }

        fn barrier_within(
            &self,
            name: &[u8],
            members: u16,
            time: std::time::Duration,
        ) -> Result<(), $crate::LockError> {
            self.barrier_within(name, members, time)
        }
    };
}

/// Implements [`AnyGuard`] by the methods of the same names of a type.
#[macro_export]
macro_rules! any_guard {
    ($guard:ident, $fabric:path) => {
        impl<F: $fabric> $crate::AnyGuard for $guard<F> {
            fn fence(&self) -> u64 {
                self.fence()
            }
            fn is_poisoned(&self) -> bool {
                self.is_poisoned()
            }
            fn unlock(self) -> Result<(), $crate::LockError> {
                self.unlock()
            }
        }
    };
}

any_guard!(Guard, Fabric);

impl<F: Fabric> AnyTier for Tier<F> {
    type Lmr = Lmr<F>;
    type Guard = Guard<F>;
    type Host = F::Host;

    fn host(&self) -> &F::Host {
        self.fabric().host()
    }

    fn node_name(&self) -> &str {
        self.name()
    }

    fn node_names(&self) -> Result<Vec<String>, RequestError> {
        Ok(self.nodes().collect())
    }

    fn lock_home(&self, name: &[u8]) -> Result<String, RequestError> {
        Ok(self.lock_home(name)?)
    }

    fn malloc(&self, length: u64, spec: Spec) -> Result<Lmr<F>, RequestError> {
        self.malloc(length, spec)
    }

    fn map(&self, name: &[u8], rights: Rights) -> Result<Lmr<F>, RequestError> {
        self.map(name, rights)
    }

    any_locks!(Guard<F>);
}

/// Implements [`AnyLmr`] by the methods of the same names of a type.
#[macro_export]
macro_rules! any_lmr {
    ($lmr:ident, $fabric:path) => {
        impl<F: $fabric> $crate::AnyLmr for $lmr<F> {
            fn len(&self) -> u64 {
                self.len()
            }
            fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), $crate::OperationError> {
                self.read(offset, into)
            }
            fn write(&self, offset: u64, from: &[u8]) -> Result<(), $crate::OperationError> {
                self.write(offset, from)
            }
            fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, $crate::OperationError> {
                self.fetch_add(offset, add)
            }
            fn compare_swap(
                &self,
                offset: u64,
                expected: u64,
                swap: u64,
            ) -> Result<u64, $crate::OperationError> {
                self.compare_swap(offset, expected, swap)
            }
            fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), $crate::OperationError> {
                self.memset(offset, length, value)
            }
            fn grant_anyone(&self, rights: $crate::Rights) -> Result<(), $crate::RequestError> {
                self.grant_anyone(rights)
            }
            fn free(self) -> Result<(), $crate::RequestError> {
                self.free()
            }
        }
    };
}

any_lmr!(Lmr, Fabric);
crate::timed_lmr!(Lmr, Fabric, Operations);
