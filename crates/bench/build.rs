//! Generates the code of the benchmarks' services.

fn main() {
    for service in ["idl/atb.thrift", "idl/typed.thrift"] {
        dunlin_idl_build::compile(service).unwrap();
    }
}
