//! Nodes on shared memory and in virtual time, as one program.

mod asynchronous;
mod buffers;
mod cluster;
mod copies;
mod extents;
mod hostile;
mod keepers;
mod leases;
mod lists;
mod locks;
mod membership;
mod moves;
mod orphans;
mod publish;
mod qos;
mod queue_pair_count;
mod queue_pairs;
mod revoke;
mod rings;
mod services;
mod shm;
mod sim;
mod sim_kept;
mod steps;
mod store;
