//! Generates the service.

fn main() {
    dunlin_idl_build::compile("idl/hatkv.thrift").unwrap();
}
