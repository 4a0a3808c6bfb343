//! Nodes, and processes that attach to them.
#![allow(missing_docs, reason = "tests, named for what they hold")]

mod asynchronous;
mod buffers;
mod common;
mod direct;
mod doorbells;
mod hostile;
mod in_place;
mod kept;
mod kept_kills;
mod kills;
mod leases;
mod lists;
mod lock_deaths;
mod lock_kills;
mod locks;
mod membership;
mod moves;
mod nodes;
mod operator;
mod owners;
mod priorities;
mod processes;
mod publish;
mod queue_pairs;
mod rings;
mod service;
mod services;
mod tokens;
mod turns;
mod users;
