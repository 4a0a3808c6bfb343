//! A thread of a node that makes, maps, reads, writes, moves and frees regions, takes rights away, and checks each
//! operation by the model.

use super::Stage;
use super::model::{End, Model, Who, bytes_of};
use crate::book::{CallLedger, End as CallEnd};
use crate::draw::tier::{DrawnTier, name};
use dunlin_fabric::{Fabric, Host, Nanos, WithSources};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{AccessError, Lmr, OperationError, RequestError, Rights, Spec, Tier};

/// The most handles of a thread.
const MAX_HANDLES: usize = 6;

/// Returns the name of a region.
pub(super) fn region_name(region: usize) -> String {
    format!("swarm/{region}")
}

/// A handle of a region.
struct Held {
    region: usize,
    view: Lmr<Sim>,
    rights: Rights,
    mapped_at: Nanos,
}

pub(super) struct Actor {
    pub(super) sim: Sim,
    pub(super) tier: Tier<Sim>,
    pub(super) who: Who,
    pub(super) drawn: DrawnTier,
    pub(super) model: Model,
    pub(super) book: CallLedger,
    pub(super) stage: Stage,
    pub(super) random: Random,
    /// The number of the next operation.
    pub(super) next: u64,
}

/// The outcome of an operation for the model.
fn end_of<T>(outcome: &Result<T, OperationError>) -> End {
    match outcome {
        Ok(_) => End::Done,
        Err(error) if error.may_have_executed() => End::Maybe,
        Err(_) => End::Not,
    }
}

fn end_of_request<T>(outcome: &Result<T, RequestError>) -> End {
    match outcome {
        Ok(_) => End::Done,
        Err(error) if error.may_have_executed() => End::Maybe,
        Err(_) => End::Not,
    }
}

/// Returns whether other threads alone can cause the failure of a request.
fn is_usual(error: &RequestError) -> bool {
    match error {
        RequestError::Access(error) => is_usual_access(*error),
        RequestError::Refused { source, .. } => matches!(
            source,
            Refusal::Record(RecordError::NoSuch | RecordError::Denied { .. } | RecordError::Moving)
                | Refusal::OutOfMemory { .. }
        ),
        _ => false,
    }
}

fn is_usual_access(error: AccessError) -> bool {
    matches!(
        error,
        AccessError::Gone | AccessError::Moved | AccessError::Revoked | AccessError::Denied { .. }
    )
}

fn is_usual_operation(error: &OperationError) -> bool {
    match error {
        OperationError::Access(error) => is_usual_access(*error),
        OperationError::Request(error) => {
            matches!(**error, RequestError::Refused { source: Refusal::NoPlace, .. }) || is_usual(error)
        }
        _ => false,
    }
}

impl Actor {
    fn now(&self) -> Nanos {
        self.sim.time()
    }

    fn violate(&self, what: String) {
        self.book.violate(format!("thread {} of node {}: {what}", self.who.slot, self.who.node));
    }

    fn check(&self, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.violate(what);
        }
    }

    /// Begins an operation; returns its number and the time.
    fn begin(&mut self, what: impl FnOnce() -> String) -> (u64, Nanos) {
        let number = self.next;
        self.next += 1;
        self.book.sent(number);
        self.sim.tell(|| format!("operation {number}: {}", what()));
        (number, self.now())
    }

    /// Ends an operation: it ends once, in time, and for a reason.
    fn end(&self, (number, begun): (u64, Nanos), end: End, error: Option<(String, bool)>) {
        let took = self.now() - begun;
        self.sim.tell(|| format!("operation {number} ends: {end:?} {error:?}"));
        let call_end = match end {
            End::Done => {
                self.book.executed(number, self.now());
                CallEnd::Answered
            }
            End::Maybe => CallEnd::Maybe,
            End::Not => CallEnd::Not,
        };
        self.book.ended(number, call_end);
        if took > self.drawn.patience() {
            self.violate(format!("operation {number} took {took} ns"));
        }
        if let Some((error, false)) = error
            && self.drawn.is_undisturbed()
        {
            self.violate(format!("operation {number} failed, and nothing disturbs it: {error}"));
        }
    }

    fn end_operation<T>(&self, begun: (u64, Nanos), outcome: &Result<T, OperationError>) {
        let error = outcome.as_ref().err();
        let error = error.map(|error| (WithSources(error).to_string(), is_usual_operation(error)));
        self.end(begun, end_of(outcome), error);
    }

    fn end_request<T>(&self, begun: (u64, Nanos), outcome: &Result<T, RequestError>) {
        let error = outcome.as_ref().err();
        let error = error.map(|error| (WithSources(error).to_string(), is_usual(error)));
        self.end(begun, end_of_request(outcome), error);
    }

    /// Acts until the stage changes.
    pub(super) fn play(mut self) {
        let mut held: Vec<Held> = Vec::new();
        while self.stage.is_storm() {
            self.act(&mut held);
            let host = self.sim.host();
            let think = if self.random.one_in(4) { 0 } else { self.random.below(self.drawn.think) };
            host.sleep(host.now() + think);
        }
    }

    fn act(&mut self, held: &mut Vec<Held>) {
        let which = self.random.below(32);
        let chosen = self.random.below(held.len().max(1) as u64) as usize;
        let Some(one) = held.get(chosen) else {
            return if which < 8 { self.make(held) } else { self.map(held) };
        };
        match which {
            0 => self.make(held),
            1..=4 => self.map(held),
            5 => drop(held.swap_remove(chosen)),
            6 | 7 => self.move_away(one),
            9 if self.drawn.revokes => self.revoke(one),
            8 if self.random.one_in(3) => {
                let one = held.swap_remove(chosen);
                self.free(one);
            }
            15 if self.next.is_multiple_of(4) => self.exceed(one),
            8..=15 => self.read(one),
            16..=19 => self.add(one),
            _ => self.write(one),
        }
    }

    /// Makes a region on one node, or spread over two, and reads it: it is zeroed.
    fn make(&mut self, held: &mut Vec<Held>) {
        if self.model.counts().1 >= self.drawn.regions {
            return;
        }
        let nodes = self.drawn.nodes;
        let mut stores = vec![self.random.below(nodes as u64) as usize];
        if self.random.one_in(4) {
            stores.push((stores[0] + 1) % nodes);
        }
        let draws = [Rights::NONE, Rights::READ, Rights::READ.with(Rights::WRITE), Rights::ALL, Rights::ALL];
        let mut rights: Vec<Rights> = (0..nodes).map(|_| draws[self.random.below(5) as usize]).collect();
        rights[self.who.node] = Rights::ALL;
        // The number decides the name, and the name the home.
        let region = self.model.counts().0;
        let home = self.tier.home(region_name(region)).ok();
        let home = (0..nodes).find(|node| home.as_deref() == Some(&name(*node)));
        let size = (nodes * self.drawn.actors, self.drawn.slot);
        let region = self.model.begin_making((self.who.node, home), &stores, rights.clone(), size);
        let length = self.model.length(region);
        let store_names: Vec<String> = stores.iter().map(|store| name(*store)).collect();
        let mut spec = Spec::spread(store_names.iter().map(String::as_str)).named(region_name(region));
        for (node, rights) in rights.iter().enumerate() {
            if node != self.who.node && *rights != Rights::NONE {
                spec = spec.grant(&name(node), *rights);
            }
        }
        let begun = self.begin(|| format!("malloc region {region} of {length} bytes on {stores:?}"));
        let made = self.tier.malloc(length, spec);
        self.model.made(region, made.is_ok());
        self.end_request(begun, &made);
        if let Ok(view) = made {
            let one = Held { region, view, rights: Rights::ALL, mapped_at: self.now() };
            self.read_range(&one, 0, length as usize);
            keep(held, one);
        }
    }

    fn map(&mut self, held: &mut Vec<Held>) {
        let (count, _) = self.model.counts();
        if count == 0 {
            return;
        }
        // One of the last few, which may be freed.
        let region = count - 1 - self.random.below(count.min(2 * self.drawn.regions) as u64) as usize;
        let wanted = [Rights::READ, Rights::READ.with(Rights::WRITE), Rights::WRITE, Rights::ALL];
        let wanted = wanted[self.random.below(4) as usize];
        let (was_freed, has) = (self.model.is_freed(region), self.model.rights(region, self.who.node));
        let was_there = self.model.must_be_there(region);
        let (_, was_revoked) = self.model.writes(region, self.who.node);
        let begun = self.begin(|| format!("map region {region} with {wanted}"));
        let mapped = self.tier.map(region_name(region), wanted);
        self.end_request(begun, &mapped);
        let (is_granted, _) = self.model.writes(region, self.who.node);
        match mapped {
            Ok(view) => {
                if was_freed {
                    self.violate(format!("region {region} was mapped after it was freed"));
                }
                if !has.contains(wanted) {
                    self.violate(format!("region {region} was mapped with {wanted}, and {has} was granted"));
                }
                if was_revoked && wanted.contains(Rights::WRITE) {
                    self.violate(format!("region {region} was mapped with {wanted} after WRITE was revoked"));
                }
                if view.len() != self.model.length(region) {
                    self.violate(format!("region {region} has {} bytes", view.len()));
                }
                keep(held, Held { region, view, rights: wanted, mapped_at: self.now() });
            }
            Err(RequestError::Refused { source: Refusal::Record(RecordError::Denied { .. }), .. })
                if has.contains(wanted) && is_granted =>
            {
                self.violate(format!("region {region} with {wanted} was denied, and {has} was granted"));
            }
            Err(RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. })
                if has.contains(wanted) && was_there && self.model.must_be_there(region) =>
            {
                self.violate(format!("region {region} is there, and has no name"));
            }
            Err(_) => {}
        }
    }

    fn must_fail(&self, one: &Held) -> Option<&'static str> {
        self.model.must_fail(one.region, (self.who.node, one.rights), one.mapped_at)
    }

    /// Checks that an operation which had to fail has failed, and that one without the right was refused.
    fn check_outcome<T>(
        &self,
        one: &Held,
        must_fail: Option<&'static str>,
        needs: Rights,
        outcome: &Result<T, OperationError>,
    ) {
        let region = one.region;
        if let (Some(why), Ok(_)) = (must_fail, outcome) {
            self.violate(format!("an operation on region {region} succeeded, and {why}"));
        }
        if !one.rights.contains(needs) && outcome.is_ok() {
            self.violate(format!(
                "an operation on region {region} needs {needs}, and succeeded with {}",
                one.rights
            ));
        }
    }

    /// Reads or writes a word behind the end of a region.
    fn exceed(&mut self, one: &Held) {
        let length = self.model.length(one.region);
        let begun = self.begin(|| format!("use a word behind the end of region {}", one.region));
        let outcome = match one.rights.contains(Rights::WRITE) {
            true => one.view.write(length, &[0xee; 8]),
            false => one.view.read(length, &mut [0; 8]),
        };
        if outcome.is_ok() {
            self.violate(format!("the word at {length} of region {} was used", one.region));
        }
        // It is refused before anything is done, with the length or for another reason.
        if !matches!(outcome, Err(OperationError::Access(_))) {
            self.end_operation(begun, &outcome);
        } else {
            self.end(begun, End::Not, None);
        }
    }

    fn read(&mut self, one: &Held) {
        let words = self.model.length(one.region) / 8;
        let from = self.random.below(words);
        let count = if self.random.one_in(2) { words } else { 1 + self.random.below(words) };
        let from = if count == words { 0 } else { from };
        self.read_range(one, 8 * from, 8 * count.min(words - from) as usize);
    }

    fn read_range(&mut self, one: &Held, offset: u64, length: usize) {
        let must_fail = self.must_fail(one);
        let begun = self.begin(|| format!("read {length} bytes at {offset} of region {}", one.region));
        let floors = self.model.begin_read(one.region, self.who.node, begun.1);
        let mut bytes = vec![0xee; length];
        let outcome = one.view.read(offset, &mut bytes);
        if outcome.is_ok() {
            self.check(self.model.check_read(one.region, &floors, offset, &bytes));
        }
        self.check_outcome(one, must_fail, Rights::READ, &outcome);
        self.end_operation(begun, &outcome);
    }

    fn write(&mut self, one: &Held) {
        let (region, slot) = (one.region, self.who.slot);
        let must_fail = self.must_fail(one);
        let begun = self.begin(|| format!("write slot {slot} of region {region}"));
        let (number, length) = self.model.begin_write(region, slot);
        let offset = super::model::SLOTS_AT + (slot * length) as u64;
        let outcome = one.view.write(offset, &bytes_of(region, slot, number, length));
        self.check(self.model.end_write(region, slot, end_of(&outcome), self.now()));
        self.check_outcome(one, must_fail, Rights::WRITE, &outcome);
        self.end_operation(begun, &outcome);
    }

    fn add(&mut self, one: &Held) {
        let must_fail = self.must_fail(one);
        let begun = self.begin(|| format!("add to region {}", one.region));
        self.model.begin_add(one.region);
        let outcome = one.view.fetch_add(0, 1);
        let old = outcome.as_ref().copied().unwrap_or_default();
        self.check(self.model.end_add(one.region, end_of(&outcome), old));
        self.check_outcome(one, must_fail, Rights::WRITE, &outcome);
        self.end_operation(begun, &outcome);
    }

    fn move_away(&mut self, one: &Held) {
        let to = self.random.below(self.drawn.nodes as u64) as usize;
        let begun = self.begin(|| format!("move region {} to node {to}", one.region));
        let moving = self.model.begin_move(one.region, self.who.node, to, begun.1);
        let outcome = one.view.move_to(&name(to));
        self.model.end_move(&moving, end_of_request(&outcome));
        if outcome.is_ok() && !one.rights.contains(Rights::MASTER) {
            self.violate(format!("region {} was moved with {}", one.region, one.rights));
        }
        self.end_request(begun, &outcome);
    }

    /// Takes the right to write away from another node than the one that made the region.
    fn revoke(&mut self, one: &Held) {
        let (region, node) = (one.region, self.random.below(self.drawn.nodes as u64) as usize);
        if self.model.is_maker(region, node) {
            return;
        }
        let begun = self.begin(|| format!("revoke WRITE of region {region} from node {node}"));
        self.model.begin_revoke(region, node);
        let outcome = one.view.revoke(&name(node), Rights::WRITE);
        if outcome.is_ok() {
            self.model.end_revoke(region, node, self.now());
            if !one.rights.contains(Rights::MASTER) {
                self.violate(format!("a right to region {region} was revoked with {}", one.rights));
            }
        }
        self.end_request(begun, &outcome);
    }

    fn free(&mut self, one: Held) {
        let (region, rights, node) = (one.region, one.rights, self.who.node);
        let begun = self.begin(|| format!("free region {region}"));
        self.model.begin_free(region, node);
        let outcome = one.view.free();
        self.model.end_free(region, node, end_of_request(&outcome));
        if outcome.is_ok() && !rights.contains(Rights::MASTER) {
            self.violate(format!("region {region} was freed with {rights}"));
        }
        self.end_request(begun, &outcome);
    }
}

/// Keeps a handle; the oldest one goes if there are too many.
fn keep(held: &mut Vec<Held>, one: Held) {
    if held.len() == MAX_HANDLES {
        held.remove(0);
    }
    held.push(one);
}
