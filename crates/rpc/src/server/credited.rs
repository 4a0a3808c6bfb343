//! The server's end of a lane with credits: counts the calls, and tells the client of grants and refusals
//! (FLOCK section 5.1).

use super::activity::QueuePair;
use crate::path::Violation;
use crate::path::credits::{Allowance, GRANTED, WrongAsk};
use dunlin_wire::{Flags, Header, Kind};
use std::sync::Arc;

/// Word that the client has to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Grant,
    Decline,
}

/// The account of a lane.
#[derive(Debug)]
pub(crate) struct LaneCredits {
    allowance: Allowance,
    /// The activity of the client's connection.
    queue_pair: Arc<QueuePair>,
    due: Due,
    /// The client asks by immediate data, and not in the headers of requests.
    is_apart: bool,
}

impl LaneCredits {
    /// Creates the account of a new lane with C of 1 to 63.
    pub(crate) fn new(renewal: u16, is_apart: bool, queue_pair: Arc<QueuePair>) -> Self {
        LaneCredits { allowance: Allowance::new(renewal), queue_pair, due: Due::Nothing, is_apart }
    }

    /// Returns whether the client asks for credits by immediate data, for which the lane has RECVs.
    pub(crate) fn is_renewed_apart(&self) -> bool {
        self.is_apart
    }

    /// Counts the calls of a message, and answers the request for credits that it may carry.
    pub(crate) fn on_header(&mut self, header: &Header) -> Result<(), Violation> {
        let calls = match header.kind {
            Kind::Request => 1,
            Kind::RequestBatch => header.code,
            Kind::Credit => return self.on_operations(header),
            _ => return Ok(()),
        };
        self.allowance.take(calls)?;
        if header.credits != 0 {
            self.ask_in_message(header.credits)?;
        } else if self.is_apart {
            self.renew();
        }
        Ok(())
    }

    /// Takes a request for credits that tells of operations on memory.
    #[cold]
    fn on_operations(&mut self, header: &Header) -> Result<(), Violation> {
        self.allowance.take_operations(header.code)?;
        if header.credits == 0 {
            self.renew();
            return Ok(());
        }
        self.allowance.ask(header.credits)?;
        if self.renew() { Ok(()) } else { Err(WrongAsk::TooOften.into()) }
    }

    #[cold]
    fn ask_in_message(&mut self, degree: u8) -> Result<(), WrongAsk> {
        if self.is_apart {
            return Err(WrongAsk::OtherWay);
        }
        self.allowance.ask(degree)?;
        // The message itself has to leave half of C or less.
        if self.renew() { Ok(()) } else { Err(WrongAsk::TooOften) }
    }

    /// Takes a request for credits that came by immediate data.
    #[cold]
    pub(crate) fn on_immediate(&mut self, degree: u8) -> Result<(), Violation> {
        if !self.is_apart {
            return Err(WrongAsk::OtherWay.into());
        }
        self.allowance.ask(degree)?;
        self.renew();
        Ok(())
    }

    /// Answers a request for credits if its message was taken; returns whether it did.
    fn renew(&mut self) -> bool {
        let Some(degree) = self.allowance.renewal_due() else { return false };
        self.queue_pair.renewed(degree);
        if !self.queue_pair.is_active() {
            self.allowance.decline();
            self.due = Due::Decline;
        } else if self.allowance.grant() > 0 {
            self.due = Due::Grant;
        }
        true
    }

    /// Grants credits on a lane that was declined, if its queue pair has become active again. Returns whether word
    /// is due.
    pub(crate) fn look_again(&mut self) -> bool {
        if !self.allowance.is_active() && self.queue_pair.is_active() && self.allowance.grant() > 0 {
            self.due = Due::Grant;
        }
        self.is_due()
    }

    /// Returns whether the client has to get word.
    pub(crate) fn is_due(&self) -> bool {
        self.due != Due::Nothing
    }

    /// Puts the word that is due into the header of a message to the client.
    #[inline]
    pub(crate) fn tell(&self, header: &mut Header) {
        match self.due {
            Due::Nothing => {}
            Due::Grant => header.credits |= GRANTED,
            Due::Decline => header.flags = header.flags | Flags::CONTEXT_SWITCH,
        }
    }

    /// Records that a message with the word was sent.
    #[inline]
    pub(crate) fn told(&mut self) {
        self.due = Due::Nothing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::credits;
    use crate::server::activity::{Activity, ActivityConfig};
    use crate::server::config::ServerConfig;

    fn request(calls: u16, degree: u8) -> Header {
        Header { code: calls, credits: degree, ..Header::new(Kind::RequestBatch) }
    }

    fn told(credits: &mut LaneCredits) -> (bool, bool) {
        let mut header = Header::new(Kind::Response);
        credits.tell(&mut header);
        credits.told();
        (header.credits & GRANTED != 0, header.flags.contains(Flags::CONTEXT_SWITCH))
    }

    #[test]
    fn an_active_queue_pair_is_granted_what_it_asks_for() {
        let activity = Activity::of(&ServerConfig::default());
        let mut credits = LaneCredits::new(8, false, activity.open(1));
        credits.on_header(&request(3, 0)).unwrap();
        assert_eq!((credits.is_due(), told(&mut credits)), (false, (false, false)));
        credits.on_header(&request(1, 2)).unwrap();
        assert_eq!((credits.is_due(), told(&mut credits)), (true, (true, false)));
        assert!(!credits.is_due());
        // 8 - 4 + 8
        credits.on_header(&request(12, 0)).unwrap();
        assert_eq!(
            credits.on_header(&request(1, 0)),
            Err(Violation::Overdrawn(credits::Overdrawn { entries: 1, left: 0 }))
        );
    }

    #[test]
    fn a_client_that_asks_for_more_than_it_may_gets_nothing() {
        let activity = Activity::of(&ServerConfig::default());
        let mut credits = LaneCredits::new(8, false, activity.open(1));
        assert_eq!(credits.on_header(&request(1, 8)), Err(WrongAsk::TooOften.into()));
        let mut credits = LaneCredits::new(8, false, activity.open(1));
        assert_eq!(credits.on_header(&request(4, 255)), Err(WrongAsk::Degree(255).into()));
        let mut credits = LaneCredits::new(8, false, activity.open(1));
        assert_eq!(credits.on_immediate(1), Err(WrongAsk::OtherWay.into()));
        assert!(!credits.is_due());
        assert_eq!(credits.on_header(&request(9, 0)).map_err(|_| ()), Err(()));
    }

    /// Operations are told in a message, whatever the way of other requests.
    #[test]
    fn operations_count_as_messages_of_one_call() {
        let activity = Activity::of(&ServerConfig::default());
        let told_of =
            |operations, degree| Header { code: operations, credits: degree, ..Header::new(Kind::Credit) };
        for is_apart in [false, true] {
            let queue_pair = activity.open(1);
            let mut credits = LaneCredits::new(8, is_apart, Arc::clone(&queue_pair));
            credits.on_header(&told_of(0, 0)).unwrap();
            credits.on_header(&told_of(4, 7)).unwrap();
            assert_eq!(queue_pair.used(), 1, "the degree is clipped");
            assert_eq!(told(&mut credits), (true, false));
            assert_eq!(credits.on_header(&told_of(0, 1)), Err(WrongAsk::TooOften.into()));
            let mut credits = LaneCredits::new(8, is_apart, activity.open(1));
            let overdrawn = credits::Overdrawn { entries: 9, left: 8 };
            assert_eq!(credits.on_header(&told_of(9, 1)), Err(overdrawn.into()));
            assert!(!credits.is_due());
        }
    }

    #[test]
    fn a_request_apart_is_answered_once_its_message_is_taken() {
        let activity = Activity::of(&ServerConfig::default());
        let mut credits = LaneCredits::new(8, true, activity.open(1));
        credits.on_immediate(4).unwrap();
        assert!(!credits.is_due(), "before its message");
        assert_eq!(credits.on_immediate(4), Err(WrongAsk::TooOften.into()));
        credits.on_header(&request(4, 0)).unwrap();
        assert_eq!(told(&mut credits), (true, false));
        // 8 - 4 + 8
        credits.on_header(&request(8, 0)).unwrap();
        credits.on_header(&request(1, 0)).unwrap();
        assert!(!credits.is_due());
        credits.on_immediate(8).unwrap();
        assert_eq!(told(&mut credits), (true, false), "long after its message");
        assert_eq!(credits.on_header(&request(8, 8)), Err(WrongAsk::OtherWay.into()));
        assert_eq!(credits.on_immediate(0), Err(WrongAsk::Degree(0).into()));
    }

    #[test]
    fn a_declined_lane_is_granted_credits_when_its_queue_pair_is_active_again() {
        let config = ActivityConfig { max_active: 1, interval: 10, rest: 0 };
        let activity = Activity::new(config);
        let mut first = LaneCredits::new(4, false, activity.open(1));
        let second = activity.open(1);
        assert!(!second.is_active(), "the client's share is one");
        let mut second = LaneCredits::new(4, false, second);
        second.on_header(&request(2, 1)).unwrap();
        assert_eq!((second.is_due(), told(&mut second)), (true, (false, true)));
        assert!(!second.look_again());
        first.on_header(&request(1, 0)).unwrap();
        drop(first);
        let before = activity.activations();
        activity.look(10);
        assert_ne!(activity.activations(), before);
        assert_eq!((second.look_again(), told(&mut second)), (true, (true, false)));
        second.on_header(&request(6, 0)).unwrap();
    }
}
