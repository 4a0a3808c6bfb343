//! Errors of a shared memory.

use dunlin_page_faults::FaultError;
use dunlin_tier_node::{ListError, LockError, OperationError, ReceiveError, RequestError};
use thiserror::Error;

/// The reason why an operation on a shared memory failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A setting makes no sense.
    #[error("the memory cannot be opened: {0}")]
    Config(String),
    /// A memory of that name is there, or its regions are: those of a member that was killed.
    #[error(
        "{region} exists already: choose another name for the memory, or free the region with `dunlin tier free`"
    )]
    Taken {
        /// The name of the region.
        region: String,
    },
    /// A member has opened the memory with other settings than this one.
    #[error(
        "member {member} has opened the memory with another size, number of members or way to invalidate"
    )]
    Disagree {
        /// The member.
        member: u16,
    },
    /// The range ends behind the memory.
    #[error("{length} bytes at {offset} are not in the memory, which has {size} bytes")]
    Bounds {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
        /// The size of the memory in bytes.
        size: u64,
    },
    /// A write to a page that this member does not hold. Nothing was written.
    #[error("page {page} is written without being acquired")]
    NotAcquired {
        /// The page.
        page: u32,
    },
    /// This member holds the page already, or another thread of it acquires it. Nothing was acquired.
    #[error("this member has acquired page {page} already")]
    AlreadyAcquired {
        /// The page.
        page: u32,
    },
    /// More pages than one acquisition can have.
    #[error("{pages} pages are too many for one acquisition, which has at most {most}")]
    TooManyPages {
        /// The number of pages.
        pages: u64,
        /// The most.
        most: u64,
    },
    /// Another member held a page until the time was over. Nothing was acquired.
    #[error("page {page} was held by member {member} until the time was over")]
    Held {
        /// The page.
        page: u32,
        /// The member that holds it, or waits for it before this one.
        member: u16,
    },
    /// Too many threads of this member wait for pages of one home.
    #[error("too many threads of this member wait for pages of member {home}")]
    Busy {
        /// The home.
        home: u16,
    },
    /// The home of pages has ended. Nobody can acquire or release them any more.
    #[error("member {home}, the home of pages, has ended: open a new memory")]
    HomeEnded {
        /// The home.
        home: u16,
    },
    /// A member did not answer to a release, and lives. The release can be repeated; the pages are held until then.
    #[error("member {member} did not answer: release again")]
    Unanswered {
        /// The member.
        member: u16,
        /// The tier's error.
        source: Box<RequestError>,
    },
    /// A member answered with something else.
    #[error("member {member} answered with something else: bring all members to the same release")]
    Answer {
        /// The member.
        member: u16,
    },
    /// A page changed under each of several reads, or could not be read in time.
    #[error("page {page} could not be read in time: other members release it again and again")]
    Restless {
        /// The page.
        page: u32,
    },
    /// Bytes of a home cannot be read or written. A release can be repeated.
    #[error("the pages of member {home} cannot be read or written")]
    Operation {
        /// The home.
        home: u16,
        /// The tier's error.
        source: Box<OperationError>,
    },
    /// A list of reads or writes was refused.
    #[error("the tier refuses to read or write pages")]
    List(#[from] Box<ListError>),
    /// The tier refuses a request, or cannot be reached.
    #[error("the tier refuses {what}, or cannot be reached")]
    Request {
        /// The request, in words.
        what: &'static str,
        /// The tier's error.
        source: Box<RequestError>,
    },
    /// The members did not come together in time, or a lock of the memory cannot be had.
    #[error("{what}")]
    Lock {
        /// The place where members wait, in words.
        what: &'static str,
        /// The tier's error.
        source: Box<LockError>,
    },
    /// The memory cannot be mapped: the kernel does not give this process its page faults, or the addresses are in use.
    #[error("the memory cannot be mapped")]
    Map(#[from] FaultError),
    /// The own node gives this member no messages any more.
    #[error("the node gives this member no messages any more")]
    Receive(#[source] Box<ReceiveError>),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

impl MemoryError {
    /// Returns whether the time of an operation on pages was over.
    pub(crate) fn is_deadline(&self) -> bool {
        match self {
            MemoryError::Operation { source, .. } => source.is_deadline(),
            MemoryError::List(source) => source.is_deadline(),
            _ => false,
        }
    }
}
