//! `bench latency`: the round trip of one call at a time, with both sides busy-waiting.

use dunlin_fabric::WithSources;
use std::time::Duration;

use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, Client, ClientConfig, CompletionMode, Plan, SMALL_LIMIT};

use super::contest::{Contestant, contest};
use super::flow::{difference, stamp};
use super::peer::{Drive, ECHO, REFILL, ServiceKind};
use super::session::Session;
use super::{Findings, MeasureError, progress_bar, protocols};
use dunlin_floor::{
    Floor, FloorError, FloorPair, PageBuffer, Slice, compare, expected_answer_sum, fill_bytes, sum_bytes,
};
use dunlin_report::Row;

/// From this size on, both sides rewrite every byte before sending and sum every received byte, as the
/// floors do.
const REWRITTEN_FROM: usize = 4096;
/// The largest message, bytes.
const LARGEST: usize = 64 << 20;
/// Bytes of warm-up calls, which fill caches, pools and page tables before timing starts.
const WARM_UP_BYTES: usize = 256 << 20;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct LatencyOptions {
    /// Size of request and response, bytes.
    pub size: usize,
    /// Protocols by name. Empty selects all legal ones.
    pub protocols: Vec<String>,
    /// Alternations of floor and subject per row; `None` chooses by size.
    pub rounds: Option<usize>,
}

/// The transfer method of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// In the message, copied into and out of a mailbox or receive buffer.
    Message,
    /// By read rendezvous, built in place in registered memory.
    Rendezvous,
}

impl Transfer {
    fn name(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Rendezvous => "rendezvous",
        }
    }
}

/// Returns the floor of a size. Only the sizes of `bench limit` have one.
fn floor_of(size: usize) -> Option<Floor> {
    match size {
        32 => Some(Floor::Inline32),
        4_096 | 65_536 | 1_048_576 => Some(Floor::Payload(size as u32)),
        _ => None,
    }
}

/// Returns the length of a slice: about 2 ms, but at least several of the largest calls.
fn slice_length(size: usize) -> Duration {
    Duration::from_millis(if size >= 1 << 20 { 8 } else { 2 })
}

/// Measures the round trip for each protocol, alternating with the floor of the size. Rows have `protocol`,
/// `transfer` (`message` or `rendezvous`), `size_bytes`, `completion` and the latency fields; if there is a
/// floor, also `floor_p50_ns` and `ratio`. Blocks for about a second per protocol.
///
/// # Errors
/// Any failure, except that a protocol not named in `options` cannot connect: a note reports that.
pub fn latency(session: &mut Session, options: &LatencyOptions) -> Result<Findings, MeasureError> {
    let size = options.size;
    if size > LARGEST {
        return Err(MeasureError::BadArgument(format!(
            "{size} bytes are more than the {LARGEST} of the largest message"
        )));
    }
    let mut findings = Findings::default();
    let floor = floor_of(size);
    if floor.is_none() {
        findings.notes.push(format!(
            "there is no floor for {size} bytes, so rows have no ratio: floors are measured for 32, 4096, 65536 and 1048576"
        ));
    }
    let slice = slice_length(size);
    let rounds = options.rounds.unwrap_or(match size {
        0..65_536 => 150,
        65_536..1_048_576 => 100,
        1_048_576..8_388_608 => 40,
        _ => 4,
    });
    let mut callers = callers(session, options, &mut findings)?;
    let progress = progress_bar(rounds * callers.len());
    let mut contestants: Vec<Contestant<'_>> = callers
        .iter_mut()
        .map(|(name, caller)| Contestant {
            name: name.clone(),
            // Without a floor for this size, the cache-line floor still determines the placement.
            floor: floor.unwrap_or(Floor::CacheLine),
            floor_duration: slice,
            slice: Box::new(move |pair| caller.slice(pair, slice)),
            found: Vec::new(),
        })
        .collect();
    contest(&mut session.pair, &mut contestants, rounds, &progress)?;
    progress.finish_and_clear();
    let found: Vec<_> = contestants.into_iter().map(|one| one.found).collect();
    for ((name, caller), found) in callers.iter().zip(&found) {
        if caller.difference != 0 {
            return Err(MeasureError::WrongData(name.clone()));
        }
        for comparison in compare(found) {
            let mut row = Row::new()
                .with("protocol", name.as_str())
                .with("transfer", caller.transfer.name())
                .with("size_bytes", size)
                .with("completion", CompletionMode::Busy.to_string());
            if floor.is_some() {
                comparison.set_latency(&mut row);
            } else {
                row.set_latency(&comparison.subject_latency).set("p50_ns", comparison.subject_p50_ns);
                comparison.set_common(&mut row);
            }
            findings.rows.push(row);
        }
    }
    Ok(findings)
}

/// Connects a caller for each protocol and transfer method.
fn callers(
    session: &mut Session,
    options: &LatencyOptions,
    findings: &mut Findings,
) -> Result<Vec<(String, Caller)>, MeasureError> {
    let mut callers = Vec::new();
    for protocol in protocols(&session.fabric, &options.protocols, CompletionMode::Busy)? {
        let plan = protocol.plan(CompletionMode::Busy);
        for (transfer, plan) in ways(plan, options.size) {
            match Caller::connect(session, plan, transfer, options.size) {
                Ok(caller) => callers.push((protocol.name.to_owned(), caller)),
                Err(error @ (MeasureError::Connect { .. } | MeasureError::Call(_)))
                    if options.protocols.is_empty() =>
                {
                    findings.notes.push(format!(
                        "{} was not measured: {}",
                        protocol.name,
                        WithSources(&error)
                    ));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    if callers.is_empty() {
        return Err(MeasureError::BadArgument(format!(
            "no protocol could be measured: {}",
            findings.notes.join("; ")
        )));
    }
    Ok(callers)
}

/// Returns the transfer methods of a payload of `size` bytes that are worth measuring under a plan.
fn ways(plan: Plan, size: usize) -> Vec<(Transfer, Plan)> {
    let limit = plan.rendezvous_above as usize;
    let rendezvous =
        |plan: Plan| Plan { rendezvous_above: plan.rendezvous_above.min(size as u32 - 1), ..plan };
    match size {
        0 => vec![(Transfer::Message, plan)],
        _ if size > limit => vec![(Transfer::Rendezvous, rendezvous(plan))],
        // Near the limit, either method may be faster.
        _ if size * 2 > SMALL_LIMIT as usize => {
            vec![(Transfer::Message, plan), (Transfer::Rendezvous, rendezvous(plan))]
        }
        _ => vec![(Transfer::Message, plan)],
    }
}

/// A client that makes calls of one payload size and checks the responses.
struct Caller {
    client: Client<ShmFabric>,
    subject: u8,
    transfer: Transfer,
    request: PageBuffer,
    sequence: u64,
    /// Nonzero once a response was wrong.
    difference: u64,
}

impl Caller {
    /// Starts a separate server, connects to it, and makes some calls.
    fn connect(
        session: &mut Session,
        plan: Plan,
        transfer: Transfer,
        size: usize,
    ) -> Result<Self, MeasureError> {
        let served = session.serve(ServiceKind::Bytes, Drive::Busy)?;
        let client = session.connect(&served, &ClientConfig::with_plan(plan))?;
        let mut caller = Caller {
            client,
            subject: served.index,
            transfer,
            request: PageBuffer::new(size),
            sequence: 0,
            difference: 0,
        };
        let calls = (WARM_UP_BYTES / size.max(1)).clamp(4, 64);
        session.while_serving(&served, |_, _| {
            (0..calls).try_for_each(|_| caller.call().map_err(MeasureError::from))
        })?;
        Ok(caller)
    }

    fn slice(&mut self, pair: &mut FloorPair, duration: Duration) -> Result<Slice, FloorError> {
        let subject = self.subject;
        let size = self.request.as_slice().len();
        let (slice, _) = pair.subject_slice(subject, &[], |pair| {
            // Selected once per slice, as in the floors.
            match (size < REWRITTEN_FROM, self.transfer) {
                (true, _) => pair.time_subject(duration, |_| self.call_stamped().map_err(|e| e.to_string())),
                (false, Transfer::Message) => {
                    pair.time_subject(duration, |_| self.call_copied().map_err(|e| e.to_string()))
                }
                (false, Transfer::Rendezvous) => {
                    pair.time_subject(duration, |_| self.call_in_place().map_err(|e| e.to_string()))
                }
            }
        })?;
        Ok(slice)
    }

    fn call(&mut self) -> Result<(), CallError> {
        match (self.request.as_slice().len() < REWRITTEN_FROM, self.transfer) {
            (true, _) => self.call_stamped(),
            (false, Transfer::Message) => self.call_copied(),
            (false, Transfer::Rendezvous) => self.call_in_place(),
        }
    }

    /// Makes a small call: writes every word before, and compares every word after it.
    #[inline]
    fn call_stamped(&mut self) -> Result<(), CallError> {
        self.sequence += 1;
        stamp(self.request.as_mut_slice(), self.sequence);
        let answer = self.client.call_on(0, ECHO, self.request.as_slice())?;
        self.difference |= difference(&answer, self.request.as_slice().len(), self.sequence);
        Ok(())
    }

    /// Makes a call whose payload is built in private memory and copied into the message.
    fn call_copied(&mut self) -> Result<(), CallError> {
        self.sequence += 1;
        fill_bytes(self.request.as_mut_slice(), self.sequence);
        let size = self.request.as_slice().len();
        let answer = self.client.call_on(0, REFILL, self.request.as_slice())?;
        self.difference |= sum_bytes(&answer) ^ expected_answer_sum(size, self.sequence);
        Ok(())
    }

    /// Makes a call whose payload is built in the memory that the server READs.
    fn call_in_place(&mut self) -> Result<(), CallError> {
        self.sequence += 1;
        let size = self.request.as_slice().len();
        let mut request = self.client.large_request(0, size)?;
        fill_bytes(&mut request, self.sequence);
        let id = self.client.submit_large(REFILL, request)?;
        let answer = self.client.wait(id)?;
        self.difference |= sum_bytes(&answer) ^ expected_answer_sum(size, self.sequence);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_rpc::Protocol;

    #[test]
    fn every_way_is_legal_and_does_what_it_says() {
        let plan = Protocol::by_name("Server-reply").expect("there").plan(CompletionMode::Busy);
        for size in [0, 1, 32, 2048, 2049, 4096, 4097, 1 << 20] {
            for (transfer, plan) in ways(plan, size) {
                assert!(plan.rendezvous_above <= SMALL_LIMIT);
                let travels = size > plan.rendezvous_above as usize;
                assert_eq!(travels, transfer == Transfer::Rendezvous, "size {size}");
            }
        }
        assert_eq!(ways(plan, 4096).len(), 2);
        assert_eq!(ways(plan, 32).len(), 1);
    }
}
