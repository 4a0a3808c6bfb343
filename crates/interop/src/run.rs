//! Runs the interoperability checks of one language.

use crate::checks::{Abilities, check};
use crate::handler::Handler;
use crate::idl::UuidsProcessor;
use crate::node::Served;
use anyhow::{Context as _, Result, bail, ensure};
use dunlin::thrift::tcp::{Connection, ConnectionOptions, Encoding, Server, ServerOptions, Transport, Wire};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// A language whose Apache Thrift library is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `thrift` from PyPI.
    Python,
    /// `thrift` from npm.
    Node,
    /// `org.apache.thrift:libthrift` from Maven Central.
    Java,
    /// Debian's `libthrift-dev`.
    Cpp,
}

impl Language {
    /// All languages.
    pub const ALL: [Language; 4] = [Language::Python, Language::Node, Language::Java, Language::Cpp];

    /// Returns the language's name, which is also that of its script.
    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Node => "node",
            Language::Java => "java",
            Language::Cpp => "cpp",
        }
    }

    /// Returns the features of the language's library.
    fn abilities(self, wire: Wire) -> Abilities {
        Abilities {
            // The other libraries need a newer compiler than Debian's to support it.
            uuid: self == Language::Python,
            // Node's reader decodes each of them as false in the compact protocol (at least in 0.17 to 0.24).
            bools_in_containers: self != Language::Node || wire.encoding == Encoding::Binary,
            unknown_method: self != Language::Node,
        }
    }
}

fn name(wire: Wire) -> &'static str {
    match (wire.transport, wire.encoding) {
        (Transport::Framed, Encoding::Binary) => "framed-binary",
        (Transport::Framed, Encoding::Compact) => "framed-compact",
        (Transport::Unframed, Encoding::Binary) => "unframed-binary",
        (Transport::Unframed, Encoding::Compact) => "unframed-compact",
    }
}

/// A child process, killed on drop.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn script(language: Language, folder: &Path, act: &str) -> Command {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop");
    let mut command = Command::new(scripts.join(language.name()).with_extension("sh"));
    command.arg(act).arg(folder).stdin(Stdio::null());
    command
}

/// Runs the language's client against our server and our client against its server, on every wire. Installs
/// dependencies below `target/interop`. Returns one line per completed check. Takes minutes the first time.
pub fn run(language: Language) -> Result<Vec<String>> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    let folder = target.join("interop").join(language.name());
    std::fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    // Only one installation may run at a time.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    finish(&mut script(language, &folder, "prepare")).context("preparing")?;
    drop(installing);
    let processor = Arc::new(UuidsProcessor(Handler::default()));
    let server = Server::bind("127.0.0.1:0", processor, ServerOptions::default())?;
    let mut lines = they_call(language, &folder, "Dunlin", server.address().port())?;
    let at_node = Served::start().context("a server at node:")?;
    lines.extend(they_call(language, &folder, "Dunlin at node:", at_node.port)?);
    lines.extend(we_call(language, &folder)?);
    Ok(lines)
}

/// Runs a command and returns its output. Fails unless it exits successfully.
fn finish(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} failed ({}):\n{out}\n{err}", output.status);
    Ok(out.into_owned())
}

/// Runs their client against our server at a port, on every wire.
fn they_call(language: Language, folder: &Path, server: &str, port: u16) -> Result<Vec<String>> {
    let (port, mut lines) = (port.to_string(), Vec::new());
    for wire in Wire::ALL {
        let said = finish(script(language, folder, "client").args([&port, name(wire)]))?;
        let Some(last) = said.lines().last().filter(|last| last.ends_with("calls as expected")) else {
            bail!("the client of {} says\n{said}", name(wire));
        };
        lines.push(format!("{} calls {server}, {}: {last}", language.name(), name(wire)));
    }
    Ok(lines)
}

/// Runs our client against their server.
fn we_call(language: Language, folder: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for wire in Wire::ALL {
        let mut command = script(language, folder, "server");
        command.arg(name(wire)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = Process(command.spawn().with_context(|| format!("{command:?}"))?);
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().context("a server without output")?).read_line(&mut line)?;
        let Some(port) = line.trim().strip_prefix("port ") else {
            let mut errors = String::new();
            let _ = server.0.kill();
            server.0.stderr.take().context("a server without errors")?.read_to_string(&mut errors)?;
            bail!("the server of {} says {line:?} and not its port:\n{errors}", name(wire));
        };
        let options = ConnectionOptions { wire, ..ConnectionOptions::default() };
        let mut client = Connection::connect(&format!("127.0.0.1:{port}"), options)?;
        let count = check(&mut client, language.abilities(wire)).with_context(|| name(wire))?;
        lines.push(format!("Dunlin calls {}, {}: {count} calls as expected", language.name(), name(wire)));
    }
    Ok(lines)
}
