//! Errors, one type for each kind of operation.

use crate::qos::OverLimit;
use dunlin_fabric::{
    CompletionStatus, CreateError, DialError, KeeperError, LinkError, ListenError, PostError, RegisterError,
    WithSources,
};
use dunlin_rpc::{CallError, ServeError};
use dunlin_tier::ledger::LedgerError;
use dunlin_tier::message::Refusal;
use dunlin_tier::process::NoDirect;
use dunlin_tier::process::list::{MAX_LISTED, MAX_LISTED_BYTES};
use dunlin_tier::qos::QosError;
use dunlin_tier::{AccessError, LayoutError, Name, NameError, PrincipalError, TableError};
use std::time::Duration;
use thiserror::Error;

/// The reason why a node could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A setting is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Setting {
        /// The name of the setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The permitted values.
        must: &'static str,
    },
    /// Two nodes of the list have one name.
    #[error("two nodes of the list are called {0}: give each a name of its own")]
    TwoNodes(String),
    /// This node is not in the list.
    #[error("the list of nodes has no {0}: add it, or correct the name of this node")]
    NotListed(String),
    /// The principal's name is invalid.
    #[error(transparent)]
    Principal(#[from] PrincipalError),
    /// The node did not become a member.
    #[error(transparent)]
    Membership(#[from] crate::membership::MembershipError),
    /// The settings of the quality of service have no meaning.
    #[error(transparent)]
    Qos(#[from] QosError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The machine has not enough free memory to give all of the node's memory pages at once.
    #[error(
        "the node's memory needs {wanted} bytes in pages, and this machine has {available} available: give it less, or \
         let it take pages as they are used (--lazy)"
    )]
    Memory {
        /// The bytes without a page, reserved huge pages left out.
        wanted: u64,
        /// The bytes that the kernel can give.
        available: u64,
    },
    /// The keeper of the node's memory does not serve this node.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The ledger of the earlier life cannot be used.
    #[error(
        "the regions that the keeper holds for {node} are lost: end the keeper, and start keeper and node again"
    )]
    Ledger {
        /// The name of the node.
        node: String,
        /// The reason.
        source: LedgerError,
    },
    /// The node has a keeper, and its membership changes.
    #[error(
        "a keeper needs a list of nodes that does not change: with a directory, a node that restarts is another one"
    )]
    KeptViews,
    /// The memory of the keeper is that of another node, or of other settings.
    #[error(
        "{what} of the keeper is {kept}, and that of this node {now}: start the node as before, give it another keeper, or \
         end the keeper, with which its regions end"
    )]
    Kept {
        /// The thing that differs.
        what: &'static str,
        /// Its value when the memory was made.
        kept: String,
        /// Its value now.
        now: String,
    },
    /// The service could not be started.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The address for paths cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Queues could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[from] std::io::Error),
}

/// The reason why a path to a node could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The node cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The control connection failed, or the node refused this one.
    #[error("the handshake failed; do both nodes have the same list, the same token and the same release?")]
    Link(#[from] LinkError),
    /// The node is dead or has left, in the view of this number.
    #[error("the node is dead, or has left, in view {0}")]
    Dead(u64),
    /// The view changed during the handshake, and the node has ended.
    #[error("the node ended while the path connected")]
    Ended,
    /// The node's offer is invalid.
    #[error("the node's offer cannot be understood: {0}")]
    Offer(&'static str),
    /// A queue pair could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
}

/// The reason why `malloc`, `map`, `free`, `grant` or `memset` failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The list of nodes has no node of this name.
    #[error("the list of nodes has no {0}")]
    NoNode(String),
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The principal's name is invalid.
    #[error(transparent)]
    Principal(#[from] PrincipalError),
    /// The handle does not permit it.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// This process cannot have another handle.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The length is zero or too long.
    #[error("a region of {0} bytes cannot be made: it has 1 byte to as many as 262 144 pieces hold")]
    Length(u64),
    /// A node refuses.
    #[error("{node} refuses")]
    Refused {
        /// The node's name.
        node: String,
        /// The reason.
        source: Refusal,
    },
    /// The node is dead or has left, in the view of this number.
    #[error("{node} is dead, or has left, in view {epoch}: the request {}", certainty(*.may_have_executed))]
    Dead {
        /// The node's name.
        node: String,
        /// The number of the view.
        epoch: u64,
        /// Whether the request may have been executed.
        may_have_executed: bool,
    },
    /// A call to a node failed; its certainty says whether the request may have been executed.
    #[error("{node} did not answer")]
    Call {
        /// The node's name.
        node: String,
        /// The engine's error.
        source: CallError,
    },
    /// A node cannot be reached.
    #[error("no connection to {node}")]
    Connect {
        /// The node's name.
        node: String,
        /// The engine's error.
        source: dunlin_rpc::ConnectError,
    },
    /// No path to a node that stores the region.
    #[error("no path to {node}")]
    Path {
        /// The node's name.
        node: String,
        /// The reason.
        source: ConnectError,
    },
    /// A node's answer does not fit the request.
    #[error("{node} answered with something else: bring both nodes to the same release")]
    Answer {
        /// The node's name.
        node: String,
    },
    /// A node sent pieces that are no region.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// All paths, or all connections to a node, were in use until the timeout.
    #[error("other threads used all connections until the timeout: raise TierConfig::paths or the timeout")]
    Busy,
    /// Queues could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A buffer cannot be used, or not this range of it. Nothing was sent.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// The node of this host does not know this process any more: it has restarted, or the connection broke. Only a
    /// process that is attached to a node gets this, and the variants below.
    #[error("the node of this host does not know this process any more: attach again, and map regions again")]
    Detached,
    /// The user of this process does not run the node of this host. Nothing was changed.
    #[error(
        "only the user who runs the node, and root, may have it leave, drain it, and free regions of others"
    )]
    NotOperator,
    /// The region was made at another node. Nothing was changed.
    #[error("the region was made at {node}: the user who runs that node frees it there")]
    MadeAt {
        /// The node's name.
        node: String,
    },
    /// The region is not mapped directly. Reads and writes work.
    #[error(transparent)]
    NoDirect(#[from] NoDirect),
    /// The function, or the service, is registered at this node already.
    #[error("{service} has that function at this node: withdraw it, or serve it at another node")]
    Registered {
        /// The service.
        service: Name,
    },
    /// The name belongs to another principal, whether it exists or not. Nothing was changed.
    #[error("{0} belongs to the principal between ~ and /: use a name without ~, or act for that principal")]
    OtherOwner(Name),
    /// The result does not fit the caller's buffer. The call was executed.
    #[error("the result has {length} bytes, and the buffer {room}")]
    AnswerTooLong {
        /// The length of the result in bytes.
        length: usize,
        /// The length of the buffer in bytes.
        room: usize,
    },
    /// A limit of the node for each process. Nothing was changed.
    #[error("the node of this host allows a process {limit} {what}")]
    Limit {
        /// The limited things.
        what: &'static str,
        /// The most that a process has.
        limit: u64,
    },
    /// The principal has used up what its [`Limit`](crate::Limit) permits at this node, and the call would wait for longer
    /// than [`QosConfig::patience`](crate::QosConfig::patience); nothing was sent.
    #[error(
        "{principal} has used up its {limit} {what} a second: try again in {retry_after:?}, or raise its limit"
    )]
    OverLimit {
        /// The principal.
        principal: String,
        /// The limited quantity: `operations` or `bytes`.
        what: &'static str,
        /// The limit a second.
        limit: u64,
        /// The time until the same call would begin at once.
        retry_after: Duration,
    },
    /// The share of the principal does not permit the priority. Nothing was changed.
    #[error(transparent)]
    Qos(#[from] QosError),
    /// The node of this host failed in another way.
    #[error("the node of this host reports: {text}")]
    Reported {
        /// The node's error, in words.
        text: String,
        /// Whether bytes or regions may have been changed.
        may_have_executed: bool,
    },
}

impl RequestError {
    /// Returns whether the time of the request was over.
    pub fn is_deadline(&self) -> bool {
        match self {
            RequestError::Call { source, .. } => source.is_deadline(),
            RequestError::Busy => true,
            _ => false,
        }
    }

    /// Returns whether the request may have been executed.
    pub fn may_have_executed(&self) -> bool {
        match self {
            RequestError::Call { source, .. } => source.was_executed() != Some(false),
            RequestError::Reported { may_have_executed, .. }
            | RequestError::Dead { may_have_executed, .. } => *may_have_executed,
            // The region is freed, and its memory is not yet; or a right is revoked, and not all nodes have stopped; or a
            // change is made, and not all keepers of the record have heard.
            RequestError::Refused {
                source: Refusal::Waits(_) | Refusal::Drains(_) | Refusal::Untold(_) | Refusal::Target,
                ..
            } => true,
            RequestError::AnswerTooLong { .. } => true,
            _ => false,
        }
    }
}

/// The reason why bytes were not published.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The spec has no name.
    #[error("bytes are published under a name: give the spec one")]
    NoName,
    /// A region could not be made, or not get its name.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The bytes could not be copied. Nothing is published.
    #[error("the bytes could not be copied")]
    Copy(#[from] OperationError),
}

impl PublishError {
    /// Returns whether the name may have been given to the region.
    pub fn may_have_executed(&self) -> bool {
        matches!(self, PublishError::Request(error) if error.may_have_executed())
    }
}

/// The reason why no request was received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// There was no call in the given time.
    #[error("no call came in time")]
    NoCall,
    /// The next request is longer than the buffer. It stays the next one.
    #[error("the next request has {length} bytes: receive into a buffer of that length")]
    TooLong {
        /// The length of the request in bytes.
        length: usize,
    },
    /// The node of this host did not answer, or refused. Only a process that is attached to a node gets this.
    #[error("the node of this host gives no request")]
    Node(#[from] RequestError),
}

/// The reason why a buffer of the application cannot be used by an operation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The range leaves the buffer, or ends before it starts.
    #[error("the range from {start} to {end} is not in a buffer of {size} bytes")]
    Outside {
        /// The first position of the range.
        start: usize,
        /// The position behind its last.
        end: usize,
        /// The length of the buffer in bytes.
        size: usize,
    },
    /// The buffer was made by another node than the one that has mapped the region.
    #[error("the buffer belongs to another tier than the region: make one with the tier that mapped it")]
    OtherTier,
    /// The memory of the buffer stayed with the NIC after a failed operation, and no other memory can be registered.
    /// The bytes are still there. A later operation tries again.
    #[error("an operation that failed has the memory of the buffer, and no other memory can be registered")]
    Register(#[from] RegisterError),
}

/// The reason why a `read`, `write` or atomic failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The operation is refused; nothing was posted.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A part of the operation failed; [`may_have_executed`](OperationError::may_have_executed).
    #[error("an operation at {node} failed: {}", .status.describe())]
    Failed {
        /// The node's name.
        node: String,
        /// The status.
        status: CompletionStatus,
    },
    /// The node ended, or the connection to it broke, while the operation was in flight. It may have been executed.
    #[error("{node} ended, or the connection to it broke, before the operation was complete")]
    Unanswered {
        /// The node's name.
        node: String,
    },
    /// The node is dead or has left, in the view of this number; the region is gone with it.
    #[error("{node} is dead, or has left, in view {epoch}: the operation {}", certainty(*.may_have_executed))]
    Dead {
        /// The node's name.
        node: String,
        /// The number of the view.
        epoch: u64,
        /// Whether the operation, or a part of it, may have been executed.
        may_have_executed: bool,
    },
    /// The time of the operation is over.
    #[error("the time is over{}: the operation {}", at(.node.as_deref()), certainty(*.may_have_executed))]
    Deadline {
        /// The name of the node that did not complete the operation, if it was posted.
        node: Option<String>,
        /// Whether the operation, or a part of it, may have been executed.
        may_have_executed: bool,
    },
    /// The connection to a node failed under another operation of the list, before this one was posted.
    #[error("the operation was not posted: the connection to {node} failed under another one of the list")]
    Skipped {
        /// The node's name.
        node: String,
    },
    /// The operation could not be posted; earlier parts of it may have been executed.
    #[error("the operation at {node} could not be posted")]
    Post {
        /// The node's name.
        node: String,
        /// The fabric's error.
        source: PostError,
    },
    /// No path to a node that stores the region; nothing was posted.
    #[error("no path to {node}")]
    Path {
        /// The node's name.
        node: String,
        /// The reason.
        source: ConnectError,
    },
    /// A request to a node failed: to the node that stores the word, on a fabric without atomics, or to the node of
    /// this host.
    #[error(transparent)]
    Request(#[from] Box<RequestError>),
    /// The region's place is outside the memory of this node: the record is wrong.
    #[error("the region's place is not in the memory of {node}")]
    Place {
        /// The node's name.
        node: String,
    },
    /// All paths were in use until the timeout; nothing was posted.
    #[error("other threads used all paths until the timeout: raise TierConfig::paths or the timeout")]
    Busy,
    /// The principal has used its limit up, and would wait for longer than
    /// [`QosConfig::patience`](crate::QosConfig::patience); nothing was posted.
    #[error(
        "{principal} has used up its {limit} {what} a second: try again in {retry_after:?}, or raise its limit"
    )]
    Limit {
        /// The principal.
        principal: String,
        /// The limited quantity: `operations` or `bytes`.
        what: &'static str,
        /// The limit a second.
        limit: u64,
        /// The time until the same operation would begin at once.
        retry_after: Duration,
    },
    /// The share of the principal does not permit the priority; nothing was posted.
    #[error(transparent)]
    Qos(#[from] QosError),
    /// The buffer cannot be used; nothing was posted.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// Queues or memory for a path could not be made; nothing was posted.
    #[error("a path could not be made")]
    Resources(#[source] Box<RequestError>),
    /// As many asynchronous operations wait as may; nothing was posted.
    #[error("{limit} asynchronous operations wait already: wait for some, or raise AsyncConfig::queue")]
    QueueFull {
        /// The most operations.
        limit: usize,
    },
    /// The threads of the asynchronous operations ended first; nothing was posted.
    #[error("the asynchronous operations were ended before this one began")]
    Ended,
}

/// Names the node of an error, if there is one.
fn at(node: Option<&str>) -> String {
    node.map(|node| format!(" at {node}")).unwrap_or_default()
}

fn certainty(may_have_executed: bool) -> &'static str {
    if may_have_executed { "may have been executed" } else { "was not executed" }
}

impl OperationError {
    /// Returns whether the time of the operation was over.
    pub fn is_deadline(&self) -> bool {
        match self {
            OperationError::Deadline { .. } | OperationError::Busy => true,
            OperationError::Request(error) => error.is_deadline(),
            _ => false,
        }
    }

    /// Returns the error of a request that had no time left as that of an operation.
    pub fn as_deadline(self) -> OperationError {
        match self {
            OperationError::Request(error) => match *error {
                RequestError::Call { node, source } if source.is_deadline() => {
                    let may_have_executed = source.was_executed() != Some(false);
                    OperationError::Deadline { node: may_have_executed.then_some(node), may_have_executed }
                }
                other => OperationError::Request(Box::new(other)),
            },
            other => other,
        }
    }

    /// Returns the error of an operation of which parts were executed before the one that failed.
    pub fn after_parts(self) -> OperationError {
        if self.may_have_executed() {
            return self;
        }
        if self.is_deadline() {
            return OperationError::Deadline { node: None, may_have_executed: true };
        }
        let text = format!("after earlier parts: {}", WithSources(&self));
        OperationError::Request(Box::new(RequestError::Reported { text, may_have_executed: true }))
    }

    /// Returns whether bytes of the region may have been changed (by a write or an atomic).
    pub fn may_have_executed(&self) -> bool {
        match self {
            OperationError::Access(_)
            | OperationError::Path { .. }
            | OperationError::Place { .. }
            | OperationError::Skipped { .. }
            | OperationError::Busy
            | OperationError::Limit { .. }
            | OperationError::Qos(_)
            | OperationError::Buffer(_)
            | OperationError::Resources(_)
            | OperationError::QueueFull { .. }
            | OperationError::Ended => false,
            // Earlier parts of the operation may have been executed, whatever became of this one.
            OperationError::Failed { .. }
            | OperationError::Unanswered { .. }
            | OperationError::Post { .. } => true,
            OperationError::Deadline { may_have_executed, .. }
            | OperationError::Dead { may_have_executed, .. } => *may_have_executed,
            OperationError::Request(error) => error.may_have_executed(),
        }
    }
}

/// The reason why a list of operations was not begun. Nothing of it was posted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListError {
    /// The list has too many operations.
    #[error("a list of {count} operations is too long: it has at most {MAX_LISTED}")]
    TooMany {
        /// Their number.
        count: usize,
    },
    /// The operations move too many bytes.
    #[error("the list moves {bytes} bytes: at most {MAX_LISTED_BYTES} bytes are moved by one")]
    TooLong {
        /// Their number of bytes.
        bytes: u64,
    },
    /// An operation is refused.
    #[error("operation {place} of the list is refused")]
    Refused {
        /// The place of the operation, from 0.
        place: usize,
        /// The reason.
        source: OperationError,
    },
    /// The region of an operation was mapped at another node, or by another attachment, than the first one.
    #[error(
        "the region of operation {place} belongs to another tier than the first one: make a list for each"
    )]
    OtherTier {
        /// The place of the operation, from 0.
        place: usize,
    },
    /// The list could not begin.
    #[error("the list could not begin")]
    NotBegun(#[source] OperationError),
}

impl ListError {
    /// Returns whether the time of the list was over.
    pub fn is_deadline(&self) -> bool {
        match self {
            ListError::Refused { source, .. } | ListError::NotBegun(source) => source.is_deadline(),
            _ => false,
        }
    }
}

impl From<OverLimit> for OperationError {
    fn from(over: OverLimit) -> OperationError {
        let OverLimit { principal, measure, limit, retry_after } = over;
        OperationError::Limit { principal, what: measure.name(), limit, retry_after }
    }
}

impl From<OverLimit> for RequestError {
    fn from(over: OverLimit) -> RequestError {
        let OverLimit { principal, measure, limit, retry_after } = over;
        RequestError::OverLimit { principal, what: measure.name(), limit, retry_after }
    }
}
