//! The table from functions and workers to lanes: one lane for each plan and worker. Functions of different
//! plans share a connection and do not wait for each other.

use super::config::ClientConfig;

/// The number of lane indices that are stored inline.
const FEW: usize = 4;

/// The lanes of a client.
#[derive(Debug)]
pub(crate) struct Lanes {
    workers: usize,
    /// The number of lanes, and the first of them, inline: clients with few lanes read no other memory.
    count: usize,
    few: [u16; FEW],
    /// Indices in the core: the lanes of the first plan by worker, then those of the next plan.
    indices: Vec<u16>,
    /// For each function the number of its plan, up to the last one that is not 0; empty with one plan.
    routes: Vec<u8>,
}

impl Lanes {
    /// Creates a table without lanes.
    pub(crate) fn new(config: &ClientConfig) -> Self {
        let plans = config.plans();
        let mut routes = Vec::new();
        for (function, plan) in &config.functions {
            let number = plans.iter().position(|known| known == plan).unwrap_or(0);
            if number == 0 {
                continue;
            }
            routes.resize(usize::from(*function) + 1, 0);
            routes[usize::from(*function)] = number as u8;
        }
        Lanes { workers: 0, count: 0, few: [0; FEW], indices: Vec::new(), routes }
    }

    /// Sets the lanes of a new connection with `plans` plans, in the order in which they were requested.
    pub(crate) fn set(&mut self, indices: Vec<u16>, plans: usize) {
        self.workers = indices.len() / plans.max(1);
        self.count = indices.len();
        self.few.iter_mut().zip(&indices).for_each(|(place, index)| *place = *index);
        self.indices = indices;
    }

    /// Removes and returns all lanes.
    pub(crate) fn take(&mut self) -> Vec<u16> {
        self.count = 0;
        std::mem::take(&mut self.indices)
    }

    /// Returns all lanes.
    pub(crate) fn all(&self) -> &[u16] {
        &self.indices
    }

    /// Returns the number of workers that there are lanes to.
    pub(crate) fn workers(&self) -> usize {
        if self.indices.is_empty() { 0 } else { self.workers }
    }

    /// Returns the lane for a function's calls to a worker.
    #[inline]
    pub(crate) fn of(&self, worker: usize, function: u16) -> Option<u16> {
        let plan = self.routes.get(function as usize).copied().unwrap_or(0);
        if worker >= self.workers {
            return None;
        }
        let place = plan as usize * self.workers + worker;
        match self.few.get(place) {
            Some(index) => (place < self.count).then_some(*index),
            None => self.indices.get(place).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{CompletionMode, PROTOCOLS, Plan};

    #[test]
    fn functions_of_one_plan_share_its_lanes() {
        let [first, second, third] = [0, 1, 2].map(|row: usize| PROTOCOLS[row].plan(CompletionMode::Busy));
        let functions = [(3, second), (9, third), (5, second), (6, first)].into_iter().collect();
        let config = ClientConfig { functions, ..ClientConfig::with_plan(first) };
        let plans = config.plans();
        assert_eq!(plans, [first, second, third]);
        let mut lanes = Lanes::new(&config);
        assert_eq!((lanes.of(0, 3), lanes.workers()), (None, 0));
        lanes.set(vec![10, 11, 20, 21, 30, 31], plans.len());
        assert_eq!(lanes.workers(), 2);
        let plan_of = |function: u16| -> Plan {
            let lane = lanes.of(0, function).unwrap();
            assert_eq!(lanes.of(1, function), Some(lane + 1));
            assert_eq!(lanes.of(2, function), None);
            plans[usize::from(lane / 10) - 1]
        };
        for (function, plan) in
            [(0, first), (3, second), (5, second), (6, first), (9, third), (u16::MAX, first)]
        {
            assert_eq!(plan_of(function), plan, "{function}");
        }
    }
}
