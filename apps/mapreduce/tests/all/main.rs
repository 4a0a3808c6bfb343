//! Jobs over the memory tier: on shared memory, in virtual time, and alone.

mod cluster;
mod files;
mod shm;
mod sim;
