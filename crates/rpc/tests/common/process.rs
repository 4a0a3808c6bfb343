//! Roles: the test binary, started again as another process.

use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const ROLE: &str = "DUNLIN_TEST_ROLE";
const ARGUMENTS: &str = "DUNLIN_TEST_ARGUMENTS";

/// Answers with the number of executed calls of [`ECHO`] and [`SLOW`], as 8 bytes.
pub const EXECUTED: u16 = 2;
/// Runs in the pool: sleeps for the number of milliseconds in its first byte, then echoes.
pub const SLOW: u16 = 3;
/// Answers with the number of bytes given in its first four bytes.
pub const SIZED: u16 = 4;
/// Panics.
pub const PANIC: u16 = 5;
/// Is never answered.
pub const NEVER: u16 = 6;
/// Answers with the time that is left now in nanoseconds, as 8 bytes; 0 without a deadline.
pub const TIME_LEFT: u16 = 7;

/// Fails with a text longer than a small result.
pub const WORDY: u16 = 8;

/// A role of one test file, by name.
pub type Role = fn(&str);
static ROLES: std::sync::Mutex<Vec<(&'static str, Role)>> = std::sync::Mutex::new(Vec::new());

/// Adds a role. Call it before [`run`](super::run).
pub fn add_role(name: &'static str, role: Role) {
    ROLES.lock().unwrap().push((name, role));
}

/// Plays a role and ends the process, if it was started for one.
pub fn play_role() {
    let Ok(name) = std::env::var(ROLE) else { return };
    // The parent may die before this process.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
    if name == "server" {
        serve(&arguments);
    } else {
        let role = ROLES.lock().unwrap().iter().find(|(role, _)| *role == name).map(|(_, role)| *role);
        role.expect("a role of this file")(&arguments);
    }
    std::process::exit(0);
}

/// Signals the test that the role is ready.
pub fn ready() {
    println!("ready");
    std::io::stdout().flush().unwrap();
}

/// A process that plays a role; killed when dropped.
pub struct Process {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    /// Starts a process and waits until it is [`ready`].
    pub fn start(role: &str, arguments: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .env(ARGUMENTS, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready", "{role} did not start");
        let stdin = child.stdin.take();
        Process { child, stdin, output }
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the rest of its output.
    pub fn rest(&mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        text
    }

    /// Returns its next line of output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server in its own process.
pub struct ServerProcess {
    pub process: Process,
    pub address: Address,
}

impl ServerProcess {
    /// Starts a server with settings given as `key=value` words.
    pub fn start(settings: &str) -> ServerProcess {
        Self::start_on(&unique("server"), settings)
    }

    pub fn start_on(address: &Address, settings: &str) -> ServerProcess {
        let process = Process::start("server", &format!("{address} {settings}"));
        ServerProcess { process, address: address.clone() }
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Shuts the server down gracefully, and waits for its end.
    pub fn shutdown(&mut self) {
        drop(self.process.stdin.take());
        self.process.child.wait().unwrap();
    }

    /// Returns the number of executed calls, queried by a new client.
    pub fn executed(&self, fabric: &ShmFabric) -> u64 {
        let mut client = self.client(fabric, any_plan());
        let response = client.call(EXECUTED, &[]).unwrap();
        u64::from_le_bytes((*response).try_into().unwrap())
    }

    pub fn client(&self, fabric: &ShmFabric, plan: Plan) -> Client<ShmFabric> {
        Client::connect(fabric, &self.address, ClientConfig::with_plan(plan)).unwrap()
    }

    /// Asserts that the server still serves other clients, with every protocol.
    pub fn assert_serves(&self, fabric: &ShmFabric) {
        for (name, plan) in plans(fabric, &[CompletionMode::Busy, CompletionMode::Event]) {
            let mut client = self.client(fabric, plan);
            for size in [0, 5, 100, 5000] {
                let payload = pattern(size, 3);
                let response = client.call(ECHO, &payload);
                assert_eq!(*response.unwrap_or_else(|e| panic!("{name}: {e}")), *payload, "{name}");
            }
        }
    }
}

/// Returns the functions of the test server, as the service of one worker.
pub fn test_service(executed: Arc<AtomicU64>) -> Box<dyn Service> {
    Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
        match request.function {
            EXECUTED => reply.write(&executed.load(Ordering::SeqCst).to_le_bytes())?,
            SIZED => {
                let length = request.payload.first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
                let bytes = reply.reserve(length as usize)?;
                bytes.fill(length as u8);
            }
            TIME_LEFT => {
                let left = request.time_left().map_or(0, |left| left.as_nanos() as u64);
                reply.write(&left.to_le_bytes())?;
            }
            WORDY => {
                reply.reserve(20_000)?.fill(7);
                return Err(Status::Application(ApplicationCode::new(3).unwrap()));
            }
            PANIC => panic!("as asked"),
            _ => {
                executed.fetch_add(1, Ordering::SeqCst);
                reply.write(request.payload)?;
            }
        }
        Ok(())
    })
}

/// Returns a builder with the functions of the test server.
pub fn test_server<F: dunlin_fabric::Fabric>(fabric: &F, executed: &Arc<AtomicU64>) -> ServerBuilder<F> {
    let executed = Arc::clone(executed);
    ServerBuilder::new(fabric)
        .function(ECHO, FunctionMode::Worker)
        .function(EXECUTED, FunctionMode::Worker)
        .function(SIZED, FunctionMode::Worker)
        .function(PANIC, FunctionMode::Worker)
        .function(WORDY, FunctionMode::Worker)
        .function(TIME_LEFT, FunctionMode::Worker)
        .function(SLOW, FunctionMode::Pool)
        .function(NEVER, FunctionMode::Pull)
        .pool(move |request: &Request<'_>, reply: &mut Reply<'_>| {
            let time = request.payload.first().copied().unwrap_or(0);
            std::thread::sleep(Duration::from_millis(time.into()));
            executed.fetch_add(1, Ordering::SeqCst);
            reply.write(request.payload)?;
            Ok(())
        })
}

fn serve(arguments: &str) {
    std::panic::set_hook(Box::new(|_| {}));
    let mut words = arguments.split(' ').filter(|w| !w.is_empty());
    let address: Address = words.next().unwrap().parse().unwrap();
    let mut config = ServerConfig { spin: Duration::from_micros(2), ..ServerConfig::default() };
    for word in words {
        let (key, value) = word.split_once('=').unwrap();
        let number = || value.parse::<u64>().unwrap();
        match key {
            "max_payload" => config.max_payload = number(),
            "max_response" => config.max_response = number(),
            "workers" => config.workers = number() as u16,
            "window" => config.window = number() as u16,
            "max_connections" => config.max_connections = number() as u32,
            "max_waiting" => config.max_waiting = number() as u32,
            "pool_threads" => config.pool_threads = number() as u16,
            "large_memory" => config.large_memory = number(),
            "large_response_memory" => config.large_response_memory = number(),
            "hello_timeout" => config.hello_timeout = Duration::from_nanos(number()),
            "token" => config.token = value.as_bytes().to_vec(),
            "service" => config.service = value.to_owned(),
            _ => panic!("no setting {key}"),
        }
    }
    let executed = Arc::new(AtomicU64::new(0));
    let server = test_server(&fabric(), &executed)
        .config(config)
        .serve(&address, |_| test_service(Arc::clone(&executed)))
        .unwrap();
    ready();
    // Until the test closes our standard input.
    let mut nothing = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut nothing);
    server.shutdown(Duration::from_secs(10));
}
