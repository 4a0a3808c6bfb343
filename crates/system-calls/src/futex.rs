//! Counts the calls by which a thread sleeps and wakes others, and ends the process at any other system call, with its
//! number.
//!
//! A seccomp filter turns each of these calls into a signal. The handler counts the call and repeats it with a
//! mark in an argument that none of them uses; the filter lets marked calls pass.

use crate::{architecture, install};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mark, passed in the sixth argument.
const MARK: u64 = 0x6475_6e6c;
/// The length of an event.
const EVENT_BYTES: u64 = 8;

/// The exit status of a process whose thread made another system call. Its number is on the standard error.
pub const UNEXPECTED: i32 = 99;

static WAITS: AtomicU64 = AtomicU64::new(0);
static WAKES: AtomicU64 = AtomicU64::new(0);
static BARRIERS: AtomicU64 = AtomicU64::new(0);

/// The calls by which a thread sleeps and wakes others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sleeps {
    /// Calls to sleep.
    pub waits: u64,
    /// Calls to wake others: by a futex, or by an event (a write of 8 bytes) if they wait for descriptors.
    pub wakes: u64,
    /// Barriers on other processors (`membarrier`), which some sleeps need before.
    pub barriers: u64,
}

/// Returns the calls of the thread that counts them.
pub fn sleeps() -> Sleeps {
    let [waits, wakes, barriers] = [&WAITS, &WAKES, &BARRIERS].map(|count| count.load(Ordering::Relaxed));
    Sleeps { waits, wakes, barriers }
}

/// Says the number of a system call, and ends the process.
fn refuse(call: libc::c_long) -> ! {
    let mut text = *b"system call 0000\n";
    for (at, ten) in [(12, 1000), (13, 100), (14, 10), (15, 1)] {
        text[at] = b'0' + (call / ten % 10) as u8;
    }
    // SAFETY: the text is as long as the call says; nothing else is passed. The filters let a marked call pass.
    unsafe { libc::syscall(libc::SYS_write, 2, text.as_ptr(), text.len(), 0, 0, MARK) };
    crate::end(UNEXPECTED)
}

extern "C" fn on_call(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: for a handler with SA_SIGINFO the kernel passes the interrupted thread's context, and only this
    // handler uses it while it runs.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let argument = |register: libc::c_int| registers[register as usize];
    // The signal comes before the call, whose number is still there.
    let call = argument(libc::REG_RAX);
    let operation = argument(libc::REG_RSI) as libc::c_int & libc::FUTEX_CMD_MASK;
    let counter = match (call, operation) {
        (libc::SYS_membarrier, _) => &BARRIERS,
        (libc::SYS_write, _) | (libc::SYS_futex, libc::FUTEX_WAKE) => &WAKES,
        (libc::SYS_futex, _) => &WAITS,
        _ => refuse(call),
    };
    counter.fetch_add(1, Ordering::Relaxed);
    // SAFETY: repeats the call that the thread was about to make, with its own arguments.
    let result = unsafe {
        libc::syscall(
            call,
            argument(libc::REG_RDI),
            argument(libc::REG_RSI),
            argument(libc::REG_RDX),
            argument(libc::REG_R10),
            argument(libc::REG_R8),
            MARK,
        )
    };
    // SAFETY: the pointer is valid, and errno is thread-local.
    let error = unsafe { *libc::__errno_location() };
    registers[libc::REG_RAX as usize] = if result < 0 { -i64::from(error) } else { result };
}

/// From here on this thread may only wait, wake, read the clock, yield its core and end the process: any other system
/// call ends the process with [`UNEXPECTED`]. Its waits and wakes are counted, with the barriers before them. For one thread of a
/// process.
///
/// # Errors
/// The kernel takes no filter.
pub fn count_sleeps() -> io::Result<()> {
    // SAFETY: the handler only uses atomics and its own context.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_call as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        if libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let condition = |argument, operator, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value).map_err(io::Error::other)
    };
    let rule = |conditions| SeccompRule::new(conditions).map_err(io::Error::other);
    let unmarked = rule(vec![condition(5, SeccompCmpOp::Ne, MARK)?])?;
    let marked = rule(vec![condition(5, SeccompCmpOp::Eq, MARK)?])?;
    let event = rule(vec![condition(2, SeccompCmpOp::Eq, EVENT_BYTES)?])?;
    let counted = [libc::SYS_futex, libc::SYS_membarrier, libc::SYS_write];
    let rules = counted.map(|call| (call, vec![unmarked.clone()])).into();
    let (trap, allow) = (SeccompAction::Trap, SeccompAction::Allow);
    // With two filters the stricter result applies.
    install(SeccompFilter::new(rules, allow.clone(), trap.clone(), architecture()?))?;
    let others = [
        libc::SYS_exit_group,
        libc::SYS_sched_yield,
        libc::SYS_futex,
        libc::SYS_membarrier,
        libc::SYS_rt_sigreturn,
        libc::SYS_clock_gettime,
    ];
    let mut rules: BTreeMap<_, _> = others.map(|call| (call, Vec::new())).into();
    rules.insert(libc::SYS_write, vec![event, marked]);
    install(SeccompFilter::new(rules, trap, allow, architecture()?))
}
