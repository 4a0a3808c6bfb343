//! A mapped memory: loads and stores in place of calls. Run as many processes as members, each attached to the node of its
//! host (`dunlin node run`).
//!
//! `cargo run --release -p dunlin-app-memory --example mapped -- MEMBERS MEMBER`

use dunlin_app_memory::{Memory, MemoryConfig};
use dunlin_tier_client::Tier;
use std::error::Error;
use std::sync::atomic::Ordering;

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u16>());
    let (members, member) = (numbers.next().unwrap_or(Ok(1))?, numbers.next().unwrap_or(Ok(0))?);
    let config = MemoryConfig::new("example/mapped", 64, members, member);
    let config = MemoryConfig { address: Some(0x5f00_0000_0000), ..config };
    let memory = Memory::open(&Tier::join()?, &config)?;
    let words = memory.words().ok_or("an address was given")?;
    for _ in 0..1000 {
        let mut acquired = memory.acquire(0..8)?;
        let count = words[0].load(Ordering::Relaxed);
        words[0].store(count + 1, Ordering::Relaxed);
        acquired.release()?;
    }
    memory.barrier()?;
    println!("{} increments", words[0].load(Ordering::Relaxed));
    Ok(memory.close()?)
}
