//! Generates the services of the examples.

fn main() {
    for name in ["echo", "greeter", "hello", "kv", "mail", "statistics"] {
        dunlin_idl_build::compile(format!("idl/{name}.thrift")).unwrap();
    }
}
