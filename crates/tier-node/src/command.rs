//! Operations that are commands to the nodes which store the bytes: `memset` and `memcpy` (section 7.1).
//!
//! A command to another node needs no path, and takes a *place* in its stead. Places are as many as paths, and the rules of
//! priorities and shares are the same. A path would not do: the node that copies needs one of its own, which may wait for a
//! node that waits for this one.

use crate::error::{OperationError, RequestError};
use crate::node::Node;
use crate::operate::Target;
use crate::path::Deadline;
use crate::paths::{Entered, Granted};
use crate::qos::Class;
use dunlin_fabric::{Fabric, Host, Nanos, Work};
use dunlin_tier::{Kind, Layout};

impl<F: Fabric> Node<F> {
    /// Checks an operation, waits for its turn if it is a command to another node, and has `run` carry it out until the time
    /// that it gets.
    pub(crate) fn command(
        &self,
        Target { handle, class, time, .. }: Target<'_>,
        kind: Kind,
        (offset, length): (u64, u64),
        run: impl FnOnce(&Layout, Nanos) -> Result<(), OperationError>,
    ) -> Result<(), OperationError> {
        let host = self.fabric.host();
        let mut deadline = Deadline::new(self, time)?;
        self.qos.admit(host, class, length, deadline.left(host))?;
        self.qos.count(class.priority, 1, length);
        let until = deadline.until(host);
        host.charge(Work::ParseEntry, 1);
        let begin = || {
            let begun = self.state().handles.begin(handle, kind, offset, length);
            begun.map_err(|error| self.refused(handle, error))
        };
        let operation = begin()?;
        let goes_out = operation.layout.cut(offset, length, u32::MAX).any(|cut| cut.node != self.me);
        // A command that waits for its turn delays no free.
        self.end(operation);
        let place = match goes_out {
            true => Some(self.take_place(class, length, until)?),
            false => None,
        };
        let result = begin().and_then(|operation| {
            let result = run(&operation.layout, until);
            self.end(operation);
            result
        });
        if place.is_some() {
            self.places.give((), class.priority, None);
            self.qos.end(class.priority);
        }
        result
    }

    /// Waits for a place, as an operation waits for a path.
    fn take_place(&self, class: &Class, length: u64, until: Nanos) -> Result<Granted<()>, OperationError> {
        let host = self.fabric.host();
        let pause = self.qos.begin(class.priority);
        if pause > 0 {
            host.sleep(host.now().saturating_add(pause).min(until));
        }
        let granted = match self.places.enter(host, class.flow(), length) {
            Entered::Path(granted) => Some(granted),
            Entered::Wait(seat) => self.places.wait(host, seat, until),
            Entered::Closed => None,
        };
        granted.ok_or_else(|| {
            self.qos.end(class.priority);
            OperationError::Busy
        })
    }
}

/// The failure of a request for a part of a command.
pub(crate) fn failed(is_begun: bool, error: RequestError) -> OperationError {
    let error = OperationError::from(Box::new(error)).as_deadline();
    if is_begun { error.after_parts() } else { error }
}
