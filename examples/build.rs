//! Generates the services of the examples.

fn main() {
    dunlin_idl_build::compile("idl/kv.thrift").unwrap();
}
