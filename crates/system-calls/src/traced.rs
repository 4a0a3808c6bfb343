//! Counts the system calls of a thread of another process, which runs as ever: the tracer stops it at each call, and
//! only then.

use crate::Sleeps;
use std::collections::BTreeMap;
use std::io;

/// The system calls of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Those by which it sleeps and wakes others.
    pub sleeps: Sleeps,
    /// The times that it has yielded its core.
    pub yields: u64,
    /// All others, by number.
    pub others: BTreeMap<i64, u64>,
}

impl Calls {
    fn count(&mut self, call: i64, operation: libc::c_int) {
        let Calls { sleeps, yields, others } = self;
        let counter = match (call, operation & libc::FUTEX_CMD_MASK) {
            (libc::SYS_membarrier, _) => &mut sleeps.barriers,
            (libc::SYS_futex, libc::FUTEX_WAKE) => &mut sleeps.wakes,
            (libc::SYS_futex, _) => &mut sleeps.waits,
            (libc::SYS_sched_yield, _) => yields,
            _ => others.entry(call).or_default(),
        };
        *counter += 1;
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: Calls) {
        self.sleeps.waits += other.sleeps.waits;
        self.sleeps.wakes += other.sleeps.wakes;
        self.sleeps.barriers += other.sleeps.barriers;
        self.yields += other.yields;
        for (call, made) in other.others {
            *self.others.entry(call).or_default() += made;
        }
    }
}

/// Returns the threads of a process with this name.
///
/// # Errors
/// There is no such process.
pub fn threads_named(process: u32, name: &str) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?;
        // A thread may have ended meanwhile.
        let is_it = std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name);
        found.extend(
            thread.file_name().to_str().and_then(|number| number.parse::<i32>().ok()).filter(|_| is_it),
        );
    }
    Ok(found)
}

/// Makes a request about a traced thread that concerns no memory of this process.
fn ask(request: libc::c_uint, thread: i32, data: usize) -> io::Result<()> {
    // SAFETY: `data` is a number for the requests of this file.
    let done = unsafe { libc::ptrace(request, thread, std::ptr::null_mut::<libc::c_void>(), data) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the call that a stopped thread is about to make, and its second argument, if it is not at the end of one.
fn call_of(thread: i32) -> Option<(i64, libc::c_int)> {
    // SAFETY: all bit patterns of the numbers are valid.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of_val(&info);
    // SAFETY: the kernel writes at most `size` bytes to `info`.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info) };
    if got <= 0 || info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: this part of the union is that of `op`.
    let entry = unsafe { info.u.entry };
    Some((entry.nr as i64, entry.args[1] as libc::c_int))
}

/// The signal that ends a count. A thread ignores it by default, and its tracer sees it all the same.
const END: libc::c_int = libc::SIGWINCH;

/// Ends the count of a thread of a process, by any thread.
///
/// # Errors
/// The thread has ended.
pub fn end_count(process: u32, thread: i32) -> io::Result<()> {
    // SAFETY: no argument is a pointer.
    match unsafe { libc::syscall(libc::SYS_tgkill, process, thread, END) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Counts the system calls of a thread of a child, until [`end_count`], which may come once `began` was called. The
/// thread is left as it was.
///
/// # Errors
/// The thread has ended, or the system permits no tracing.
pub fn count_calls(thread: i32, began: impl FnOnce()) -> io::Result<Calls> {
    let mut calls = Calls::default();
    let seized = ask(libc::PTRACE_SEIZE, thread, libc::PTRACE_O_TRACESYSGOOD as usize);
    began();
    seized?;
    ask(libc::PTRACE_INTERRUPT, thread, 0)?;
    loop {
        let mut status = 0;
        // SAFETY: the pointer is that of an integer on the stack.
        if unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if !libc::WIFSTOPPED(status) {
            return Err(io::Error::other("the thread has ended"));
        }
        let passed = match libc::WSTOPSIG(status) {
            END => {
                ask(libc::PTRACE_DETACH, thread, 0)?;
                return Ok(calls);
            }
            signal if signal == libc::SIGTRAP | 0x80 => {
                if let Some((call, operation)) = call_of(thread) {
                    calls.count(call, operation);
                }
                0
            }
            // The tracer's own stop.
            libc::SIGTRAP => 0,
            signal => signal as usize,
        };
        ask(libc::PTRACE_SYSCALL, thread, passed)?;
    }
}
