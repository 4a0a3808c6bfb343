//! Threads and tasks that meet at one connection without a lock: tickets, and the lead (FLOCK section 4.2). Shared
//! connections of threads ([`share`](crate::share)) and the hub of asynchronous clients use both, and the places of
//! threads on queue pairs (section 5.2).

pub(crate) mod growth;
pub(crate) mod lead;
pub(crate) mod lines;
pub(crate) mod places;
#[cfg(test)]
mod random_schedules;
pub(crate) mod scheduling;
pub(crate) mod threads;
pub(crate) mod tickets;
pub(crate) mod vacant;
pub(crate) mod waiting;
