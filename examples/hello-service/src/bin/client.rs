dunlin::include_service!("hello");

fn main() -> Result<(), dunlin::Report> {
    let address = std::env::args().nth(1).unwrap_or("auto:localhost:7000".into());
    println!("{}", hello::HelloClient::connect(address)?.greet("world")?);
    Ok(())
}
