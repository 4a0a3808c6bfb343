//! Generates the services that Apache's compiler generates for the other side.

fn main() {
    dunlin_idl_build::compile("../../tests/interop/uuid.thrift").unwrap();
}
