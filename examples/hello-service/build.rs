fn main() {
    dunlin_idl_build::compile("idl/hello.thrift").unwrap();
}
