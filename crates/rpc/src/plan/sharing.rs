//! The two questions about sharing: how the threads of a client share its lanes, and how long a server's memory
//! belongs to a lane.

use super::policies::policies;
use dunlin_numbered::numbered;

/// Makes the enum of policies.
macro_rules! sharing {
    (() $($(#[doc = $doc:literal])* $name:ident = $number:literal, $text:literal, $policy:ty;)*) => {
        /// How the threads of a client share its lanes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Sharing {
            /// One lane for each client handle and server worker: no thread waits for another one.
            Dedicated = 1,
            $($(#[doc = $doc])* $name = $number,)*
        }

        numbered!(Sharing: u8 { Dedicated = "dedicated", $($name = $text),* });

        impl Sharing {
            /// Returns what the policy does, in a sentence.
            pub fn about(self) -> &'static str {
                match self {
                    Sharing::Dedicated => "Each thread has a connection of its own.",
                    $(Sharing::$name => concat!($($doc),*).trim_start(),)*
                }
            }
        }
    };
}
policies!([sharing]);

impl Sharing {
    /// Returns the policy with this name; `None` for an unknown one.
    pub fn by_name(name: &str) -> Option<Sharing> {
        Sharing::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// Returns the policies under which threads share connections: all but the dedicated one.
    pub fn shared() -> impl Iterator<Item = Sharing> {
        Sharing::ALL.into_iter().filter(|policy| *policy != Sharing::Dedicated)
    }
}

/// How long the memory that a server grants to a lane belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Lease {
    /// Until the lane closes.
    Forever = 1,
    /// For a time slice of the group that the client is in (ScaleRPC section 3). Needs requests by `write` or
    /// `write_imm`, and answers written into a ring. Threads may share the lane: it has a lease in the place of credits.
    Slice = 2,
}

numbered!(Lease: u8 { Forever = "forever", Slice = "slice" });
