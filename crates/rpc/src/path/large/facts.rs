//! The facts about a method for large payloads, from which the rules for plans and the memory to grant follow.

/// The operation that moves the bytes of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// The receiver READs them from the sender's memory.
    Read,
    /// The sender WRITEs them into the receiver's memory.
    Written,
    /// Messages carry them.
    Sent,
}

/// The messages of a payload after its announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Messages {
    None,
    /// One in each direction.
    Few,
    /// More for a longer payload.
    Many,
}

/// The properties of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) moved: Moved,
    pub(crate) messages: Messages,
    /// Payloads of more bytes may be announced before they are filled.
    pub(crate) early_above: Option<usize>,
}

impl Facts {
    /// Returns whether the receiver READs the payload from the sender's memory.
    pub(crate) const fn is_read(&self) -> bool {
        matches!(self.moved, Moved::Read)
    }

    /// Returns whether the sender WRITEs the payload into the receiver's memory.
    pub(crate) const fn is_written(&self) -> bool {
        matches!(self.moved, Moved::Written)
    }

    /// Returns whether the sender keeps an announced payload until the receiver has it, names a place for it, or
    /// releases it.
    pub(crate) const fn is_kept(&self) -> bool {
        !matches!(self.moved, Moved::Sent)
    }

    /// Returns whether long payloads may be announced before they are filled.
    pub(crate) const fn is_early(&self) -> bool {
        self.early_above.is_some()
    }

    /// Returns whether a payload of `length` bytes may be announced before it is filled.
    pub(crate) fn leaves_early(&self, length: usize) -> bool {
        self.early_above.is_some_and(|above| length > above)
    }

    /// Returns whether messages follow the announcement.
    pub(crate) const fn has_steps(&self) -> bool {
        !matches!(self.messages, Messages::None)
    }

    /// Returns whether the messages are more than the window bounds.
    pub(crate) const fn has_many_messages(&self) -> bool {
        matches!(self.messages, Messages::Many)
    }
}
