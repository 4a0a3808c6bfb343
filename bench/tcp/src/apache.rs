//! Apache's client, another program.

use crate::{CONNECTIONS, SPAN, Seen};
use anyhow::{Context, Result, ensure};
use std::process::Command;

/// Its connections end when 2 GB have gone over them, which large payloads alone on one do in a second.
const LARGE: usize = 64 << 10;

pub fn measure(program: &str, port: u16, size: usize) -> Result<Seen> {
    let span = if size < LARGE { SPAN } else { SPAN / 4 };
    let run = |connections: usize| -> Result<(u64, u64)> {
        let numbers = [usize::from(port), size, connections, span.as_millis() as usize];
        let output = Command::new(program).arg("client").args(numbers.map(|n| n.to_string())).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let (latency, rate) = text.trim().split_once(' ').context("two numbers")?;
        Ok((latency.parse()?, rate.parse()?))
    };
    Ok(Seen { latency: run(1)?.0, rate: run(CONNECTIONS)?.1 })
}
