//! A service in a program of its own: `serve` runs until Ctrl-C, `call` calls it from another process or machine.
//!
//! `cargo run --release --example greeter -- serve shm:greeter`, then
//! `cargo run --release --example greeter -- call shm:greeter Ada Grace`

use dunlin::Context;
use dunlin::thrift::{Failure, FastStr, Never};
use greeter::{Greeter, GreeterClient, GreeterError, GreeterGreetException, GreeterProcessor, NoName};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tracing_subscriber::EnvFilter;

dunlin::include_service!("greeter");

#[derive(Default)]
struct Handler {
    greetings: AtomicI64,
}

impl Handler {
    fn greeting(&self, name: &str) -> FastStr {
        self.greetings.fetch_add(1, Ordering::Relaxed);
        format!("hello, {name}").into()
    }
}

impl Greeter for Handler {
    fn greet(&self, _: &Context, name: &str) -> Result<FastStr, Failure<GreeterGreetException>> {
        if name.is_empty() {
            return Err(NoName { advice: "give a name".into() }.into());
        }
        Ok(self.greeting(name))
    }

    fn greet_all(&self, _: &Context, names: Vec<FastStr>) -> Result<Vec<FastStr>, Failure<Never>> {
        Ok(names.iter().map(|name| self.greeting(name)).collect())
    }

    fn total(&self, _: &Context) -> Result<i64, Failure<Never>> {
        Ok(self.greetings.load(Ordering::Relaxed))
    }
}

fn serve_at(address: &str) -> anyhow::Result<()> {
    let handler = Arc::new(Handler::default());
    let server = dunlin::serve(address, GreeterProcessor(Arc::clone(&handler)))?;
    println!("serving {}; Ctrl-C ends the server", server.address());
    server.run_until_signal()?;
    println!("ended after {} greetings", handler.greetings.load(Ordering::Relaxed));
    Ok(())
}

fn call_at(address: &str, names: &[&str]) -> anyhow::Result<()> {
    let mut client = GreeterClient::connect(address)?;
    println!("over {}", client.transport());
    for name in names {
        println!("{}", client.greet(name)?);
    }
    let names: Vec<FastStr> = names.iter().map(FastStr::new).collect();
    println!("{} greetings in one call", client.greet_all(&names)?.len());
    match client.greet("") {
        Err(GreeterError::NoName(NoName { advice })) => println!("refused: {advice}"),
        Err(error) => println!("{error} ({:?})", error.certainty()),
        Ok(greeting) => println!("{greeting}"),
    }
    println!("{} greetings in all", client.total()?);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve_at(address),
        ["call", address, names @ ..] => call_at(address, names),
        _ => anyhow::bail!("usage: greeter serve ADDRESS | greeter call ADDRESS NAME..."),
    }
}
