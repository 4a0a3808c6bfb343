//! The two programs of `hello-service`, by way of the memory tier's nodes: nothing but the address changes. The
//! test stands here, so that the folder of the programs needs nothing but the library.

use super::program;
use dunlin::Address;
use dunlin::fabric::{Scheme, ShmConfig, ShmFabric};
use dunlin::tier::{Peer, ProcessConfig, ProcessServer, Tier, TierConfig};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// Ends the server if the test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node, and its service for processes, which ends first.
struct Node {
    _processes: ProcessServer<ShmFabric>,
    _tier: Tier<ShmFabric>,
}

const NAMES: [&str; 2] = ["one", "two"];

fn attach(name: &str) -> Address {
    Address::new(Scheme::Shm, &format!("hello-node-{}-{name}-attach", std::process::id())).unwrap()
}

fn start(name: &str) -> Node {
    let peer = |name: &str| {
        let mut peer =
            Peer::named(Scheme::Shm, &format!("hello-node-{}-{name}", std::process::id())).unwrap();
        peer.name = name.to_owned();
        peer
    };
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let config = TierConfig { memory: 1 << 20, ..TierConfig::new(NAMES.map(peer).into(), name) };
    let tier = Tier::within(&fabric, config).unwrap();
    let processes = ProcessServer::serve(&fabric, &tier, ProcessConfig::new(attach(name))).unwrap();
    Node { _processes: processes, _tier: tier }
}

fn serve(node: &str) -> Server {
    let program = program("hello_server");
    Server(
        Command::new(program).arg("node:hello").env("DUNLIN_NODE", attach(node).to_string()).spawn().unwrap(),
    )
}

fn call(node: &str) -> Output {
    let program = program("hello_client");
    Command::new(program).arg("node:hello").env("DUNLIN_NODE", attach(node).to_string()).output().unwrap()
}

#[track_caller]
fn is_greeted(node: &str) {
    let begin = Instant::now();
    loop {
        let output = call(node);
        if output.status.success() {
            assert_eq!(String::from_utf8_lossy(&output.stdout), "hello, world\n");
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", String::from_utf8_lossy(&output.stderr));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_of_one_node_is_greeted_by_a_server_of_another() {
    let (_one, two) = (start("one"), start("two"));
    let server = serve("two");
    is_greeted("one");
    is_greeted("two");
    // A second server of the same service at the same node is told so.
    let second = Command::new(program("hello_server"))
        .arg("node:hello")
        .env("DUNLIN_NODE", attach("two").to_string())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && error.contains("withdraw it"), "{error}");
    drop(server);
    let error = call("one");
    assert!(!error.status.success(), "nobody serves");
    let _server = serve("two");
    is_greeted("one");
    // The server makes itself known to the node's next life.
    drop(two);
    assert!(!call("one").status.success(), "the node has ended");
    let _two = start("two");
    is_greeted("two");
    is_greeted("one");
}
