//! The documents agree with the code, and with each other.

mod commands;
mod code;
mod limits;
mod links;
mod reference;
