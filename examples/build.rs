//! Generates the services of the examples.

fn main() {
    for file in ["idl/echo.thrift", "idl/kv.thrift", "idl/mail.thrift", "idl/statistics.thrift"] {
        dunlin_idl_build::compile(file).unwrap();
    }
}
