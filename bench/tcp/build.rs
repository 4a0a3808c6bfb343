//! The same service for both.

fn main() {
    println!("cargo::rerun-if-changed=echo.thrift");
    dunlin_idl_build::compile("echo.thrift").unwrap();
    volo_build::Builder::thrift().add_service("echo.thrift").write().unwrap();
}
