//! The rows of the demo.

use dunlin::fabric::Capabilities;
use dunlin::plan::{CompletionMode, PROTOCOLS, Protocol};

/// One row: a protocol, the completion mode of both sides, and the number of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) protocol: &'static Protocol,
    pub(super) mode: CompletionMode,
    pub(super) clients: usize,
}

impl Phase {
    /// Returns every protocol in busy mode, with one core per client, then those that can sleep, with all
    /// clients. A spinning client without its own core would only measure the scheduler.
    pub(super) fn all(capabilities: &Capabilities, spinning: usize, sleeping: usize) -> Vec<Phase> {
        [(CompletionMode::Busy, spinning), (CompletionMode::Adaptive, sleeping)]
            .into_iter()
            .flat_map(|(mode, clients)| {
                let legal = move |protocol: &&Protocol| protocol.plan(mode).check(capabilities).is_ok();
                PROTOCOLS.iter().filter(legal).map(move |protocol| Phase { protocol, mode, clients })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin::fabric::Fabric as _;

    #[test]
    fn every_protocol_has_a_busy_row_and_those_that_sleep_another() {
        let fabric = dunlin::fabric::shm().expect("a fabric");
        let phases = Phase::all(fabric.capabilities(), 1, 3);
        for protocol in PROTOCOLS {
            let modes: Vec<(CompletionMode, usize)> = phases
                .iter()
                .filter(|phase| phase.protocol == protocol)
                .map(|phase| (phase.mode, phase.clients))
                .collect();
            let sleeps = protocol.plan(CompletionMode::Adaptive).check(fabric.capabilities()).is_ok();
            let expected: &[_] = &[(CompletionMode::Busy, 1), (CompletionMode::Adaptive, 3)];
            assert_eq!(modes, expected[..1 + usize::from(sleeps)], "{}", protocol.name);
        }
        assert!(phases.len() > PROTOCOLS.len());
    }
}
