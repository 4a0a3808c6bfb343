use dunlin::thrift::{Failure, FastStr, Never};

dunlin::include_service!("hello");

struct Greeter;

impl hello::Hello for Greeter {
    fn greet(&self, _: &dunlin::Context, name: &str) -> Result<FastStr, Failure<Never>> {
        Ok(format!("hello, {name}").into())
    }
}

fn main() -> Result<(), dunlin::Report> {
    let address = std::env::args().nth(1).unwrap_or("auto:0.0.0.0:7000".into());
    Ok(dunlin::serve(address, hello::HelloProcessor(Greeter))?.run_until_signal()?)
}
