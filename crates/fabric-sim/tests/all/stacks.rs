//! A task that overruns a stack without a guard page is reported before anything else runs.

use dunlin_fabric::{Fabric as _, Host as _};
use dunlin_fabric_sim::{RunError, Settings, Sim};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const STACK: usize = 64 << 10;
/// Extra bytes of each stack.
const PAGE: usize = 4096;
/// Number of the task, beyond those with guard pages. Its stack starts at the end of its slot, and that of
/// the task below starts 60 lines before the end of its slot, so the overrun hits unused memory.
const TASK: usize = 61 * 132;

/// Fills the stack with frames down to `bottom`.
#[inline(never)]
fn descend(bottom: usize) -> u8 {
    let frame = black_box([0u8; 64]);
    let here = (&raw const frame).addr();
    let below = if here > bottom { descend(bottom) } else { 0 };
    below | black_box(frame)[0]
}

#[test]
fn an_overrun_is_told_before_another_task_runs() {
    let settings = Settings { stack: STACK, max_tasks: TASK + 2, ..Settings::default() };
    let ran_after = Arc::new(AtomicBool::new(false));
    let ran = Arc::clone(&ran_after);
    let run = Sim::run_with(settings, 6, move |sim| {
        let host = sim.host();
        // All tasks have started before the last one begins.
        let end = host.now() + 1_000_000_000;
        let mut tasks = Vec::new();
        for number in 1..=TASK {
            let (sim, ran) = (sim.clone(), Arc::clone(&ran));
            let body = move || {
                if number == TASK {
                    let start = 0u8;
                    descend((&raw const start).addr() - STACK - PAGE);
                    sim.host().sleep(end + 1_000_000);
                } else {
                    sim.host().sleep(end);
                    ran.store(true, Ordering::Relaxed);
                }
            };
            tasks.push(host.spawn(&format!("task-{number}"), Box::new(body)).expect("a stack"));
        }
        for task in tasks {
            task.join();
        }
    });
    let Err(RunError::Overrun { task, bytes: STACK }) = &run else { panic!("{run:?}") };
    assert_eq!(*task, format!("task-{TASK}"));
    assert!(!ran_after.load(Ordering::Relaxed), "another task ran on");
}
