//! Settings.

use crate::process;
use std::time::Duration;

/// The users that may connect to a fabric's listeners. The kernel reports a peer's user (SO_PEERCRED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowPolicy {
    /// This process's effective user, and root.
    #[default]
    SameUser,
    /// These users (numeric ids).
    Users(Vec<u32>),
    /// All users of this host.
    Anyone,
}

impl AllowPolicy {
    /// Returns whether a user may connect.
    pub(crate) fn admits(&self, user: Option<u32>) -> bool {
        match (self, user) {
            (AllowPolicy::Anyone, _) => true,
            (AllowPolicy::SameUser, Some(user)) => user == process::own_user() || user == 0,
            (AllowPolicy::Users(users), Some(user)) => users.contains(&user),
            (_, None) => false,
        }
    }
}

/// Settings of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// The users that may connect to this fabric's listeners. Default: [`AllowPolicy::SameUser`], the server's
    /// own user and root.
    pub allow: AllowPolicy,
    /// The maximum number of concurrent grants by one side of a link, including one ring for each queue pair.
    /// Default: 1024.
    pub max_grants_per_link: usize,
    /// The time that a new connection has to send its greeting. Default: 5 s.
    pub greeting_patience: Duration,
    /// Whether a busy wait gives way if other threads compete for its core: it yields after few polls, and the
    /// engine lets it sleep. Default: true. If false, it yields after hundreds of polls and never sleeps,
    /// which suits threads that are bound to isolated cores.
    pub gives_way: bool,
}

impl Default for ShmConfig {
    fn default() -> Self {
        ShmConfig {
            allow: AllowPolicy::SameUser,
            max_grants_per_link: 1024,
            greeting_patience: Duration::from_secs(5),
            gives_way: true,
        }
    }
}
