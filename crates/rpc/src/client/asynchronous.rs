//! The asynchronous client: futures for any executor. The engine is the same; who wakes a future is a wake thread.
//!
//! All asynchronous clients of a process share a hub: one core behind a mutex, and one wake thread, started with
//! the first future that has to wait. The thread sleeps on the core's doorbell without the lock, and runs
//! `progress` when it rings; with a busy plan a future wakes itself instead, and polling it makes the progress.
