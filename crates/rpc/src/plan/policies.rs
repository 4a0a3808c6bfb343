//! The list of policies by which threads share connections.

/// Calls the macro in brackets with the other arguments in parentheses, followed by all policies but `Dedicated`, under
/// which threads share nothing: name, number on the wire, name for people, and the type of the policy in `share.rs`.
macro_rules! policies {
    ([$($then:tt)*] $($argument:tt)*) => {
        $($then)*! {
            ($($argument)*)
            /// Threads share a lane behind a lock, and each sends its own messages: the baseline of FLOCK (figure 9).
            Locked = 2, "locked", locked::Locked;
            /// Threads share a lane, and the thread that holds it sends the calls of all of them in one message (FLOCK
            /// section 4).
            Combined = 3, "combined", combined::Combined<F>;
        }
    };
}
pub(crate) use policies;
