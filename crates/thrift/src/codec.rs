//! Thrift's encodings, for bytes that nobody vouches for.
//!
//! The generated types read and write themselves through pilota's protocol traits; the readers here stand behind those
//! traits. They differ from pilota's own in what they do with bytes that lie: a length, a container's size, text that is
//! not UTF-8 or nesting without end is an error before anything is allocated for it, and no input panics.

mod binary;
mod compact;
mod compact_output;
mod cursor;
mod lending;
mod scan;
mod skip;

pub(crate) use binary::part;
pub use binary::{BinaryInput, BinaryOutput};
pub use compact::CompactInput;
pub use compact_output::CompactOutput;
pub use cursor::{Input, Limits, owned_str, read_owned_rest};
#[cfg(test)]
pub(crate) use lending::LENT;
pub use lending::Output;
pub(crate) use lending::{Lending, Payload};
pub(crate) use scan::varint;
pub use scan::{Encoding, Scanned, Scanner};

#[cfg(test)]
mod tests;
