//! The services of the examples, generated from `examples/idl/*.thrift`.

dunlin::include_service!("echo");
dunlin::include_service!("kv");
dunlin::include_service!("mail");
dunlin::include_service!("statistics");
