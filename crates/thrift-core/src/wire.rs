//! The formats in which stock Thrift sends messages on a connection.

/// An encoding of Thrift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `TBinaryProtocol`.
    Binary,
    /// `TCompactProtocol`.
    Compact,
}

/// The framing of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// `TFramedTransport`: each message follows its length, a big-endian number of four bytes.
    Framed,
    /// `TBufferedTransport` or the bare socket: messages follow each other without separators.
    Unframed,
}

/// The transport and encoding of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wire {
    /// The framing of messages.
    pub transport: Transport,
    /// The encoding of messages.
    pub encoding: Encoding,
}

impl Wire {
    /// Framed and binary, which most servers accept.
    pub const FRAMED_BINARY: Wire = Wire { transport: Transport::Framed, encoding: Encoding::Binary };
    /// Framed and compact.
    pub const FRAMED_COMPACT: Wire = Wire { transport: Transport::Framed, encoding: Encoding::Compact };
    /// Unframed and binary.
    pub const UNFRAMED_BINARY: Wire = Wire { transport: Transport::Unframed, encoding: Encoding::Binary };
    /// Unframed and compact.
    pub const UNFRAMED_COMPACT: Wire = Wire { transport: Transport::Unframed, encoding: Encoding::Compact };
    /// All combinations.
    pub const ALL: [Wire; 4] =
        [Wire::FRAMED_BINARY, Wire::FRAMED_COMPACT, Wire::UNFRAMED_BINARY, Wire::UNFRAMED_COMPACT];
}
