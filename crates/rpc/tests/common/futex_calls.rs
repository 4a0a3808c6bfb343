//! Counts a thread's futex calls, and ends the process at any other system call.
//!
//! A seccomp filter turns each futex call into a signal. The handler counts the call and repeats it with a
//! mark in an argument that neither wait nor wake uses; the filter lets marked calls pass.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mark, passed in the sixth argument.
const MARK: u64 = 0x6475_6e6c;

const TOO_MANY_WAKES: i32 = 11;
const TOO_MANY_WAITS: i32 = 12;
const NEVER_SLEPT: i32 = 13;

static WAITS: AtomicU64 = AtomicU64::new(0);
static WAKES: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_futex(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: for a handler with SA_SIGINFO the kernel passes the interrupted thread's context, and only this
    // handler uses it while it runs.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let argument = |register: libc::c_int| registers[register as usize];
    let operation = argument(libc::REG_RSI) as libc::c_int & libc::FUTEX_CMD_MASK;
    let counter = if operation == libc::FUTEX_WAKE { &WAKES } else { &WAITS };
    counter.fetch_add(1, Ordering::Relaxed);
    // SAFETY: repeats the call that the thread was about to make, with its own arguments.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
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

fn install(filter: SeccompFilter) {
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// From here on this thread may only wait, wake, read the clock and end the process. Its waits and wakes are
/// counted.
pub(crate) fn count() {
    // SAFETY: the handler only uses atomics and its own context.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_futex as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()), 0);
    }
    let architecture = std::env::consts::ARCH;
    let mark = SeccompCondition::new(5, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, MARK)
        .and_then(|c| SeccompRule::new(vec![c]));
    let rules = [(libc::SYS_futex, vec![mark.unwrap()])].into();
    let (trap, allow, kill) = (SeccompAction::Trap, SeccompAction::Allow, SeccompAction::KillProcess);
    // With two filters the stricter result applies.
    install(
        SeccompFilter::new(rules, allow.clone(), trap, architecture.try_into().unwrap())
            .unwrap_or_else(|e| panic!("{e}")),
    );
    let others = [
        libc::SYS_exit_group,
        libc::SYS_sched_yield,
        libc::SYS_futex,
        libc::SYS_rt_sigreturn,
        libc::SYS_clock_gettime,
    ];
    let rules = others.map(|call| (call, Vec::new())).into();
    install(SeccompFilter::new(rules, kill, allow, architecture.try_into().unwrap()).unwrap());
}

/// Returns the exit status after `calls` calls: 0 for about one wake and one wait for each. The tolerance of
/// a quarter covers long sleeps that were interrupted, and wakes by head reports.
pub(crate) fn verdict(calls: u64) -> i32 {
    let (waits, wakes) = (WAITS.load(Ordering::Relaxed), WAKES.load(Ordering::Relaxed));
    match () {
        () if waits == 0 || wakes == 0 => NEVER_SLEPT,
        () if wakes > calls + calls / 4 => TOO_MANY_WAKES,
        () if waits > calls + calls / 4 => TOO_MANY_WAITS,
        () => 0,
    }
}

/// Explains a process's exit status.
pub(crate) fn explain(status: ExitStatus) -> String {
    match status.code() {
        Some(TOO_MANY_WAKES) => "it has made more than one wake for a call".into(),
        Some(TOO_MANY_WAITS) => "it has made more than one wait for a call".into(),
        Some(NEVER_SLEPT) => "it has never slept, or never woken the other side".into(),
        _ => format!("{status}; SIGSYS is a system call other than futex"),
    }
}
