//! Errors as they travel from a node to a process of its host, and back into the types that the process has.

use crate::error::{OperationError, RequestError};
use crate::locks::LockError;
use dunlin_fabric::{WithSources, nanos};
use dunlin_tier::process::Problem;
use dunlin_tier::qos::{Measure, QosError};
use std::time::Duration;

fn over_limit(principal: String, what: &str, limit: u64, retry_after: Duration) -> Problem {
    let is_bytes = what == Measure::Bytes.name();
    let measure = if is_bytes { Measure::Bytes } else { Measure::Operations };
    Problem::OverLimit { principal, measure, limit, retry_after: nanos(retry_after) }
}

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Problem {
        match error {
            RequestError::NoNode(node) => Problem::NoNode(node),
            RequestError::Access(error) => Problem::Access(error),
            RequestError::Table(error) => Problem::Table(error),
            RequestError::Length(length) => Problem::Length(length),
            RequestError::Refused { node, source } => Problem::Refused { node, refusal: source },
            RequestError::Dead { node, epoch, may_have_executed } => {
                Problem::Dead { node, epoch, may_have_executed }
            }
            RequestError::Busy => Problem::Busy,
            RequestError::Detached => Problem::NotAttached,
            RequestError::Registered { service } => Problem::Registered(service),
            RequestError::OtherOwner(name) => Problem::OtherOwner(name),
            RequestError::NoDirect(reason) => Problem::NotDirect(reason),
            RequestError::Qos(error) => error.into(),
            RequestError::OverLimit { principal, what, limit, retry_after } => {
                over_limit(principal, what, limit, retry_after)
            }
            other => {
                let may_have_executed = other.may_have_executed();
                Problem::Other { text: WithSources(&other).to_string(), may_have_executed }
            }
        }
    }
}

impl From<OperationError> for Problem {
    fn from(error: OperationError) -> Problem {
        match error {
            OperationError::Access(error) => Problem::Access(error),
            OperationError::Unanswered { node } => Problem::Unanswered(node),
            OperationError::Deadline { node, may_have_executed } => {
                Problem::Deadline { node: node.unwrap_or_default(), may_have_executed }
            }
            OperationError::Dead { node, epoch, may_have_executed } => {
                Problem::Dead { node, epoch, may_have_executed }
            }
            OperationError::Skipped { node } => Problem::Skipped(node),
            OperationError::Busy => Problem::Busy,
            OperationError::Qos(error) => error.into(),
            OperationError::Limit { principal, what, limit, retry_after } => {
                over_limit(principal, what, limit, retry_after)
            }
            OperationError::Request(error) => Problem::from(*error),
            other => {
                let may_have_executed = other.may_have_executed();
                Problem::Other { text: WithSources(&other).to_string(), may_have_executed }
            }
        }
    }
}

impl From<Problem> for RequestError {
    fn from(problem: Problem) -> RequestError {
        let reported =
            |text: &str| RequestError::Reported { text: text.to_owned(), may_have_executed: false };
        match problem {
            Problem::Access(error) => RequestError::Access(error),
            Problem::Table(error) => RequestError::Table(error),
            Problem::Handles(limit) => {
                RequestError::Limit { what: "handles: unmap some", limit: limit.into() }
            }
            Problem::Operations(limit) => RequestError::Limit {
                what: "requests at the same time: use fewer threads",
                limit: limit.into(),
            },
            Problem::Connections(limit) => {
                RequestError::Limit { what: "connections: close some", limit: limit.into() }
            }
            Problem::Services(limit) => {
                RequestError::Limit { what: "registered functions: withdraw some", limit: limit.into() }
            }
            Problem::Registered(service) => RequestError::Registered { service },
            Problem::OtherOwner(name) => RequestError::OtherOwner(name),
            Problem::NotRegistered => reported("the function is not registered any more: register it again"),
            Problem::Locks(limit) => RequestError::Limit {
                what: "locks and barriers that it has or waits for: give some back",
                limit: limit.into(),
            },
            Problem::Buffers(limit) => {
                RequestError::Limit { what: "buffers: drop some", limit: limit.into() }
            }
            Problem::BufferBytes(limit) => RequestError::Limit { what: "bytes of buffers: drop some", limit },
            Problem::BufferExtents(limit) => RequestError::Limit {
                what: "extents with buffers of this user's processes: make them in fewer processes, or wait for the end \
                       of some",
                limit: limit.into(),
            },
            Problem::LockDeadline(_)
            | Problem::LockRefused { .. }
            | Problem::LockBusy(_)
            | Problem::NotHeld => reported("the answer is that to a request for a lock"),
            Problem::NotAttached => RequestError::Detached,
            Problem::NotDirect(reason) => RequestError::NoDirect(reason),
            Problem::Priority(principal) => RequestError::Qos(QosError::Priority { principal }),
            Problem::OverLimit { principal, measure, limit, retry_after } => {
                let (what, retry_after) = (measure.name(), Duration::from_nanos(retry_after));
                RequestError::OverLimit { principal, what, limit, retry_after }
            }
            Problem::NotOperator => RequestError::NotOperator,
            Problem::MadeAt(node) => RequestError::MadeAt { node },
            Problem::Unknown => reported("the kernel does not say which user this process belongs to"),
            Problem::TooLong { limit, .. } => {
                RequestError::Limit { what: "bytes in one request", limit: limit.into() }
            }
            Problem::Malformed => {
                reported("the request cannot be understood: bring node and process to the same release")
            }
            Problem::Refused { node, refusal } => RequestError::Refused { node, source: refusal },
            Problem::NoNode(node) => RequestError::NoNode(node),
            Problem::Length(length) => RequestError::Length(length),
            Problem::Busy => RequestError::Busy,
            Problem::Dead { node, epoch, may_have_executed } => {
                RequestError::Dead { node, epoch, may_have_executed }
            }
            Problem::Unanswered(_) | Problem::Deadline { .. } | Problem::Skipped(_) => {
                let error = OperationError::from(problem);
                let may_have_executed = error.may_have_executed();
                RequestError::Reported { text: error.to_string(), may_have_executed }
            }
            // The answer to a list, whose caller takes it apart.
            Problem::InList { problem, .. } => (*problem).into(),
            Problem::Other { text, may_have_executed } => RequestError::Reported { text, may_have_executed },
        }
    }
}

impl From<LockError> for Problem {
    fn from(error: LockError) -> Problem {
        match error {
            // Names are checked where they are parsed.
            LockError::Name(_) => Problem::Malformed,
            LockError::Deadline { node } => Problem::LockDeadline(node),
            LockError::Refused { node, source } => Problem::LockRefused { node, refusal: source },
            LockError::Request(error) => error.into(),
            LockError::Word(error) => error.into(),
            LockError::Busy { node } => Problem::LockBusy(node),
            LockError::NotHeld => Problem::NotHeld,
        }
    }
}

impl From<Problem> for LockError {
    fn from(problem: Problem) -> LockError {
        match problem {
            Problem::LockDeadline(node) => LockError::Deadline { node },
            Problem::LockRefused { node, refusal } => LockError::Refused { node, source: refusal },
            Problem::LockBusy(node) => LockError::Busy { node },
            Problem::NotHeld => LockError::NotHeld,
            other => LockError::Request(other.into()),
        }
    }
}

impl From<Problem> for OperationError {
    fn from(problem: Problem) -> OperationError {
        match problem {
            Problem::Access(error) => OperationError::Access(error),
            Problem::Unanswered(node) => OperationError::Unanswered { node },
            Problem::Deadline { node, may_have_executed } => {
                let node = (!node.is_empty()).then_some(node);
                OperationError::Deadline { node, may_have_executed }
            }
            Problem::Dead { node, epoch, may_have_executed } => {
                OperationError::Dead { node, epoch, may_have_executed }
            }
            Problem::Skipped(node) => OperationError::Skipped { node },
            Problem::Busy => OperationError::Busy,
            Problem::Priority(principal) => OperationError::Qos(QosError::Priority { principal }),
            Problem::OverLimit { principal, measure, limit, retry_after } => {
                let (what, retry_after) = (measure.name(), Duration::from_nanos(retry_after));
                OperationError::Limit { principal, what, limit, retry_after }
            }
            other => OperationError::Request(Box::new(other.into())),
        }
    }
}
