//! The tier for applications that do not care where the node is: in their own process ([`Tier`]), or in one of its own
//! (`dunlin-tier-client`). Each method is that of the same name of both types.

use crate::error::{OperationError, RequestError};
use crate::lmr::Lmr;
use crate::spec::Spec;
use crate::tier::Tier;
use dunlin_fabric::{Fabric, Host};
use dunlin_tier::Rights;

/// A tier, by whichever way it is reached. Clones are the same one; all methods may be called from any thread.
pub trait AnyTier: Clone + Send + Sync + 'static {
    /// A region that is mapped.
    type Lmr: AnyLmr;
    /// Time, waiting and threads: those of the machine, or virtual ones.
    type Host: Host;

    /// Returns the host.
    fn host(&self) -> &Self::Host;

    /// Returns the names of all nodes, in the order of the list. Blocks as a request does, if the node is another process.
    ///
    /// # Errors
    /// The node has ended, or does not answer.
    fn node_names(&self) -> Result<Vec<String>, RequestError>;

    /// Allocates a zeroed region: [`Tier::malloc`].
    ///
    /// # Errors
    /// As [`Tier::malloc`].
    fn malloc(&self, length: u64, spec: Spec) -> Result<Self::Lmr, RequestError>;

    /// Maps a region by its name: [`Tier::map`].
    ///
    /// # Errors
    /// As [`Tier::map`].
    fn map(&self, name: &[u8], rights: Rights) -> Result<Self::Lmr, RequestError>;
}

/// A region that is mapped, by whichever way: the methods of [`Lmr`].
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait AnyLmr: Send + Sync + 'static {
    fn len(&self) -> u64;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError>;
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError>;
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OperationError>;
    fn compare_swap(&self, offset: u64, expected: u64, swap: u64) -> Result<u64, OperationError>;
    fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError>;
    fn grant_anyone(&self, rights: Rights) -> Result<(), RequestError>;
    fn free(self) -> Result<(), RequestError>;
}

impl<F: Fabric> AnyTier for Tier<F> {
    type Lmr = Lmr<F>;
    type Host = F::Host;

    fn host(&self) -> &F::Host {
        self.fabric().host()
    }

    fn node_names(&self) -> Result<Vec<String>, RequestError> {
        Ok(self.nodes().map(str::to_owned).collect())
    }

    fn malloc(&self, length: u64, spec: Spec) -> Result<Lmr<F>, RequestError> {
        self.malloc(length, spec)
    }

    fn map(&self, name: &[u8], rights: Rights) -> Result<Lmr<F>, RequestError> {
        self.map(name, rights)
    }
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
