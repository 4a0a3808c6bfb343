//! The benchmarks' service: its handler, and the client's side of one call, which checks the response.

use dunlin::thrift::{Bytes, Context, Failure, Never, Pending};
use dunlin_fabric::WithSources;
use dunlin_fabric_shm::ShmFabric;

use crate::atb::{
    Answer, Atb, AtbBulkArguments, AtbBulkOutcome, AtbClient, AtbEchoArguments, AtbEchoOutcome, AtbError,
    AtbQuickArguments, AtbQuickOutcome,
};
use dunlin_floor::{fill_bytes, sum_bytes};

/// The IDL; each run replaces its hints.
pub(super) const IDL: &str = include_str!("../../../idl/atb.thrift");
/// Largest request or response, bytes.
pub const LARGEST: usize = 1 << 20;
/// Seed of the byte pattern; every response is a prefix of it.
const PATTERN: u64 = 0xa7b;
const WORD: usize = 8;

/// A handler that answers from existing memory, so that the measurement shows the transfer.
pub(in crate::measure) struct Handler {
    pattern: Bytes,
}

impl Handler {
    pub(in crate::measure) fn new() -> Self {
        let mut pattern = vec![0; LARGEST];
        fill_bytes(&mut pattern, PATTERN);
        Self { pattern: pattern.into() }
    }

    fn answer(&self, checksum: u64, answer_bytes: i32) -> Result<Answer, Failure<Never>> {
        match usize::try_from(answer_bytes) {
            Ok(bytes) if bytes <= LARGEST => {
                Ok(Answer { checksum: checksum as i64, payload: self.pattern.slice(..bytes) })
            }
            _ => Err(Failure::internal(format!("{answer_bytes} bytes are not 0 to {LARGEST}"))),
        }
    }
}

impl Atb for Handler {
    fn echo(&self, _: &Context, payload: &[u8], answer_bytes: i32) -> Result<Answer, Failure<Never>> {
        self.answer(ends(payload), answer_bytes)
    }

    fn quick(&self, _: &Context, payload: &[u8], answer_bytes: i32) -> Result<Answer, Failure<Never>> {
        self.answer(sum_bytes(payload), answer_bytes)
    }

    fn bulk(&self, _: &Context, payload: &[u8], answer_bytes: i32) -> Result<Answer, Failure<Never>> {
        self.answer(sum_bytes(payload), answer_bytes)
    }
}

/// Hashes the first and last eight bytes and the length, in constant time.
fn ends(payload: &[u8]) -> u64 {
    let head = word(&payload[..payload.len().min(WORD)]);
    let tail = word(&payload[payload.len() - payload.len().min(WORD)..]);
    head ^ tail.rotate_left(23) ^ payload.len() as u64
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The called function; the value is its number in the IDL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Echo = 0,
    Quick = 1,
    Bulk = 2,
}

/// A connected client with its request. Each call has a different first word, and its response is checked.
pub(super) struct Call {
    client: AtbClient<ShmFabric>,
    request: Vec<u8>,
    answer_bytes: usize,
    /// The expected [`ends`] of responses.
    answer_ends: u64,
    /// The sum of the request without its first word.
    rest: u64,
    sequence: u64,
    under_way: Option<UnderWay>,
}

impl Call {
    pub(super) fn new(client: AtbClient<ShmFabric>, request_bytes: usize, answer_bytes: usize) -> Self {
        let mut request = vec![0; request_bytes];
        fill_bytes(&mut request, 1);
        let mut answer = vec![0; LARGEST];
        fill_bytes(&mut answer, PATTERN);
        Self {
            client,
            rest: sum_bytes(&request[request_bytes.min(WORD)..]),
            request,
            answer_bytes,
            answer_ends: ends(&answer[..answer_bytes]),
            sequence: 0,
            under_way: None,
        }
    }

    /// Makes one call. The error describes the failure or the wrong bytes.
    #[inline]
    pub(super) fn call(&mut self, function: Function) -> Result<(), String> {
        self.stamp();
        let (client, request, wanted) = (&mut self.client, &self.request[..], self.answer_bytes as i32);
        let answered = match function {
            Function::Echo => client.echo(request, wanted),
            Function::Quick => client.quick(request, wanted),
            Function::Bulk => client.bulk(request, wanted),
        };
        self.check(function, answered)
    }

    /// Sends a call. There must be no call in flight.
    pub(super) fn start(&mut self, function: Function) -> Result<(), String> {
        self.stamp();
        let (client, payload, answer_bytes) =
            (self.client.inner(), &self.request[..], self.answer_bytes as i32);
        let number = function as usize;
        let started = match function {
            Function::Echo => {
                let arguments = AtbEchoArguments { payload, answer_bytes };
                client.start::<_, AtbEchoOutcome, AtbError>(number, &arguments).map(UnderWay::Echo)
            }
            Function::Quick => {
                let arguments = AtbQuickArguments { payload, answer_bytes };
                client.start::<_, AtbQuickOutcome, AtbError>(number, &arguments).map(UnderWay::Quick)
            }
            Function::Bulk => {
                let arguments = AtbBulkArguments { payload, answer_bytes };
                client.start::<_, AtbBulkOutcome, AtbError>(number, &arguments).map(UnderWay::Bulk)
            }
        };
        self.under_way = Some(started.map_err(|error| WithSources(&error).to_string())?);
        Ok(())
    }

    /// Waits for the call in flight and returns its function.
    pub(super) fn finish(&mut self) -> Result<Function, String> {
        let under_way = self.under_way.take().ok_or("no call is under way")?;
        let (function, answered) = match under_way {
            UnderWay::Echo(call) => (Function::Echo, self.client.wait(call)),
            UnderWay::Quick(call) => (Function::Quick, self.client.wait(call)),
            UnderWay::Bulk(call) => (Function::Bulk, self.client.wait(call)),
        };
        self.check(function, answered).map(|()| function)
    }

    /// Changes the first word of the request.
    #[inline]
    fn stamp(&mut self) {
        self.sequence += 1;
        let first = self.request.len().min(WORD);
        self.request[..first].copy_from_slice(&self.sequence.to_le_bytes()[..first]);
    }

    #[inline]
    fn check(&self, function: Function, answered: Result<Answer, AtbError>) -> Result<(), String> {
        let answer = answered.map_err(|error| WithSources(&error).to_string())?;
        let checksum = match function {
            Function::Echo => ends(&self.request),
            Function::Quick | Function::Bulk => {
                self.rest.wrapping_add(word(&self.request[..self.request.len().min(WORD)]))
            }
        };
        let right = answer.checksum == checksum as i64
            && answer.payload.len() == self.answer_bytes
            && ends(&answer.payload) == self.answer_ends;
        if right { Ok(()) } else { Err("an answer had other bytes than it should: this is a bug".to_owned()) }
    }
}

/// The call in flight.
enum UnderWay {
    Echo(Pending<AtbEchoOutcome, AtbError>),
    Quick(Pending<AtbQuickOutcome, AtbError>),
    Bulk(Pending<AtbBulkOutcome, AtbError>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_at_either_end_or_of_the_length_shows() {
        let mut payload: Vec<u8> = (0..100).collect();
        let before = ends(&payload);
        payload[99] ^= 1;
        assert_ne!(ends(&payload), before);
        payload[99] ^= 1;
        payload[0] ^= 1;
        assert_ne!(ends(&payload), before);
        payload[0] ^= 1;
        assert_eq!(ends(&payload), before);
        assert_ne!(ends(&payload[..99]), before);
        assert_ne!(ends(&[0]), ends(&[]));
    }

    #[test]
    fn functions_have_the_numbers_of_the_idl() {
        for (function, name) in
            [(Function::Echo, "echo"), (Function::Quick, "quick"), (Function::Bulk, "bulk")]
        {
            assert_eq!(crate::atb::ATB_SERVICE.function(name), Some(function as usize));
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        let handler = Handler::new();
        assert!(handler.answer(0, -1).is_err());
        assert!(handler.answer(0, LARGEST as i32 + 1).is_err());
        assert_eq!(handler.answer(0, 7).expect("in range").payload.len(), 7);
    }
}
