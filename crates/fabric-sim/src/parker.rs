//! The parker of a simulated thread.

use crate::shared::Shared;
use crate::signals::ParkState;
use crate::state::State;
use crate::tasks::Reason;
use dunlin_fabric::{Nanos, Parker, Unparker, WaitMode};
use std::sync::Arc;

/// One task's wait for other tasks of its process.
#[derive(Debug)]
pub struct SimParker(Arc<Handle>);

/// Ends the wait of a [`SimParker`].
#[derive(Clone, Debug)]
pub struct SimUnparker(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(mut state) = self.shared.try_lock() {
            state.parkers.all.remove(&self.id);
        }
    }
}

impl SimParker {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let mut state = shared.lock();
        let id = state.parkers.next;
        state.parkers.next += 1;
        state.parkers.all.insert(id, ParkState::default());
        SimParker(Arc::new(Handle { shared: Arc::clone(shared), id }))
    }
}

fn of(state: &mut State, id: u64) -> Option<&mut ParkState> {
    state.parkers.all.get_mut(&id)
}

impl Parker for SimParker {
    type Unparker = SimUnparker;

    fn unparker(&self) -> SimUnparker {
        SimUnparker(Arc::clone(&self.0))
    }

    fn park(&mut self, mode: WaitMode, until: Nanos) -> bool {
        let Handle { shared, id } = &*self.0;
        let mut state = shared.enter_at(|prices| prices.look);
        let until = state.time_here(until);
        loop {
            if of(&mut state, *id).is_some_and(|parker| std::mem::take(&mut parker.notified)) {
                return true;
            }
            if state.now() >= until || state.over() {
                return false;
            }
            let busy = !mode.sleeps();
            let waiter = state.stay(Reason::Unpark { parker: *id, busy });
            if let Some(parker) = of(&mut state, *id) {
                parker.parked = Some((waiter, busy));
            }
            state = shared.park(state, waiter, until, true).0;
            if let Some(parker) = of(&mut state, *id) {
                parker.parked = None;
            }
        }
    }

    fn blocks_when_busy(&self) -> bool {
        true
    }
}

impl Unparker for SimUnparker {
    fn unpark(&self) {
        let mut state = self.0.shared.pass_at(|prices| prices.look);
        let Some(parker) = of(&mut state, self.0.id) else { return };
        parker.notified = true;
        let Some((waiter, busy)) = parker.parked.take() else { return };
        if !busy {
            let price = state.settings.prices.system_call;
            state.charge(300 * price);
        }
        state.wake_by_arrival(waiter, busy);
    }
}

#[cfg(test)]
mod tests {
    use crate::Sim;
    use dunlin_fabric::{Fabric, Host, Nanos, Parker, Unparker, WaitMode};

    /// A park of either kind ends by an unpark, one made before it included, and else at its time.
    #[test]
    fn a_park_ends_by_an_unpark_or_at_its_time() {
        for seed in 0..20 {
            Sim::run(seed, |fabric| {
                let host = fabric.host().clone();
                for mode in [WaitMode::Busy, WaitMode::Event] {
                    let mut parker = host.parker();
                    let (unparker, own) = (parker.unparker(), host.clone());
                    let task = host.spawn(
                        "other",
                        Box::new(move || {
                            own.sleep(own.now() + 5_000);
                            unparker.unpark();
                        }),
                    );
                    let began = host.now();
                    assert!(parker.park(mode, Nanos::MAX));
                    assert!(host.now() >= began + 5_000);
                    task.unwrap().join();
                    assert!(!parker.park(mode, host.now() + 1_000));
                    parker.unparker().unpark();
                    assert!(parker.park(mode, Nanos::MAX));
                }
            })
            .unwrap();
        }
    }
}
