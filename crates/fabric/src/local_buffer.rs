//! Registered memory of this process that its owner uses as a slice, and lends to requests.
//!
//! A [`Buffer`](crate::Buffer) moves into one request as a whole. A [`LocalBuffer`] is lent to any number of requests at
//! a time, each of which has a range of it. While it is lent, its owner has no slice of it. At the end of the loan, the
//! owner gets the memory back if no request has it any more. Otherwise the memory stays with the requests, which may
//! still read and write it, and the owner gets other memory with the same bytes.

use crate::error::{RangeError, RegisterError};
use crate::memory::{Access, Memory, Region};
use crate::region_range::RegionRange;
use crate::verbs::Fabric;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Registers memory of a length for local use.
type Register<M> = Arc<dyn Fn(u64) -> Result<M, RegisterError> + Send + Sync>;

/// The memory of a buffer that is not lent.
enum Owned<M> {
    /// Registered memory of at least this length, in bytes. This is the only handle to it, so nothing else accesses it.
    Registered(Arc<M>, usize),
    /// The bytes after a loan that left the registered memory with requests, when no other memory could be registered.
    /// Empty while the buffer is lent.
    Private(Vec<u8>),
}

/// Registered memory of this process. Dereferences to a slice of its bytes. Each buffer is a registration of its own.
pub struct LocalBuffer<M: Memory> {
    register: Register<M>,
    owned: Owned<M>,
}

impl<M: Memory> fmt::Debug for LocalBuffer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_registered = matches!(self.owned, Owned::Registered(..));
        f.debug_struct("LocalBuffer")
            .field("length", &self.len())
            .field("is_registered", &is_registered)
            .finish()
    }
}

impl<M: Memory> LocalBuffer<M> {
    /// Registers `length` zeroed bytes with a fabric. May block as [`Fabric::register`] does.
    ///
    /// # Errors
    /// Those of a registration. A length of zero is one of them.
    pub fn new<F: Fabric<Memory = M>>(fabric: &F, length: usize) -> Result<Self, RegisterError> {
        let fabric = fabric.clone();
        Self::by(Arc::new(move |length| fabric.register(length, Access::LOCAL)), length)
    }

    fn by(register: Register<M>, length: usize) -> Result<Self, RegisterError> {
        let memory = register(length as u64)?;
        Ok(LocalBuffer { register, owned: Owned::Registered(Arc::new(memory), length) })
    }

    /// Lends `length` bytes from `start` on to requests. The loan ends when its value is dropped. A loan whose value is
    /// leaked takes the bytes with it, and leaves an empty buffer. Allocates nothing.
    ///
    /// # Errors
    /// The range leaves the buffer. Or an earlier loan left the memory with requests, and no other memory can be
    /// registered now either: the bytes stay readable, and a later call tries again.
    pub fn lend(&mut self, start: usize, length: usize) -> Result<Loan<'_, M>, RangeError> {
        let whole = self.len();
        if start > whole || length > whole - start {
            let [offset, length, region] = [start, length, whole].map(|number| number as u64);
            return Err(RangeError::Outside { offset, length, region });
        }
        if let Owned::Private(bytes) = &self.owned {
            let region = Region::new((self.register)(whole as u64)?);
            region.copy_in(0, bytes);
            self.owned = Owned::Registered(Arc::clone(region.memory()), whole);
        }
        let Owned::Registered(memory, _) = &self.owned else {
            return Err(RangeError::Outside { offset: 0, length: 0, region: 0 });
        };
        let memory = Arc::clone(memory);
        let range = Region::from(Arc::clone(&memory)).range(start as u64, length as u64)?;
        self.owned = Owned::Private(Vec::new());
        Ok(Loan { range, _lent: Lent { buffer: self, memory, length: whole } })
    }
}

impl<M: Memory> Deref for LocalBuffer<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.owned {
            // SAFETY: the memory has at least so many bytes, which are initialised (registered memory is zeroed). This
            // is its only handle, so no request and no region accesses it; peers have no access to it.
            Owned::Registered(memory, length) => unsafe {
                std::slice::from_raw_parts(memory.base().as_ptr(), *length)
            },
            Owned::Private(bytes) => bytes,
        }
    }
}

impl<M: Memory> DerefMut for LocalBuffer<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.owned {
            // SAFETY: as in `deref`, and the buffer is borrowed exclusively.
            Owned::Registered(memory, length) => unsafe {
                std::slice::from_raw_parts_mut(memory.base().as_ptr(), *length)
            },
            Owned::Private(bytes) => bytes,
        }
    }
}

/// A range of a [`LocalBuffer`] in use by requests.
#[derive(Debug)]
pub struct Loan<'a, M: Memory> {
    // Dropped first: then the memory of a loan without other ranges has one handle left.
    range: RegionRange<M>,
    _lent: Lent<'a, M>,
}

impl<M: Memory> Loan<'_, M> {
    /// Returns the range for requests. Each clone that exists at the end of the loan keeps the memory from the buffer.
    pub fn range(&self) -> &RegionRange<M> {
        &self.range
    }
}

/// The memory of a buffer that is lent. The buffer takes it back, or gives it up if others still have it.
#[derive(Debug)]
struct Lent<'a, M: Memory> {
    buffer: &'a mut LocalBuffer<M>,
    memory: Arc<M>,
    /// The length of the buffer.
    length: usize,
}

impl<M: Memory> Drop for Lent<'_, M> {
    fn drop(&mut self) {
        let Lent { buffer, memory, length } = self;
        if Arc::get_mut(memory).is_some() {
            // The second handle is dropped with this value, before anybody can use the buffer.
            buffer.owned = Owned::Registered(Arc::clone(memory), *length);
            return;
        }
        buffer.owned = match (buffer.register)(*length as u64) {
            Ok(renewed) => Owned::Registered(Arc::new(renewed), *length),
            Err(_) => Owned::Private(vec![0; *length]),
        };
        Region::from(Arc::clone(memory)).copy_out(0, buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HeapMemory;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Returns a buffer whose memory can be registered `times` times, and the counter of remaining registrations.
    fn buffer(length: usize, times: usize) -> (LocalBuffer<HeapMemory>, Arc<AtomicUsize>) {
        let left = Arc::new(AtomicUsize::new(times));
        let counter = Arc::clone(&left);
        let register = move |length: u64| {
            let refused = RegisterError::Foreign("a test");
            let before = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            before.map_err(|_| refused)?;
            Ok(HeapMemory::new(length as usize, Access::LOCAL).unwrap())
        };
        (LocalBuffer::by(Arc::new(register), length).unwrap(), left)
    }

    #[test]
    fn memory_that_comes_back_is_the_same() {
        let (mut buffer, left) = buffer(100, 1);
        assert_eq!(buffer.len(), 100);
        buffer[10..15].copy_from_slice(b"hello");
        for _ in 0..3 {
            let loan = buffer.lend(10, 5).unwrap();
            let range = loan.range().clone();
            let mut found = [0; 9];
            assert_eq!((range.copy_out(0, &mut found), &found), (5, b"hello\0\0\0\0"));
            range.copy_in(b"HELLO");
            drop(range);
            drop(loan);
            assert_eq!(&buffer[9..16], b"\0HELLO\0");
            buffer[10..15].copy_from_slice(b"hello");
        }
        assert_eq!(left.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ranges_out_of_the_buffer_are_refused() {
        let (mut buffer, _) = buffer(100, 1);
        for (start, length) in [(0, 101), (101, 0), (100, 1), (usize::MAX, 2), (1, usize::MAX)] {
            assert!(
                matches!(buffer.lend(start, length), Err(RangeError::Outside { .. })),
                "{start} {length}"
            );
        }
        assert_eq!(buffer.lend(100, 0).unwrap().range().length(), 0);
        assert_eq!(buffer.len(), 100);
    }

    /// Memory that somebody still has at the end of the loan is not that of the buffer any more.
    #[test]
    fn memory_that_is_kept_is_never_seen_again() {
        let (mut buffer, left) = buffer(100, 2);
        buffer.fill(1);
        let loan = buffer.lend(0, 100).unwrap();
        let late = loan.range().clone();
        late.copy_in(&[2; 50]);
        drop(loan);
        late.copy_in(&[3; 100]);
        assert!(buffer[..50].iter().all(|byte| *byte == 2) && buffer[50..].iter().all(|byte| *byte == 1));
        buffer.fill(4);
        let mut found = [0; 100];
        late.copy_out(0, &mut found);
        assert_eq!((found, left.load(Ordering::Relaxed)), ([3; 100], 0));
        // The memory is free once the last range of it is gone.
        let memory = Arc::downgrade(late.region().memory());
        drop(late);
        assert!(memory.upgrade().is_none());
    }

    #[test]
    fn without_other_memory_the_bytes_stay_and_the_next_loan_tries_again() {
        let (mut buffer, left) = buffer(100, 1);
        buffer.fill(7);
        let loan = buffer.lend(0, 1).unwrap();
        let late = loan.range().clone();
        drop(loan);
        late.copy_in(&[9]);
        assert_eq!(*buffer, [7; 100]);
        buffer[99] = 8;
        assert!(matches!(buffer.lend(0, 100), Err(RangeError::Register(RegisterError::Foreign(_)))));
        left.store(1, Ordering::Relaxed);
        let loan = buffer.lend(99, 1).unwrap();
        let range = loan.range().clone();
        let mut found = [0];
        range.copy_out(0, &mut found);
        assert_eq!(found, [8]);
        drop(range);
        drop(loan);
        assert_eq!((buffer[98], buffer[99]), (7, 8));
    }

    #[test]
    #[expect(clippy::mem_forget, reason = "the leak is the case")]
    fn a_loan_that_is_leaked_takes_the_bytes_with_it() {
        let (mut buffer, _) = buffer(100, 1);
        let loan = buffer.lend(0, 100).unwrap();
        let range = loan.range().clone();
        std::mem::forget(loan);
        range.copy_in(&[1; 100]);
        assert!(buffer.is_empty() && buffer.lend(0, 1).is_err());
        buffer.fill(2);
        // Gives the leaked memory back to the test's allocator: the handle of the loan.
        let memory = Arc::as_ptr(range.region().memory());
        drop(range);
        // SAFETY: the leaked loan has two handles, of its range and of its own.
        unsafe {
            Arc::decrement_strong_count(memory);
            Arc::decrement_strong_count(memory);
        }
    }
}
