//! A service in a program of its own: `serve` runs until Ctrl-C, `call` calls it from another process or machine.
//!
//! `cargo run --release --example greeter -- serve shm:greeter`, then
//! `cargo run --release --example greeter -- call shm:greeter Ada Grace`

use dunlin::thrift::{ClientOptions, Context, Failure, FastStr, Never, ServerOptions, serve};
use dunlin::{Address, Fabrics};
use generated::greeter::{
    Greeter, GreeterClient, GreeterError, GreeterGreetException, GreeterProcessor, NoName,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicI64, Ordering};
use tracing_subscriber::EnvFilter;

#[allow(dead_code, unreachable_pub)]
mod generated {
    dunlin::include_service!("greeter");
}

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

fn serve_at(address: &Address) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let processor = GreeterProcessor(Handler::default());
    let server = serve(&Fabrics::default(), address, processor, ServerOptions::default())?;
    println!("serving {}; Ctrl-C ends the server", server.address());
    signals.forever().next();
    server.shutdown(1_000_000_000);
    println!("ended");
    Ok(())
}

fn call_at(address: &Address, names: &[&str]) -> anyhow::Result<()> {
    let mut client = GreeterClient::connect(&Fabrics::default(), address, ClientOptions::default())?;
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
        ["serve", address] => serve_at(&address.parse()?),
        ["call", address, names @ ..] => call_at(&address.parse()?, names),
        _ => anyhow::bail!("usage: greeter serve ADDRESS | greeter call ADDRESS NAME..."),
    }
}
