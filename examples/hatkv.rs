//! HatRPC's key-value service on LMDB (its section 4.4), with records as in its section 5.4.
//!
//! `cargo run --release --example hatkv [ADDRESS]` calls the server at the address
//! (`dunlin-hatkv --listen ADDRESS`) on any transport, or starts its own server if no address is given.

use dunlin::thrift::Bytes;
use dunlin_hatkv::hatkv::{HAT_KV_SERVICE, HatKvClient};
use dunlin_hatkv::{Handler, TunedProcessor, Tuning};
use std::time::Duration;

fn main() -> anyhow::Result<()> {
    if let Some(address) = std::env::args().nth(1) {
        return call(&address);
    }
    let folder = std::env::temp_dir().join(format!("dunlin-example-hatkv-{}", std::process::id()));
    let tuning = Tuning::hinted(HAT_KV_SERVICE.functions);
    println!("the hints say: {tuning:?}");
    let handler = Handler::open_with(&folder, 64 << 20, tuning)?;
    let address = format!("shm:example-hatkv-{}", std::process::id());
    let server = dunlin::serve(&address, TunedProcessor::new(handler))?;
    call(&address)?;
    server.shutdown(Duration::from_secs(1));
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

fn call(address: &str) -> anyhow::Result<()> {
    let mut client = HatKvClient::connect(address)?;
    println!("by {}", client.transport());
    let record = |number: u8| (Bytes::from(format!("user{number:020}")), Bytes::from(vec![number; 1000]));
    let (keys, values): (Vec<_>, Vec<_>) = (0..10).map(record).unzip();
    client.multiput(&keys, &values)?;
    println!("multiput: {} records in one transaction", keys.len());
    println!("get:      {} bytes", client.get(&keys[3])?.len());
    let found = client.multiget(&keys)?;
    println!(
        "multiget: {} of {} found",
        found.iter().filter(|found| found.value.is_some()).count(),
        keys.len()
    );

    Ok(())
}
