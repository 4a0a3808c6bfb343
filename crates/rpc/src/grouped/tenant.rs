//! The client's end of a lane under leases: ScaleRPC's four states (figure 7).
//!
//! | state | the client | leaves it when |
//! |---|---|---|
//! | CONNECT | has sent nothing | a request is built: WARMUP |
//! | WARMUP | announces its requests | an answer carries a lease: PROCESS |
//! | PROCESS | WRITEs its requests into its zone | an answer carries the end of the lease: IDLE, or WARMUP if requests are left |
//! | IDLE | has sent nothing since its lease ended | a request is built: WARMUP |
//!
//! Answers may come in every state: a server answers announced requests even if it has no zone to lease, and calls
//! in a pool of threads end at any time.

use super::{Lie, Mark, Word};

/// The states of figure 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Connect,
    Warmup,
    Process,
    Idle,
}

/// The transmission of a request that was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transmission {
    /// It is announced by a word.
    Announce,
    /// It is written into the zone.
    Write,
}

/// The outcome of a mark in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MarkOutcome {
    /// A lease of this zone has begun. All requests that the answer's head does not cover go into the zone.
    pub(crate) granted: Option<u8>,
    /// The lease has ended: the client writes its word now, whether or not it has requests.
    pub(crate) ended: bool,
}

/// The client's end of a lane under leases.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tenant {
    state: State,
    /// The epoch of the last lease; 0 before the first one.
    epoch: u32,
}

impl Tenant {
    pub(crate) const fn new() -> Self {
        Tenant { state: State::Connect, epoch: 0 }
    }

    #[cfg(test)]
    pub(crate) const fn state(&self) -> State {
        self.state
    }

    /// Returns the epoch of the last lease.
    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Takes note of a request that was built, and returns its way.
    pub(crate) fn built(&mut self) -> Transmission {
        if self.state == State::Process {
            return Transmission::Write;
        }
        self.state = State::Warmup;
        Transmission::Announce
    }

    /// Returns the word for a ring with this tail.
    pub(crate) const fn word(&self, tail: u32) -> Word {
        let heard = match self.state {
            State::Process => self.epoch.wrapping_sub(1),
            _ => self.epoch,
        };
        Word { tail, heard }
    }

    /// Takes the mark of an answer. `left` says whether the server has not taken all requests, by the head of that
    /// answer.
    ///
    /// An answer that is both the first and the last one of a lease is the end of a lease only.
    pub(crate) fn on_mark(&mut self, mark: Mark, left: bool) -> Result<MarkOutcome, Lie> {
        let mut outcome = MarkOutcome::default();
        match (mark.epoch & Mark::IS_SET, mark.ahead_of(self.epoch)) {
            (Mark::IS_SET, 0) => {}
            (Mark::IS_SET, 1) if self.state != State::Process => {
                self.epoch = self.epoch.wrapping_add(1);
                self.state = State::Process;
                outcome.granted = (!mark.ends).then_some(mark.zone);
            }
            _ => return Err(Lie::Mark),
        }
        if mark.ends {
            if self.state != State::Process {
                return Err(Lie::Mark);
            }
            self.state = if left { State::Warmup } else { State::Idle };
            outcome.ended = true;
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_goes_through_the_four_states() {
        let mut tenant = Tenant::new();
        assert_eq!(tenant.state(), State::Connect);
        assert_eq!(tenant.built(), Transmission::Announce);
        assert_eq!((tenant.state(), tenant.word(1)), (State::Warmup, Word { tail: 1, heard: 0 }));
        // The server answers without a lease first.
        assert_eq!(tenant.on_mark(Mark::new(0, 0, false), false), Ok(MarkOutcome::default()));
        assert_eq!(tenant.state(), State::Warmup);
        let granted = tenant.on_mark(Mark::new(1, 7, false), false);
        assert_eq!(granted, Ok(MarkOutcome { granted: Some(7), ended: false }));
        assert_eq!(
            (tenant.state(), tenant.built(), tenant.word(2).heard),
            (State::Process, Transmission::Write, 0)
        );
        assert_eq!(
            tenant.on_mark(Mark::new(1, 7, true), false),
            Ok(MarkOutcome { granted: None, ended: true })
        );
        assert_eq!((tenant.state(), tenant.word(2).heard), (State::Idle, 1));
        // A call that ended late.
        assert_eq!(tenant.on_mark(Mark::new(1, 0, false), false), Ok(MarkOutcome::default()));
        assert_eq!((tenant.built(), tenant.state()), (Transmission::Announce, State::Warmup));
    }

    #[test]
    fn requests_that_are_left_are_announced_again() {
        let mut tenant = Tenant::new();
        tenant.built();
        tenant.on_mark(Mark::new(1, 0, false), false).unwrap();
        tenant.on_mark(Mark::new(1, 0, true), true).unwrap();
        assert_eq!(tenant.state(), State::Warmup);
    }

    #[test]
    fn a_lease_of_one_answer_is_heard_of_and_not_used() {
        let mut tenant = Tenant::new();
        tenant.built();
        let both = tenant.on_mark(Mark::new(1, 5, true), false);
        assert_eq!(both, Ok(MarkOutcome { granted: None, ended: true }));
        assert_eq!((tenant.state(), tenant.word(1).heard), (State::Idle, 1));
    }

    #[test]
    fn leases_at_the_wrong_time_are_lies() {
        let mut tenant = Tenant::new();
        assert_eq!(tenant.on_mark(Mark::new(0, 0, true), false), Err(Lie::Mark), "no lease has begun");
        assert_eq!(tenant.on_mark(Mark::new(2, 0, false), false), Err(Lie::Mark), "an epoch was skipped");
        let unset = Mark { epoch: 1, ..Mark::default() };
        assert_eq!(tenant.on_mark(unset, false), Err(Lie::Mark), "the mark is not set");
        tenant.on_mark(Mark::new(1, 0, false), false).unwrap();
        assert_eq!(tenant.on_mark(Mark::new(2, 0, false), false), Err(Lie::Mark), "two leases at once");
        tenant.on_mark(Mark::new(1, 0, true), false).unwrap();
        assert_eq!(tenant.on_mark(Mark::new(1, 0, true), false), Err(Lie::Mark), "it ended already");
    }
}
