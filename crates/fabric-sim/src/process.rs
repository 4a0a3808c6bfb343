//! Simulated processes: the unit of a crash.

use crate::state::State;

impl State {
    /// Kills a process: its tasks end at once, its queue pairs and connections disappear, and packets already
    /// sent still arrive. Its peers observe a crash.
    pub(crate) fn kill(&mut self, process: u32) {
        if !std::mem::replace(&mut self.processes[process as usize].alive, false) {
            return;
        }
        self.note(30 << 56 | u64::from(process));
        self.tell(|_| format!("process {process} is killed"));
        self.close_listeners_of(process);
        self.close_links_of(process);
        for domain in 0..self.network.domains.count() {
            if self.network.domains.get(domain).is_some_and(|d| d.process == process) {
                self.destroy_domain(domain);
            }
        }
        for task in 0..self.tasks.len() as u32 {
            if self.tasks[task as usize].process == process {
                self.doom(task);
            }
        }
    }
}
