//! Threads and tasks that meet at one connection without a lock: tickets, and the lead (FLOCK section 4.2). Shared
//! connections of threads ([`share`](crate::share)) and the hub of asynchronous clients use both.

pub(crate) mod lead;
#[cfg(test)]
mod random_schedules;
pub(crate) mod tickets;
pub(crate) mod waiting;
