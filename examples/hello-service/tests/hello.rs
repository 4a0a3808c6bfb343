//! The server answers the client, and ends on Ctrl-C.

use std::process::{Child, Command};
use std::time::Duration;

/// Ends the server if the test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the process has a handler of SIGINT, the second bit of the mask.
fn handles_ctrl_c(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
}

#[test]
fn the_client_is_greeted_and_the_server_ends_on_ctrl_c() {
    let address = format!("shm:hello-service-{}", std::process::id());
    let server = Command::new(env!("CARGO_BIN_EXE_server")).arg(&address).spawn().unwrap();
    let mut server = Server(server);
    // The server listens after a while.
    let output = loop {
        let output = Command::new(env!("CARGO_BIN_EXE_client")).arg(&address).output().unwrap();
        if output.status.success() || server.0.try_wait().unwrap().is_some() {
            break output;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello, world\n", "{output:?}");
    let pid = server.0.id().to_string();
    while !handles_ctrl_c(&pid) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(server.0.wait().unwrap().success());
}
