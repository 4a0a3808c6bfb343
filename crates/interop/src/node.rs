//! The service at `node:`, which answers stock Thrift over TCP besides. The server is a process of its own, since the
//! variable that names the node of a process belongs to the whole process.

use crate::handler::Handler;
use crate::idl::{UuidsClient, UuidsProcessor};
use crate::run::Process;
use anyhow::{Context as _, Result};
use dunlin::fabric::{Scheme, ShmFabric};
use dunlin::tier::{Peer, ProcessConfig, ProcessServer, Tier, TierConfig};
use dunlin::{Address, ClientOptions, Fabrics, ServerOptions, serve_with};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The argument with which this program runs [`serve`].
pub const SERVE: &str = "serve-at-node";
const ADDRESS: &str = "node:everything";
/// A gateway looks for a service once a second.
const FOUND_WITHIN: Duration = Duration::from_secs(30);

/// Serves at `node:everything` and on a port of TCP, calls itself through the node, prints the port, and serves until
/// its standard input ends.
pub fn serve() -> Result<()> {
    let fabrics = Fabrics::default();
    let options = ServerOptions { tcp: Some("127.0.0.1:0".to_owned()), ..ServerOptions::default() };
    let server = serve_with(&fabrics, ADDRESS, UuidsProcessor(Handler::default()), options)?;
    let begin = Instant::now();
    let mut client = loop {
        match UuidsClient::connect_with(&fabrics, ADDRESS, ClientOptions::default()) {
            Ok(client) => break client,
            Err(error) if begin.elapsed() > FOUND_WITHIN => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    client.ping()?;
    println!("port {}", server.tcp_address().context("a server without TCP")?.port());
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A node, and a process that serves at it.
pub(crate) struct Served {
    _server: Process,
    _processes: ProcessServer<ShmFabric>,
    _tier: Tier<ShmFabric>,
    /// The port of the server for stock Thrift.
    pub(crate) port: u16,
}

impl Served {
    /// Starts both, and waits until a call through the node was answered.
    pub(crate) fn start() -> Result<Served> {
        let name = format!("interop-{}", std::process::id());
        let mut peer = Peer::named(Scheme::Shm, &name)?;
        peer.name = "one".to_owned();
        let fabric = dunlin::fabric::shm()?;
        let config = TierConfig { memory: 1 << 20, ..TierConfig::new(vec![peer], "one") };
        let tier = Tier::within(&fabric, config)?;
        let attach = Address::new(Scheme::Shm, &format!("{name}-attach"))?;
        let processes = ProcessServer::serve(&fabric, &tier, ProcessConfig::new(attach.clone()))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(SERVE).env("DUNLIN_NODE", attach.to_string());
        let mut server = Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().context("a server without output")?).read_line(&mut line)?;
        let port = line
            .trim()
            .strip_prefix("port ")
            .with_context(|| format!("the server at {ADDRESS} says {line:?}"))?;
        let port = port.parse()?;
        Ok(Served { _server: server, _processes: processes, _tier: tier, port })
    }
}
