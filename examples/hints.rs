//! hints
fn main() {}
