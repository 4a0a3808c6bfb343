//! The server of `hello-service`, for the tests of this package: `cargo run --example hello_server [ADDRESS]`

include!("hello-service/src/bin/server.rs");
