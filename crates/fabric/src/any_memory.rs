//! Registered memory of any fabric of this process, for another fabric to register as well.

use crate::memory::{Access, Memory};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// Registered memory whose fabric is not part of its type. Clones are the same memory, which lives until the last of them
/// and of the registrations that [`Fabric::adopt`](crate::Fabric::adopt) made of it is dropped.
#[derive(Clone, Debug)]
pub struct AnyMemory {
    memory: Arc<dyn Memory>,
    typed: Arc<dyn Any + Send + Sync>,
}

impl AnyMemory {
    /// Forgets the type of memory.
    pub fn new<M: Memory>(memory: Arc<M>) -> AnyMemory {
        AnyMemory { typed: Arc::clone(&memory) as _, memory }
    }

    /// Returns the memory by its type, if it has this one.
    pub fn downcast<M: Memory>(&self) -> Option<Arc<M>> {
        Arc::clone(&self.typed).downcast().ok()
    }
}

// SAFETY: the range is that of `memory`, which this value keeps.
unsafe impl Memory for AnyMemory {
    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }
    fn length(&self) -> usize {
        self.memory.length()
    }
    fn access(&self) -> Access {
        self.memory.access()
    }
    fn adopted(&self) -> Option<&AnyMemory> {
        self.memory.adopted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HeapMemory, Region};

    #[test]
    fn memory_without_a_type_is_the_same_memory() {
        #[derive(Debug)]
        struct Other(HeapMemory);
        // SAFETY: the range is that of the memory that the value keeps.
        unsafe impl Memory for Other {
            fn base(&self) -> NonNull<u8> {
                self.0.base()
            }
            fn length(&self) -> usize {
                self.0.length()
            }
            fn access(&self) -> Access {
                self.0.access()
            }
        }
        let typed = Region::new(HeapMemory::new(4096, Access::READ).unwrap());
        let any = AnyMemory::new(Arc::clone(typed.memory()));
        assert_eq!((any.length(), any.access()), (4096, Access::READ));
        assert!(any.downcast::<Other>().is_none() && any.adopted().is_none());
        let untyped = Region::new(any.clone());
        untyped.store(64, 7);
        assert_eq!(typed.load(64), 7);
        drop((typed, untyped));
        let typed = Region::from(any.downcast::<HeapMemory>().unwrap());
        drop(any);
        assert_eq!(typed.load(64), 7);
    }
}
