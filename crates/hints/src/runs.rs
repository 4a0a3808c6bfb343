//! Where a function runs on its server: on the worker that receives a call, or in the pool.

use crate::hints::{FunctionHints, Place};
use crate::key::{Key, Side};
use crate::value::{LONG_FROM, ProcessTime, Value};

/// The place where a server runs a function by its hints, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunsBy {
    /// Whether it is the pool; otherwise it is the worker that receives the call.
    pub pool: bool,
    /// The reason as text.
    pub text: String,
    /// The location of the deciding hint, if it is known.
    pub place: Option<Place>,
}

/// Returns where a server runs a function by its hints: in the pool if the server's `process_time` is long.
pub fn runs(function: &FunctionHints) -> RunsBy {
    let place = function.place(Side::Server, Key::ProcessTime).cloned();
    match function.server.process_time {
        Some(time) if time.is_long() => {
            let text = format!("process_time = {}", Value::ProcessTime(time));
            RunsBy { pool: true, text, place }
        }
        Some(time) => {
            let text = format!("process_time = {}", Value::ProcessTime(time));
            RunsBy { pool: false, text, place }
        }
        None => {
            let from = Value::ProcessTime(ProcessTime::Nanos(LONG_FROM));
            let text = format!("no process_time, so taken to be shorter than {from}");
            RunsBy { pool: false, text, place: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::Hints;

    #[test]
    fn long_functions_run_in_the_pool() {
        let of = |time| runs(&FunctionHints::new("f").server(Hints::NONE.process_time(time)));
        let long = of(ProcessTime::Long);
        assert_eq!((long.pool, &*long.text), (true, "process_time = long"));
        assert!(of(ProcessTime::Nanos(LONG_FROM)).pool && !of(ProcessTime::Nanos(LONG_FROM - 1)).pool);
        assert_eq!(
            (of(ProcessTime::Short).pool, &*of(ProcessTime::Short).text),
            (false, "process_time = short")
        );
        let none = runs(&FunctionHints::new("f").client(Hints::NONE.process_time(ProcessTime::Long)));
        assert!(!none.pool && none.text.contains("shorter than 7us"), "the client's hint: {none:?}");
    }
}
