//! A client of a store whose server comes later or comes back: keys reach their owners.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_kv::{KvClient, KvService};
use dunlin_rpc::{ClientConfig, Server, ServerBuilder, ServerConfig, Service};
use std::time::Duration;

const WORKERS: u16 = 3;

fn serve(fabric: &ShmFabric, address: &Address) -> Server<ShmFabric> {
    let config = ServerConfig { workers: WORKERS, ..ServerConfig::default() };
    KvService::declare(ServerBuilder::new(fabric).config(config))
        .serve(address, |worker| {
            Box::new(KvService::new(1 << 20, None, worker, WORKERS).unwrap()) as Box<dyn Service>
        })
        .unwrap()
}

#[test]
fn keys_reach_their_owners_also_without_a_connection_at_first() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let name = format!("kv-coming-back-{}", std::process::id());
    let address = Address::new(Scheme::Shm, &name).unwrap();
    let patient = ClientConfig { wait_for_ready: Duration::from_secs(60), ..ClientConfig::default() };
    // One key of each owner, so that most go to another worker than the first.
    let keys = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"];
    for _ in 0..2 {
        for key in keys {
            let lazy = ClientConfig { lazy: true, ..patient.clone() };
            let mut client = KvClient::connect(&fabric, &address, lazy).unwrap();
            let server = serve(&fabric, &address);
            client.put(key, b"value").unwrap();
            assert_eq!(client.get(key).unwrap().as_deref(), Some(&b"value"[..]));
            drop(server);
            // The first call may have been under way.
            let server = serve(&fabric, &address);
            while client.put(key, b"again").is_err() {}
            assert_eq!(client.multiget(&[key]).unwrap(), [Some(b"again".to_vec())]);
            drop(server);
        }
    }
}
