//! Thrift's encodings, read safely from untrusted bytes.
//!
//! The generated types read and write themselves through pilota's protocol traits; the readers and writers of
//! this module implement those traits. Unlike pilota's own readers, they check malformed input before they
//! allocate memory for it: a wrong length or container size, text that is not UTF-8 and unbounded nesting are
//! errors. No input causes a panic.

mod binary;
mod compact;
mod compact_output;
mod cursor;
mod lending;
mod scan;
mod skip;

pub use crate::wire::Encoding;
pub(crate) use binary::part;
pub use binary::{BinaryInput, BinaryOutput};
pub use compact::CompactInput;
pub use compact_output::CompactOutput;
pub use cursor::{Input, Limits, owned_str, read_owned_rest};
pub use lending::{LENT, Lending, Output, Payload};
pub use scan::{Scanned, Scanner, varint};

#[cfg(test)]
mod tests;
