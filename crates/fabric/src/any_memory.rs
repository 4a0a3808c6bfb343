//! Registered memory of any fabric of this process, for another fabric to register as well.

use crate::error::RegisterError;
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

    /// Returns memory that has all of `parts`, which it keeps, if each begins at the address where the last one ends. Its
    /// access is what all of them allow. A NIC registers it as one.
    pub fn joined(parts: &[AnyMemory]) -> Option<AnyMemory> {
        let (first, others) = parts.split_first()?;
        let mut end = end_of(first)?;
        let mut access = first.access().bits();
        for part in others {
            if part.base().addr().get() != end {
                return None;
            }
            end = end_of(part)?;
            access &= part.access().bits();
        }
        let (length, access) = (end - first.base().addr().get(), Access::from_bits(access)?);
        Some(AnyMemory::new(Arc::new(Joined { parts: parts.to_vec(), length, access })))
    }

    /// Returns the memory by its type, if it has this one.
    pub fn downcast<M: Memory>(&self) -> Option<Arc<M>> {
        Arc::clone(&self.typed).downcast().ok()
    }
}

/// Returns the address behind the last byte.
fn end_of(part: &AnyMemory) -> Option<usize> {
    part.base().addr().get().checked_add(part.length())
}

/// Parts of memory, at least one, whose addresses follow each other.
#[derive(Debug)]
struct Joined {
    parts: Vec<AnyMemory>,
    length: usize,
    access: Access,
}

// SAFETY: each byte of the range belongs to a part, as `joined` has checked, and this value keeps the parts.
unsafe impl Memory for Joined {
    fn base(&self) -> NonNull<u8> {
        self.parts[0].base()
    }
    fn length(&self) -> usize {
        self.length
    }
    fn access(&self) -> Access {
        self.access
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
    fn prepare_local(&self) -> Result<(), RegisterError> {
        self.memory.prepare_local()
    }
    fn adopted(&self) -> Option<&AnyMemory> {
        self.memory.adopted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HeapMemory, Region};

    /// Two halves of one block of the heap.
    #[derive(Debug)]
    struct Half(Arc<HeapMemory>, usize, Access);
    // SAFETY: half of the range of the memory that the value keeps.
    unsafe impl Memory for Half {
        fn base(&self) -> NonNull<u8> {
            // SAFETY: the offset is in the range.
            unsafe { self.0.base().add(self.1) }
        }
        fn length(&self) -> usize {
            2048
        }
        fn access(&self) -> Access {
            self.2
        }
    }

    #[test]
    fn adjacent_parts_are_joined_and_others_are_not() {
        let whole = Arc::new(HeapMemory::new(4096, Access::READ).unwrap());
        let both = Access::READ.with(Access::WRITE);
        let half = |at, access| AnyMemory::new(Arc::new(Half(Arc::clone(&whole), at, access)));
        let [low, high] = [half(0, both), half(2048, Access::READ)];
        let joined = AnyMemory::joined(&[low.clone(), high.clone()]).unwrap();
        assert_eq!((joined.length(), joined.access(), joined.base()), (4096, Access::READ, whole.base()));
        for apart in [vec![], vec![high.clone(), low.clone()], vec![low.clone(), low.clone()]] {
            assert!(AnyMemory::joined(&apart).is_none(), "{apart:?}");
        }
        assert_eq!(AnyMemory::joined(std::slice::from_ref(&high)).unwrap().length(), 2048);
        let weak = Arc::downgrade(&whole);
        drop((low, high, whole));
        Region::new(joined.clone()).store(4088, 7);
        assert!(weak.upgrade().is_some(), "the parts live as long as the whole");
        drop(joined);
        assert!(weak.upgrade().is_none());
    }

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
