//! Logs on real nodes: on shared memory, and in virtual time.
#![allow(missing_docs, reason = "tests, named for what they hold")]

mod cluster;
mod damage;
mod holes;
mod late;
mod owners;
mod shm;
mod sim;
