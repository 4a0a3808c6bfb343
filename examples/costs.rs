//! Two costs: the processor time of idle typed clients and their server, and that of a deadline for each call.
//!
//! `cargo run --release --example costs [CLIENTS [SECONDS]]` prints both, each with its bound and whether it holds here.

use dunlin::Context;
use dunlin::thrift::{Failure, FastStr, Never};
use hello::{Hello, HelloClient, HelloProcessor};
use std::fs;
use std::time::{Duration, Instant};

dunlin::include_service!("hello");

struct Greeter;

impl Hello for Greeter {
    fn greet(&self, _: &Context, name: &str) -> Result<FastStr, Failure<Never>> {
        Ok(name.to_owned().into())
    }
}

/// Returns the processor time of all threads of this process.
fn processor_time() -> anyhow::Result<Duration> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir("/proc/self/task")? {
        let times = fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += times.split(' ').next().map_or(Ok(0), str::parse)?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// States whether a cost is within its bound. Other programs on the machine can make it exceed that.
fn verdict(cost: f64, bound: f64, named: &str) -> String {
    let holds = if cost <= bound { "holds" } else { "DOES NOT HOLD" };
    format!("the bound of {named} {holds}")
}

/// Returns the nanoseconds of a call, from many of them.
fn timed(mut call: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    const CALLS: u32 = 2_000;
    let start = Instant::now();
    for _ in 0..CALLS {
        call()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(CALLS))
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    let address = format!("shm:example-costs-{}", std::process::id());
    let server = dunlin::serve(&address, HelloProcessor(Greeter))?;
    let mut client = HelloClient::connect(&address)?;
    let mut others = (1..count).map(|_| client.another()).collect::<Result<Vec<_>, _>>()?;
    for client in others.iter_mut().chain([&mut client]) {
        client.greet("ready")?;
    }

    // Their last waits have ended by then.
    std::thread::sleep(Duration::from_millis(100));
    let (used, start) = (processor_time()?, Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let share = (processor_time()? - used).as_secs_f64() / start.elapsed().as_secs_f64();
    let percent = 100.0 * share;
    println!(
        "{count} idle clients and their server: {percent:.2}% of a core; {}",
        verdict(percent, 1.0, "1% of a core")
    );

    // In alternation, so that a change of the machine's speed affects both.
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        without.push(timed(|| Ok(client.greet("hello").map(drop)?))?);
        with.push(timed(|| Ok(client.within(Duration::from_secs(1)).greet("hello").map(drop)?))?);
    }
    let mut more: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    let [without, with, more] = [&mut without, &mut with, &mut more].map(|times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!(
        "a call takes {without:.0} ns, with a time of its own {with:.0} ns; the difference is {more:.1} ns; {}",
        verdict(more, 5.0, "5 ns")
    );
    server.shutdown(Duration::from_secs(1));
    Ok(())
}
