//! `bench latency`: the round trip of one call at a time, busy on both sides.

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

/// From this size on both sides rewrite every byte before sending and sum every byte received, as the floors do.
const REWRITTEN_FROM: usize = 4096;
/// The largest message, bytes.
const LARGEST: usize = 64 << 20;
/// Bytes of calls that fill caches, pools and page tables before anything is timed.
const WARM_UP_BYTES: usize = 256 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct LatencyOptions {
    /// Bytes of request and of answer.
    pub size: usize,
    /// Protocols by name; empty for all that are legal.
    pub protocols: Vec<String>,
    /// Alternations of floor and subject for each row; `None`: as many as the size leaves time for.
    pub rounds: Option<usize>,
}

/// How the payload travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// In the message, copied in and out of a mailbox or RECV.
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

/// The floor of a size: only those of `bench limit` have one.
fn floor_of(size: usize) -> Option<Floor> {
    match size {
        32 => Some(Floor::Inline32),
        4_096 | 65_536 | 1_048_576 => Some(Floor::Payload(size as u32)),
        _ => None,
    }
}

/// Length of a slice: about 2 ms, but several calls of the largest.
fn slice_length(size: usize) -> Duration {
    Duration::from_millis(if size >= 1 << 20 { 8 } else { 2 })
}

/// Measures the round trip for each protocol, in alternation with the floor of the size. Rows have `protocol`,
/// `transfer` (`message` or `rendezvous`), `size_bytes`, `completion`, the latency fields, and with a floor
/// `floor_p50_ns` and `ratio`. Blocks for about a second for each protocol.
///
/// # Errors
/// Anything that fails but connecting by a protocol that was not asked for by name: that is noted.
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
            // Without a floor of its own, something must still tell the placement.
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

/// A connected caller for each protocol and way of transfer.
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
                    findings.notes.push(format!("{} was not measured: {error}", protocol.name));
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

/// The ways in which a payload of `size` bytes can travel under a plan that are worth a row.
fn ways(plan: Plan, size: usize) -> Vec<(Transfer, Plan)> {
    let limit = plan.rendezvous_above as usize;
    let rendezvous =
        |plan: Plan| Plan { rendezvous_above: plan.rendezvous_above.min(size as u32 - 1), ..plan };
    match size {
        0 => vec![(Transfer::Message, plan)],
        _ if size > limit => vec![(Transfer::Rendezvous, rendezvous(plan))],
        // Near the limit it is not clear which is faster.
        _ if size * 2 > SMALL_LIMIT as usize => {
            vec![(Transfer::Message, plan), (Transfer::Rendezvous, rendezvous(plan))]
        }
        _ => vec![(Transfer::Message, plan)],
    }
}

/// A client that calls with one payload size, and checks what comes back.
struct Caller {
    client: Client<ShmFabric>,
    subject: u8,
    transfer: Transfer,
    request: PageBuffer,
    sequence: u64,
    /// Not 0 once an answer was wrong.
    difference: u64,
}

impl Caller {
    /// A server of its own, a connection to it, and some calls.
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
            // Chosen once for the slice, as the floors are.
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

    /// A small call: every whole word is written before and compared after.
    #[inline]
    fn call_stamped(&mut self) -> Result<(), CallError> {
        self.sequence += 1;
        stamp(self.request.as_mut_slice(), self.sequence);
        let answer = self.client.call_on(0, ECHO, self.request.as_slice())?;
        self.difference |= difference(&answer, self.request.as_slice().len(), self.sequence);
        Ok(())
    }

    /// A payload that is built in private memory and copied into the message.
    fn call_copied(&mut self) -> Result<(), CallError> {
        self.sequence += 1;
        fill_bytes(self.request.as_mut_slice(), self.sequence);
        let size = self.request.as_slice().len();
        let answer = self.client.call_on(0, REFILL, self.request.as_slice())?;
        self.difference |= sum_bytes(&answer) ^ expected_answer_sum(size, self.sequence);
        Ok(())
    }

    /// A payload that is built where the server READs it.
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
