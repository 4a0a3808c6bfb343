//! The client of `hello-service`, for the tests of this package: `cargo run --example hello_client [ADDRESS]`

include!("hello-service/src/bin/client.rs");
