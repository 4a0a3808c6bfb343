//! Members on nodes of one process, on machines in virtual time, and as processes that attach to nodes.
#![allow(missing_docs, reason = "tests, named for what they hold")]

mod cluster;
mod kills;
mod processes;
mod shm;
mod sim;
