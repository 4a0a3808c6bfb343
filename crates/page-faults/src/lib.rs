//! Memory of a process whose page faults the process answers itself, by `userfaultfd`.
//!
//! A thread that loads from a page that is absent, or stores to one that is protected, waits until another thread has
//! placed the page, or lifted the protection. The faults are those of user mode: a system call on an absent page fails
//! with EFAULT. A thread that answers faults must not touch absent pages itself.
//!
//! Loads and stores go through atomic words ([`FaultMemory::words`]): pages come and go under the hands of other threads,
//! as in memory that processes share.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, UserfaultfdFlags, userfaultfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use thiserror::Error;

/// The bytes of a page.
pub const PAGE: usize = 4096;
const WORD: usize = 8;

/// The reason why such memory cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FaultError {
    /// The kernel does not give this process a userfaultfd.
    #[error(
        "the kernel refuses userfaultfd, which page faults of shared memory need: Linux 5.11 or later, and no policy that \
         forbids it (seccomp, containers)"
    )]
    Refused(#[source] std::io::Error),
    /// The kernel does not support write protection.
    #[error("the kernel has no write protection by userfaultfd: Linux 5.11 or later is needed")]
    NoWriteProtection,
    /// Something else is mapped at the address.
    #[error("the addresses from {address:#x} on are in use in this process: choose others for all members")]
    Taken {
        /// The first address.
        address: u64,
    },
    /// The address or the size is no multiple of the page size, or the size is zero.
    #[error("the address {address:#x} is no multiple of 4096, or there are no pages")]
    Address {
        /// The first address.
        address: u64,
    },
    /// The pages of this machine do not have 4096 bytes.
    #[error("pages of this machine have {0} bytes: 4096 are needed")]
    PageSize(usize),
    /// A system call failed.
    #[error("{what} failed")]
    Call {
        /// The call.
        what: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(Errno) -> FaultError {
    move |error| FaultError::Call { what, source: error.into() }
}

/// A thread that waits at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The page is absent.
    Absent(usize),
    /// The page is protected, and the thread stores to it.
    Protected(usize),
}

// The structures and numbers of <linux/userfaultfd.h>.

const API: u64 = 0xaa;
const FEATURE_WRITE_PROTECTION: u64 = 1;
const USER_MODE_ONLY: u32 = 1;
const REGISTER_ABSENT: u64 = 1;
const REGISTER_PROTECTED: u64 = 2;
const COPY_PROTECTED: u64 = 2;
const PROTECT: u64 = 1;
const EVENT_PAGE_FAULT: u8 = 0x12;
const FLAG_PROTECTED: u64 = 2;
/// The bytes of a message: event, flags at 8, address at 16.
const MESSAGE: usize = 32;

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct Protection {
    start: u64,
    length: u64,
    mode: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    length: u64,
}

const REQUEST_API: Opcode = opcode::read_write::<ApiRequest>(0xaa, 0x3f);
const REQUEST_REGISTER: Opcode = opcode::read_write::<Register>(0xaa, 0);
const REQUEST_WAKE: Opcode = opcode::read::<Range>(0xaa, 2);
const REQUEST_COPY: Opcode = opcode::read_write::<Copy>(0xaa, 3);
const REQUEST_PROTECT: Opcode = opcode::read_write::<Protection>(0xaa, 6);

/// Makes a request whose structure the kernel reads and writes.
fn request<const REQUEST: Opcode, T>(fd: BorrowedFd<'_>, value: &mut T) -> Result<(), Errno> {
    // SAFETY: each number above is that of its structure, which has the layout of the kernel's. The requests change
    // memory of `FaultMemory` only, whose bytes are accessed as atomic words.
    unsafe { ioctl(fd, Updater::<REQUEST, T>::new(value)) }
}

/// Opens a userfaultfd for faults of user mode, which processes without privileges may have.
fn open() -> Result<OwnedFd, FaultError> {
    let flags = UserfaultfdFlags::CLOEXEC
        | UserfaultfdFlags::NONBLOCK
        | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: the descriptor has no memory yet; what is registered with it is memory of `FaultMemory`.
    unsafe { userfaultfd(flags) }.map_err(|error| FaultError::Refused(error.into()))
}

/// Opens a userfaultfd, and checks that it has write protection.
fn open_checked() -> Result<OwnedFd, FaultError> {
    let fd = open()?;
    let mut api = ApiRequest { api: API, features: FEATURE_WRITE_PROTECTION, ioctls: 0 };
    match request::<REQUEST_API, _>(fd.as_fd(), &mut api) {
        Ok(()) => Ok(fd),
        Err(Errno::INVAL) => Err(FaultError::NoWriteProtection),
        Err(error) => Err(failed("the greeting of userfaultfd")(error)),
    }
}

/// Checks that this process may answer its page faults: for a diagnosis.
///
/// # Errors
/// The reason why not.
pub fn check() -> Result<(), FaultError> {
    FaultMemory::new(None, 1).map(drop)
}

/// Pages that are absent until they are placed.
#[derive(Debug)]
pub struct FaultMemory {
    base: NonNull<u8>,
    pages: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the process; its bytes are accessed as atomic words, and the kernel serialises requests.
unsafe impl Send for FaultMemory {}
// SAFETY: as above.
unsafe impl Sync for FaultMemory {}

impl FaultMemory {
    /// Maps pages at an address, or where the kernel chooses. All of them are absent.
    ///
    /// # Errors
    /// The kernel does not permit it, or the addresses are in use.
    pub fn new(address: Option<u64>, pages: usize) -> Result<FaultMemory, FaultError> {
        let page_size = rustix::param::page_size();
        if page_size != PAGE {
            return Err(FaultError::PageSize(page_size));
        }
        let at = address.unwrap_or_default();
        let length = pages.checked_mul(PAGE).filter(|length| *length > 0 && at.is_multiple_of(PAGE as u64));
        let length = length.ok_or(FaultError::Address { address: at })?;
        let fd = open_checked()?;
        let fixed = if address.is_some() { MapFlags::FIXED_NOREPLACE } else { MapFlags::empty() };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | fixed;
        // SAFETY: a new mapping, at an address that the kernel chooses or that nothing else has.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                at as usize as *mut _,
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        let base = match mapped {
            Ok(base) => base.cast::<u8>(),
            Err(Errno::EXIST) => return Err(FaultError::Taken { address: at }),
            Err(error) => return Err(failed("mmap")(error)),
        };
        let base = NonNull::new(base).ok_or(FaultError::Address { address: 0 })?;
        let memory = FaultMemory { base, pages, fd };
        if address.is_some_and(|address| memory.address() != address) {
            // A kernel before 4.17 takes the address as a hint.
            return Err(FaultError::Taken { address: at });
        }
        // One page at a time comes and goes.
        memory.advise(0, pages, Advice::LinuxNoHugepage)?;
        // A child process would find zeros, with nobody to answer its faults.
        memory.advise(0, pages, Advice::LinuxDontFork)?;
        let mut register = Register {
            start: memory.address(),
            length: length as u64,
            mode: REGISTER_ABSENT | REGISTER_PROTECTED,
            ioctls: 0,
        };
        request::<REQUEST_REGISTER, _>(memory.fd.as_fd(), &mut register)
            .map_err(failed("the registration of memory with userfaultfd"))?;
        if register.ioctls & (1 << 6) == 0 {
            return Err(FaultError::NoWriteProtection);
        }
        Ok(memory)
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the memory as words. A load from an absent page and a store to a protected one wait for the thread that
    /// answers faults.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping lives as long as the value, is aligned to a page, and each pattern of bits is a word. Only
        // the kernel writes to it otherwise, as it would for another process that shares the memory.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.pages * PAGE / WORD) }
    }

    fn start(&self, page: usize) -> u64 {
        debug_assert!(page < self.pages);
        self.address() + (page.min(self.pages - 1) * PAGE) as u64
    }

    fn advise(&self, page: usize, pages: usize, advice: Advice) -> Result<(), FaultError> {
        let start = self.start(page) as usize as *mut _;
        let length = pages.min(self.pages - page) * PAGE;
        // SAFETY: a part of this value's own mapping, which is accessed as atomic words only: pages may become absent.
        unsafe { rustix::mm::madvise(start, length, advice) }.map_err(failed("madvise"))
    }

    /// Waits for a thread that waits at a page, for `time` at most. Several threads may wait at one page, with a fault each.
    ///
    /// # Errors
    /// A system call failed.
    pub fn next(&self, time: Duration) -> Result<Option<Fault>, FaultError> {
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        match poll(&mut polled, Some(&time)) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(failed("poll")(error)),
        }
        let mut message = [0u8; MESSAGE];
        match rustix::io::read(&self.fd, &mut message) {
            Ok(MESSAGE) => {}
            // Another thread has answered it.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(failed("the read of a page fault")(error)),
        }
        let word = |at: usize| {
            message[at..at + 8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte))
        };
        let (flags, address) = (word(8), word(16));
        let page = address.wrapping_sub(self.address()) as usize / PAGE;
        if message[0] != EVENT_PAGE_FAULT || page >= self.pages {
            return Ok(None);
        }
        Ok(Some(if flags & FLAG_PROTECTED != 0 { Fault::Protected(page) } else { Fault::Absent(page) }))
    }

    /// Places absent pages from `page` on, protected or not, and wakes the threads that wait for them. The bytes are those of
    /// whole pages.
    ///
    /// # Errors
    /// A page is there, or memory is short; earlier ones are placed.
    pub fn place(&self, page: usize, bytes: &[u8], is_protected: bool) -> Result<(), FaultError> {
        let pages = bytes.len() / PAGE;
        if pages * PAGE != bytes.len() || pages > self.pages.saturating_sub(page) {
            return Err(FaultError::Address { address: self.start(page) });
        }
        let mode = if is_protected { COPY_PROTECTED } else { 0 };
        let mut done = 0;
        while done < bytes.len() {
            let (from, length) = (bytes[done..].as_ptr() as u64, (bytes.len() - done) as u64);
            let mut copy = Copy { to: self.start(page) + done as u64, from, length, mode, copied: 0 };
            match request::<REQUEST_COPY, _>(self.fd.as_fd(), &mut copy) {
                Ok(()) => break,
                // The mappings of the process changed meanwhile.
                Err(Errno::AGAIN) => done += usize::try_from(copy.copied).unwrap_or(0),
                Err(error) => return Err(failed("the placing of pages")(error)),
            }
        }
        Ok(())
    }

    /// Protects a page that is there from stores, or lifts the protection and wakes the threads that wait.
    ///
    /// # Errors
    /// A system call failed.
    pub fn protect(&self, page: usize, is_protected: bool) -> Result<(), FaultError> {
        let mode = if is_protected { PROTECT } else { 0 };
        let mut protection = Protection { start: self.start(page), length: PAGE as u64, mode };
        loop {
            match request::<REQUEST_PROTECT, _>(self.fd.as_fd(), &mut protection) {
                Err(Errno::AGAIN) => {}
                protected => return protected.map_err(failed("the protection of a page")),
            }
        }
    }

    /// Wakes the threads that wait at a page; they try again.
    ///
    /// # Errors
    /// A system call failed.
    pub fn wake(&self, page: usize) -> Result<(), FaultError> {
        let mut range = Range { start: self.start(page), length: PAGE as u64 };
        request::<REQUEST_WAKE, _>(self.fd.as_fd(), &mut range).map_err(failed("the waking of threads"))
    }

    /// Takes a page away: it is absent.
    ///
    /// # Errors
    /// A system call failed.
    pub fn take(&self, page: usize) -> Result<(), FaultError> {
        self.advise(page, 1, Advice::LinuxDontNeed)
    }

    /// Forbids loads and stores of a page for ever: a thread that waits at it, and later ones, get SIGSEGV.
    ///
    /// # Errors
    /// A system call failed.
    pub fn forbid(&self, page: usize) -> Result<(), FaultError> {
        let start = self.start(page) as usize as *mut _;
        // SAFETY: a page of this value's own mapping. References to its words stay, and accesses end the process, as the
        // caller wants.
        unsafe { rustix::mm::mprotect(start, PAGE, MprotectFlags::empty()) }.map_err(failed("mprotect"))?;
        self.wake(page)
    }

    /// Copies bytes out of a page. The calling thread waits if the page is absent.
    pub fn read(&self, page: usize, at: usize, into: &mut [u8]) {
        let words = self.words();
        let (first, mut done) = (page * PAGE + at, 0);
        while done < into.len() {
            let place = first + done;
            let within = place % WORD;
            let count = (WORD - within).min(into.len() - done);
            let bytes = words[place / WORD].load(Ordering::Relaxed).to_le_bytes();
            into[done..done + count].copy_from_slice(&bytes[within..within + count]);
            done += count;
        }
    }

    /// Copies a whole page out. The calling thread waits if the page is absent.
    pub fn read_page(&self, page: usize, into: &mut [u8; PAGE]) {
        let words = &self.words()[page * PAGE / WORD..][..PAGE / WORD];
        for (word, bytes) in words.iter().zip(into.chunks_exact_mut(WORD)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
    }

    /// Copies bytes into a page that is there and not protected, or else waits. Words at the ends are read and written as a
    /// whole: other threads must not store to them at the same time.
    pub fn write(&self, page: usize, at: usize, from: &[u8]) {
        let words = self.words();
        let (first, mut done) = (page * PAGE + at, 0);
        while done < from.len() {
            let place = first + done;
            let within = place % WORD;
            let count = (WORD - within).min(from.len() - done);
            let word = &words[place / WORD];
            let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
            bytes[within..within + count].copy_from_slice(&from[done..done + count]);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            done += count;
        }
    }
}

impl Drop for FaultMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this range; references to words borrow from the value.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.pages * PAGE) };
    }
}

#[cfg(test)]
mod tests;
