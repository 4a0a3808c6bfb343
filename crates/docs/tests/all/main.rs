//! The documents agree with the code, and with each other.

mod code;
mod commands;
mod face;
mod limits;
mod links;
mod reference;
mod rooms;
mod rules;
