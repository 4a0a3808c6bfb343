//! Processes of an earlier life of the node: they keep their handles until they attach again, or end.

use super::direct::lock;
use super::registry::{Process, Registry};
use crate::kept::{
    Decode, GIVEN, KeptGiven, KeptNumber, KeptProcess, PROCESS, PROCESS_DIRECT, PROCESS_HANDLE,
};
use crate::lives;
use crate::lmr::Lmr;
use dunlin_fabric::{Fabric, PeerIdentity};
use dunlin_tier::process::Secret;
use dunlin_tier::{Handle, Slots};
use std::collections::BTreeMap;
use std::sync::Arc;

impl<F: Fabric, P: Fabric> Process<F, P> {
    /// Takes all handles, for good: the process has ended.
    pub(super) fn end_handles(&self) -> Vec<Arc<Lmr<F>>> {
        let mut handles = self.handles();
        let mut state = self.tier.node().state();
        for (number, _) in handles.numbered() {
            state.remove(&KeptNumber::key(PROCESS_HANDLE, &self.secret, number));
        }
        state.remove(&KeptProcess::key(&self.secret));
        drop(state);
        self.buffers.clear();
        handles.take_all()
    }
}

impl<F: Fabric, P: Fabric> Registry<F, P> {
    fn kept<T: Decode>(&self, table: u8) -> Vec<T> {
        let state = self.tier.node().state();
        let Some(ledger) = &state.ledger else { return Vec::new() };
        // Entries of tables whose forms were wrong have ended the start of the node.
        ledger.table(table).filter_map(|(key, value)| T::decode(key, value)).collect()
    }

    /// Takes over the processes of an earlier life of the node.
    pub(super) fn recover(&self) {
        for KeptGiven { life, extent } in self.kept(GIVEN) {
            lock(&self.given.0).entry(life).or_default().insert(extent);
        }
        let of_process = |table: u8| {
            let mut found: BTreeMap<Secret, Vec<(u64, u64)>> = BTreeMap::new();
            for KeptNumber { secret, number, region } in self.kept(table) {
                found.entry(secret).or_default().push((number, region));
            }
            found
        };
        let (mut handles, mut directs) = (of_process(PROCESS_HANDLE), of_process(PROCESS_DIRECT));
        for KeptProcess { secret, life, user, principal } in self.kept(PROCESS) {
            let Ok(tier) = self.tier.acting_for(&principal) else { continue };
            let node = tier.node();
            let mut regions: BTreeMap<u64, Arc<Lmr<F>>> = BTreeMap::new();
            let mut region = |number: u64| {
                if let Some(known) = regions.get(&number) {
                    return Some(Arc::clone(known));
                }
                let handle = Handle::from_number(number);
                let (id, _, length) = node.state().handles.describe(handle).ok()?;
                let region = Arc::new(tier.lmr(handle, id, length));
                regions.insert(number, Arc::clone(&region));
                Some(region)
            };
            let opened = handles.remove(&secret).unwrap_or_default().into_iter();
            let opened: Vec<_> =
                opened.filter_map(|(number, behind)| Some((number, region(behind)?))).collect();
            let mapped = directs.remove(&secret).unwrap_or_default().into_iter();
            let mapped: Vec<_> =
                mapped.filter_map(|(number, behind)| Some((number, region(behind)?))).collect();
            drop(regions);
            let slots = Slots::recovered(self.config.limits.handles, self.tier.draw() as u32, opened);
            let peer = PeerIdentity { process: Some(life.0), user: Some(user) };
            // A process that a token named presents it again when it attaches again.
            let is_same = self.config.tokens.name(&principal)
                || self.acting_for(&peer, None).is_ok_and(|now| now.principal() == principal);
            let process = self.take_over(secret, tier.clone(), slots, (peer, life));
            self.recover_buffers(&process);
            for (number, region) in mapped {
                process.directs.recover(node, life.0, number, region);
            }
            if !is_same {
                // The settings give the user another name now, whose rights are other ones.
                self.end_one(&secret);
            }
        }
    }

    /// Ends processes of an earlier life of the node that have ended, and not attached again.
    pub(super) fn end_absent(&self) {
        for (secret, life) in self.absent() {
            if !life.is_some_and(lives::lives) {
                self.end_one(&secret);
            }
        }
    }
}
