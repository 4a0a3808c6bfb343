//! The documents room: the generated pages of `docs/reference/`, and the checks that hold all documents to the code.
//!
//! Generators and checks come in. Text of the pages that people write never does.

pub mod excerpts;
pub mod pages;
pub mod prose;
pub mod reference;
pub mod rooms;
pub mod sources;
