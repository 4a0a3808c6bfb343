//! Filters of a thread's system calls, for tests: a seccomp filter ends the process at the first call that is not on a
//! short list, or counts the sleeps and wake-ups of the thread. A filter cannot be taken away, so a watched thread belongs
//! to a process of its own: the test binary, started again ([`Process`]).
//!
//! This crate has the filters and these processes. The tests that use it have the operations.

#[cfg(target_arch = "x86_64")]
mod futex;
mod process;
#[cfg(target_arch = "x86_64")]
pub mod traced;

#[cfg(target_arch = "x86_64")]
pub use futex::{Sleeps, UNEXPECTED, count_sleeps, sleeps};
pub use process::{Process, Role, ready, run};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::io;

/// From here on this thread may only end the process and yield its core: any other system call ends the process with
/// SIGSYS. A busy wait yields after hundreds of empty polls.
///
/// # Errors
/// The kernel takes no filter.
pub fn forbid() -> io::Result<()> {
    let allowed = [libc::SYS_exit_group, libc::SYS_sched_yield];
    let rules = allowed.map(|call| (call, Vec::new())).into();
    install(SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, architecture()?))
}

fn architecture() -> io::Result<seccompiler::TargetArch> {
    std::env::consts::ARCH.try_into().map_err(io::Error::other)
}

fn install(filter: Result<SeccompFilter, seccompiler::BackendError>) -> io::Result<()> {
    let program: BpfProgram = filter.map_err(io::Error::other)?.try_into().map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

/// Ends the process by one system call, without cleanup that may make others.
pub fn end(status: i32) -> ! {
    // SAFETY: takes no pointer and does not return; the exit releases everything that is not cleaned up.
    unsafe { libc::_exit(status) }
}
