//! Asynchronous handlers: each call is a task on an executor of the program, here the smallest one with a thread.
//!
//! `cargo run --release --example tasks`

use dunlin::Context;
use dunlin::server::serve_async;
use dunlin::thrift::{CallTask, Failure, FastStr, Never, Tasks};
use hello::{HelloAsync, HelloAsyncProcessor, HelloClient};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::Duration;

dunlin::include_service!("hello");

struct Greeter;

impl Greeter {
    /// Stands for a question to another service.
    async fn find_greeting(&self) -> &'static str {
        "hello"
    }
}

impl HelloAsync for Greeter {
    async fn greet(&self, _: &Context, name: &str) -> Result<FastStr, Failure<Never>> {
        let greeting = self.find_greeting().await;
        Ok(format!("{greeting}, {name}").into())
    }
}

/// Runs tasks on one thread. A program would use the executor that it has.
struct Executor(Sender<Arc<Spawned>>);

/// A task, which puts itself into the queue again when it is woken.
struct Spawned(Mutex<Option<CallTask>>, Sender<Arc<Spawned>>);

impl Wake for Spawned {
    fn wake(self: Arc<Self>) {
        let queue = self.1.clone();
        // Without the executor's thread there is nothing to wake.
        let _ = queue.send(self);
    }
}

impl Executor {
    fn start() -> Self {
        let (queue, tasks) = channel::<Arc<Spawned>>();
        std::thread::spawn(move || {
            while let Ok(task) = tasks.recv() {
                let waker = Waker::from(Arc::clone(&task));
                let mut place = task.0.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(mut future) = place.take()
                    && future.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending()
                {
                    *place = Some(future);
                }
            }
        });
        Executor(queue)
    }

    fn spawn(&self, task: CallTask) {
        let _ = self.0.send(Arc::new(Spawned(Mutex::new(Some(task)), self.0.clone())));
    }
}

fn main() -> anyhow::Result<()> {
    let address = format!("shm:example-tasks-{}", std::process::id());
    let executor = Executor::start();
    let tasks = Tasks::new(move |task| executor.spawn(task)).at_most(100);
    let server = serve_async(&address, HelloAsyncProcessor(Greeter), tasks)?;
    let mut client = HelloClient::connect(&address)?;
    println!("{}", client.greet("world")?);
    println!("{}", client.plan_of("greet")?);
    server.shutdown(Duration::from_secs(1));
    Ok(())
}
