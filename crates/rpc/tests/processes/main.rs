//! Tests with processes, threads and clocks of their own, as one program, which starts itself again to be another process. It has
//! a main function of its own: a process that plays a role runs no test, and each test has its process.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod asynchronous;
mod closing;
mod failures;
mod handshake;
mod hostile;
mod hybrid;
mod loss;
mod lying_server;
mod messages;
mod semantics;
mod threads;

fn main() {
    failures::add_roles();
    handshake::add_roles();
    lying_server::add_roles();
    messages::add_roles();
    common::run(&[
        ("asynchronous", asynchronous::TESTS),
        ("closing", closing::TESTS),
        ("failures", failures::TESTS),
        ("handshake", handshake::TESTS),
        ("hostile", hostile::TESTS),
        ("hybrid", hybrid::TESTS),
        ("loss", loss::TESTS),
        ("lying_server", lying_server::TESTS),
        ("messages", messages::TESTS),
        ("semantics", semantics::TESTS),
        ("threads", threads::TESTS),
    ]);
}
