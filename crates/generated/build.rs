//! Generates the services.

fn main() {
    dunlin_idl_build::compile("idl/asked.thrift").unwrap();
    dunlin_idl_build::compile("idl/clashes.thrift").unwrap();
    dunlin_idl_build::compile("idl/everything.thrift").unwrap();
    dunlin_idl_build::compile("idl/forms.thrift").unwrap();
    dunlin_idl_build::compile("idl/numa.thrift").unwrap();
    dunlin_idl_build::compile("idl/quiet.thrift").unwrap();
    dunlin_idl_build::compile("idl/sharing.thrift").unwrap();
    dunlin_idl_build::compile("idl/values.thrift").unwrap();
    dunlin_idl_build::compile("idl/younger.thrift").unwrap();
}
