//! The planted bugs. The text of a bug's place stands in the sources exactly once; a change of that place of the engine gives the bug
//! its new place here.

use std::path::Path;

impl Mutant {
    /// The file's text with the bug in it, below this folder.
    pub(crate) fn planted(&self, root: &Path) -> String {
        let text = std::fs::read_to_string(root.join(self.file)).expect("a source");
        let places = text.matches(self.from).count();
        assert_eq!(
            places, 1,
            "the place of '{}' must occur once in {}, and occurs {places} times: give the bug its new place",
            self.name, self.file
        );
        text.replace(self.from, self.to)
    }
}

/// A bug: a text of the sources, and the text that replaces it. Places of one bug follow each other, under one name.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) file: &'static str,
    from: &'static str,
    to: &'static str,
}

pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "lost_wakeup",
        file: "crates/rpc/src/client/synchronous.rs",
        from: "let wake = self.core.domain.wait(armed, fetch.min(others));",
        to: "let armed = if dunlin_fabric::mutant(\"lost_wakeup\") { self.core.domain.disarm(armed); self.core.domain.arm(mode) } else { armed };
        let wake = self.core.domain.wait(armed, fetch.min(others));",
    },
    Mutant {
        name: "skipped_tag_check",
        file: "crates/rpc/src/path/local_ring.rs",
        from: "if region.load(at + trailing) != expected.trailing {",
        to: "if region.load(at + trailing) != expected.trailing && !dunlin_fabric::mutant(\"skipped_tag_check\") {",
    },
    Mutant {
        name: "credit_not_returned",
        file: "crates/rpc/src/server/worker.rs",
        from: "                    (_, buffer) => {
                        if completion.immediate",
        to: "                    _ if dunlin_fabric::mutant(\"credit_not_returned\") => lane.rx.noticed(),
                    (_, buffer) => {
                        if completion.immediate",
    },
    Mutant {
        name: "generation_not_advanced",
        file: "crates/rpc/src/client/slots.rs",
        from: "Some(self.slots.get(self.free as usize)?.call.wrapping_add(1 << SLOT_BITS))",
        to: "let step = if dunlin_fabric::mutant(\"generation_not_advanced\") && self.in_flight > 0 { 0 } else { 1 };
        Some(self.slots.get(self.free as usize)?.call.wrapping_add(step << SLOT_BITS))",
    },
    Mutant {
        name: "duplicate_execution",
        file: "crates/rpc/src/server/execute.rs",
        from: "let outcome = end_of(catch_unwind(AssertUnwindSafe(|| service.call(&request, &mut reply))));",
        to: "if dunlin_fabric::mutant(\"duplicate_execution\") && (call.call >> 12) % 4 == 3 {
            let _ = service.call(&request, &mut reply);
            reply.clear();
        }
        let outcome = end_of(catch_unwind(AssertUnwindSafe(|| service.call(&request, &mut reply))));",
    },
    Mutant {
        name: "head_too_far",
        file: "crates/rpc/src/mailbox.rs",
        from: "pub(crate) fn head(&self) -> u32 {
        self.head
",
        to: "pub(crate) fn head(&self) -> u32 {
        self.head.wrapping_add(u32::from(dunlin_fabric::mutant(\"head_too_far\")))
",
    },
    Mutant {
        name: "deadline_ignored",
        file: "crates/rpc/src/client/slots.rs",
        from: "State::InFlight | State::Reading) || slot.timeout == 0 {",
        to: "State::InFlight | State::Reading) || slot.timeout == 0 || dunlin_fabric::mutant(\"deadline_ignored\") {",
    },
    Mutant {
        name: "deadline_late",
        file: "crates/rpc/src/client/slots.rs",
        from: "self.deadline = now().saturating_add(self.timeout);",
        to: "let late = if dunlin_fabric::mutant(\"deadline_late\") { 10_000_000 } else { 0 };
            self.deadline = now().saturating_add(self.timeout + late);",
    },
    Mutant {
        name: "begun_after_its_deadline",
        file: "crates/rpc/src/server/clock.rs",
        from: "        deadline <= self.last
",
        to: "        deadline <= self.last && !dunlin_fabric::mutant(\"begun_after_its_deadline\")
",
    },
    Mutant {
        name: "open_batch_keeps_its_time",
        file: "crates/rpc/src/client/open_batch.rs",
        from: "if self.slots.has_started_unsent() {",
        to: "if self.slots.has_started_unsent() && !dunlin_fabric::mutant(\"open_batch_keeps_its_time\") {",
    },
    Mutant {
        name: "not_executed_said_too_soon",
        file: "crates/rpc/src/client/slots.rs",
        from: "let never = !was_sent(slot.sequence, taken);",
        to: "let never = !was_sent(slot.sequence, taken) || dunlin_fabric::mutant(\"not_executed_said_too_soon\");",
    },
    Mutant {
        name: "slot_free_too_soon",
        file: "crates/rpc/src/client/slots.rs",
        from: "            State::Expired | State::InFlight | State::Reading => {
                slot.state = State::Zombie;",
        to: "            _ if dunlin_fabric::mutant(\"slot_free_too_soon\") => self.release(call),
            State::Expired | State::InFlight | State::Reading => {
                slot.state = State::Zombie;",
    },
    Mutant {
        name: "repeated_call_executed",
        file: "crates/rpc/src/server/dispatch.rs",
        from: "        if !lane.admit(entry.call, entry.function_or_status, self.clock.last())? {",
        to: "        let twice = lane.lossy.is_some() && dunlin_fabric::mutant(\"repeated_call_executed\");
        if !lane.admit(entry.call, entry.function_or_status, self.clock.last())? && !twice {",
    },
    Mutant {
        name: "lost_write_not_written_again",
        file: "crates/rpc/src/path/half/lossy_ring.rs",
        from: "        self.ring.start_round();",
        to: "        if dunlin_fabric::mutant(\"lost_write_not_written_again\") { return Ok(true); }
        self.ring.start_round();",
    },
    Mutant {
        name: "torn_line_taken",
        file: "crates/rpc/src/path/half/fetch.rs",
        from: "        if !self.whole && !std::mem::replace(&mut self.seen, true) {",
        to: "        if !self.whole && !std::mem::replace(&mut self.seen, true) && !dunlin_fabric::mutant(\"torn_line_taken\") {",
    },
    Mutant {
        name: "filling_call_denied",
        file: "crates/rpc/src/client/open_batch.rs",
        from: "let _ = self.was_pushed(cx, call, CallEnds { function, thread }, payload);",
        to: "let pushed = self.was_pushed(cx, call, CallEnds { function, thread }, payload);
            if dunlin_fabric::mutant(\"filling_call_denied\") { pushed?; }",
    },
    Mutant {
        name: "worker_not_woken",
        file: "crates/rpc/src/server/inbox.rs",
        from: "self.waker.wake();",
        to: "if !dunlin_fabric::mutant(\"worker_not_woken\") { self.waker.wake(); }",
    },
    Mutant {
        name: "pool_not_woken",
        file: "crates/rpc/src/server/waiting.rs",
        from: "        if let Some(sleeper) = pushed? {",
        to: "        if let Some(sleeper) = pushed?.filter(|_| !dunlin_fabric::mutant(\"pool_not_woken\")) {",
    },
    Mutant {
        name: "ticket_forgotten",
        file: "crates/rpc/src/share/strand.rs",
        from: "        if self.policy.has_calls() { Look::Calls } else { self.waiting.look() }",
        to: "        if dunlin_fabric::mutant(\"ticket_forgotten\") {
            return Look::Nothing;
        }
        if self.policy.has_calls() { Look::Calls } else { self.waiting.look() }",
    },
    Mutant {
        name: "ticket_sent_twice",
        file: "crates/rpc/src/share/combined.rs",
        from: "        let submitted = match submit(client, time) {",
        to: "        if dunlin_fabric::mutant(\"ticket_sent_twice\") && !alone && payload.len() % 5 == 0 {
            let _ = submit(client, time);
        }
        let submitted = match submit(client, time) {",
    },
    Mutant {
        name: "answer_of_the_last_call",
        file: "crates/rpc/src/combine/tickets/owner.rs",
        from: "                TAKEN => ((TAKEN, ABANDONED), Withdrawal::MaybeExecuted),
                DONE => return",
        to: "                TAKEN if dunlin_fabric::mutant(\"answer_of_the_last_call\") => {
                    ticket.state.store(state(id.generation.wrapping_sub(1) & GENERATIONS, FREE), Ordering::Relaxed);
                    return (Withdrawal::MaybeExecuted, Left::Free);
                }
                TAKEN => ((TAKEN, ABANDONED), Withdrawal::MaybeExecuted),
                DONE => return",
    },
    Mutant {
        name: "ended_by_anothers_deadline",
        file: "crates/rpc/src/share/calls.rs",
        from: "        let mut earliest = Nanos::MAX;
        let (slots, done) = (&mut self.slots, &mut self.done);
        self.under_way.retain(|index| {
            let slot = &mut slots[usize::from(*index)];",
        to: "        let mut earliest = Nanos::MAX;
        let (slots, done) = (&mut self.slots, &mut self.done);
        let first = self.under_way.iter().map(|index| slots[usize::from(*index)].deadline).filter(|deadline| *deadline > 0).min();
        self.under_way.retain(|index| {
            let slot = &mut slots[usize::from(*index)];
            if let Some(first) = first && dunlin_fabric::mutant(\"ended_by_anothers_deadline\") && slot.timeout > 0 {
                slot.deadline = first;
            }",
    },
    Mutant {
        name: "moved_with_calls_open",
        file: "crates/rpc/src/share/seat.rs",
        from: "            if !self.calls.under_way().all(",
        to: "            if !dunlin_fabric::mutant(\"moved_with_calls_open\") && !self.calls.under_way().all(",
    },
    Mutant {
        name: "moved_with_calls_open",
        file: "crates/rpc/src/share/seat.rs",
        from: "                P::submit_again(&self.strand, seat, call);",
        to: "                if !dunlin_fabric::mutant(\"moved_with_calls_open\") || P::is_returned(seat, call) {
                    P::submit_again(&self.strand, seat, call);
                }",
    },
    Mutant {
        name: "own_memory_overtakes",
        file: "crates/rpc/src/share/combined.rs",
        from: "(alone, open.has(ends.thread))",
        to: "(alone, open.has(ends.thread) && !dunlin_fabric::mutant(\"own_memory_overtakes\"))",
    },
    Mutant {
        name: "zone_given_out_too_soon",
        file: "crates/rpc/src/grouped/member.rs",
        from: "            Hold::Nothing if word.heard == self.epoch || self.forgives_words() => {}
            Hold::Leased(_) | Hold::Ended(_) if word.heard == before => {}",
        to: "            Hold::Ended(zone) if word.heard == before && dunlin_fabric::mutant(\"zone_given_out_too_soon\") => {
                self.hold = Hold::Nothing;
                zones.give_back(zone);
            }
            Hold::Nothing | Hold::Leased(_) if dunlin_fabric::mutant(\"zone_given_out_too_soon\") => {}
            Hold::Nothing if word.heard == self.epoch || self.forgives_words() => {}
            Hold::Leased(_) | Hold::Ended(_) if word.heard == before => {}",
    },
    Mutant {
        name: "epoch_not_raised",
        file: "crates/rpc/src/grouped/member.rs",
        from: "    #[cfg(not(test))]
    fn raise_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);",
        to: "    #[cfg(not(test))]
    fn raise_epoch(&mut self) {
        let step = if dunlin_fabric::mutant(\"epoch_not_raised\") && self.epoch > 0 { 0 } else { 1 };
        self.epoch = self.epoch.wrapping_add(step);",
    },
    Mutant {
        name: "switch_forgets_the_zone",
        file: "crates/rpc/src/server/worker/grouped.rs",
        from: "            for _ in 0..LAST_TURNS {",
        to: "            if dunlin_fabric::mutant(\"switch_forgets_the_zone\")
                && let Some(Some(lane)) = self.lanes.get_mut(usize::from(index))
                && lane.is_leased()
            {
                while let Ok(Some(_)) = lane.rx.poll(&self.fabric, &mut self.scratch) {}
            }
            for _ in 0..LAST_TURNS {",
    },
    Mutant {
        name: "announced_call_executed_twice",
        file: "crates/rpc/src/server/worker/grouped.rs",
        from: "                    let mut own = BatchState::new();",
        to: "                    if dunlin_fabric::mutant(\"announced_call_executed_twice\") && at > 0 {
                        let cx = &mut Cx::of(&self.fabric, &mut self.domain);
                        let _ = self.dispatcher.on_message(cx, lane, message, &mut BatchState::new());
                    }
                    let mut own = BatchState::new();",
    },
    // The ids of calls would stop it.
    Mutant {
        name: "announced_call_executed_twice",
        file: "crates/rpc/src/server/lane.rs",
        from: "        let newer = is_newer(generation, last.generation());",
        to: "        let again = generation == last.generation() && dunlin_fabric::mutant(\"announced_call_executed_twice\");
        let newer = is_newer(generation, last.generation()) || again;",
    },
    Mutant {
        name: "slice_missed_asleep",
        file: "crates/rpc/src/server/worker.rs",
        from: "        let until = until.min(spin_until).min(self.groups_wake_at());",
        to: "        let due = if dunlin_fabric::mutant(\"slice_missed_asleep\") { Nanos::MAX } else { self.groups_wake_at() };
        let until = until.min(spin_until).min(due);",
    },
    Mutant {
        name: "follower_ignores_the_common_clock",
        file: "crates/rpc/src/server/deployment.rs",
        from: "            let [taken, answered] = answer.stamps;",
        to: "            let own = dunlin_fabric::mutant(\"follower_ignores_the_common_clock\");
            let [taken, answered] = if own { [asked, heard] } else { answer.stamps };",
    },
    Mutant {
        name: "moved_before_its_writers_stop",
        file: "crates/tier-node/src/free.rs",
        from: "        if !self.drive(free, until) {
            let nodes",
        to: "        if !dunlin_fabric::mutant(\"moved_before_its_writers_stop\") && !self.drive(free, until) {
            let nodes",
    },
    Mutant {
        name: "revoked_before_its_writers_stop",
        file: "crates/tier-node/src/free.rs",
        from: "        if !self.drive(&mut free, until) {
            let waits = free.waits_for(self.me);
            self.leave_to_cleaner(free);
            return Err(Refusal::Drains(waits));",
        to: "        if !dunlin_fabric::mutant(\"revoked_before_its_writers_stop\") && !self.drive(&mut free, until) {
            let waits = free.waits_for(self.me);
            self.leave_to_cleaner(free);
            return Err(Refusal::Drains(waits));",
    },
    Mutant {
        name: "freed_before_its_users_stop",
        file: "crates/tier-node/src/free.rs",
        from: "        if self.drive(&mut free, until) {
            return if free.is_deposed",
        to: "        if dunlin_fabric::mutant(\"freed_before_its_users_stop\") {
            self.leave_to_cleaner(free);
            return Ok(());
        }
        if self.drive(&mut free, until) {
            return if free.is_deposed",
    },
    Mutant {
        name: "rights_not_checked",
        file: "crates/tier/src/handles.rs",
        from: "        if !entry.rights.contains(kind.needs()) {",
        to: "        if !entry.rights.contains(kind.needs()) && !crate::mutant(\"rights_not_checked\") {",
    },
    Mutant {
        name: "bounds_of_the_last_word",
        file: "crates/tier/src/handles.rs",
        from: "        if offset > entry.length || length > entry.length - offset {",
        to: "        let end = entry.length + if crate::mutant(\"bounds_of_the_last_word\") { 8 } else { 0 };
        if offset > end || length > end - offset {",
    },
    Mutant {
        name: "memory_given_out_with_old_bytes",
        file: "crates/tier-node/src/node.rs",
        from: "            self.fill(place, block.length, 0);",
        to: "            if !dunlin_fabric::mutant(\"memory_given_out_with_old_bytes\") {
                self.fill(place, block.length, 0);
            }",
    },
    Mutant {
        name: "kept_block_forgotten",
        file: "crates/tier/src/space/kept.rs",
        from: "                Some((order, Some(owner))) => {",
        to: "                Some(_) if crate::mutant(\"kept_block_forgotten\") && offset > 0 => {}
                Some((order, Some(owner))) => {",
    },
    Mutant {
        name: "kept_move_forgotten",
        file: "crates/tier/src/record/kept.rs",
        from: "            entries.put(&key, &encode(&self.slots[slot as usize]));",
        to: "            let record = self.slots[slot as usize].record.as_ref();
            if record.is_some_and(|record| record.memory != record.id) && crate::mutant(\"kept_move_forgotten\") {
                continue;
            }
            entries.put(&key, &encode(&self.slots[slot as usize]));",
    },
    Mutant {
        name: "memory_of_a_restarted_node_trusted",
        file: "crates/tier-node/src/operate.rs",
        from: "if let (Ok(handle), false) = (&finished, is_there) {",
        to: "if let (Ok(handle), false) = (&finished, is_there || dunlin_fabric::mutant(\"memory_of_a_restarted_node_trusted\")) {",
    },
    Mutant {
        name: "uncertain_operations_not_settled",
        file: "crates/tier-node/src/cleaner.rs",
        from: "        if settles_paths {",
        to: "        if settles_paths && !dunlin_fabric::mutant(\"uncertain_operations_not_settled\") {",
    },
    Mutant {
        name: "clone_moved_with_calls_open",
        file: "crates/rpc/src/share/asynchronous/strands.rs",
        from: "            if member.sent > 0 || lanes.iter()",
        to: "            let is_open = member.sent > 0 && !dunlin_fabric::mutant(\"clone_moved_with_calls_open\");
            if is_open || lanes.iter()",
    },
    Mutant {
        name: "clone_moved_past_held_calls",
        file: "crates/rpc/src/share/asynchronous/strands.rs",
        from: "lanes.iter().any(|lane| leader.any_held(queue_of_lane(*lane), is_its)) {",
        to: "!dunlin_fabric::mutant(\"clone_moved_past_held_calls\") && lanes.iter().any(|lane| leader.any_held(queue_of_lane(*lane), is_its)) {",
    },
    Mutant {
        name: "ring_given_out_twice",
        file: "crates/rpc/src/server/worker/pooled.rs",
        from: "pool.holders.iter().position(Option::is_none) else {",
        to: "pool.holders.iter().position(|holder| holder.is_none() || dunlin_fabric::mutant(\"ring_given_out_twice\")) else {",
    },
    Mutant {
        name: "uncertain_call_repeated",
        file: "crates/tier-node/src/seats.rs",
        from: "        let outcome = client.within(left).call(function, bytes).map(|response| take(&response));",
        to: "        let mut called = client.within(left).call(function, bytes).map(|response| response.to_vec());
        if called.is_err() && of == Use::Calls && dunlin_fabric::mutant(\"uncertain_call_repeated\") {
            called = client.within(left).call(function, bytes).map(|response| response.to_vec());
        }
        let outcome = called.map(|response| take(&response));",
    },
    Mutant {
        name: "unanswered_call_refused",
        file: "crates/tier-node/src/serving.rs",
        from: "    fn drop(&mut self) {
        drop(self.take());",
        to: "    fn drop(&mut self) {
        let asked = self.take();
        if dunlin_fabric::mutant(\"unanswered_call_refused\") && let Some(asked) = asked {
            asked.answer.refuse(Status::Draining);
        }",
    },
    Mutant {
        name: "lock_handed_over_and_freed",
        file: "crates/tier-node/src/locks.rs",
        from: "            threads.taken = false;
        }
        self.advance(shared);
        true",
        to: "            threads.taken = false;
        }
        self.advance(shared);
        !dunlin_fabric::mutant(\"lock_handed_over_and_freed\")",
    },
    Mutant {
        name: "last_thread_first",
        file: "crates/tier-node/src/locks.rs",
        from: "        threads.queue.push_back(Turn { number, claim });",
        to: "        match dunlin_fabric::mutant(\"last_thread_first\") {
            true => threads.queue.push_front(Turn { number, claim }),
            false => threads.queue.push_back(Turn { number, claim }),
        }",
    },
    Mutant {
        name: "waiters_not_woken",
        file: "crates/tier-node/src/locks.rs",
        from: "                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(target: \"dunlin::tier\", %error, \"a lock is given back by its owner\");",
        to: "                Ok(_) if dunlin_fabric::mutant(\"waiters_not_woken\") => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(target: \"dunlin::tier\", %error, \"a lock is given back by its owner\");",
    },
    Mutant {
        name: "barrier_opens_early",
        file: "crates/tier-node/src/lock_owner.rs",
        from: "        if meeting.present.len() >= usize::from(members) {",
        to: "        if meeting.present.len() + usize::from(dunlin_fabric::mutant(\"barrier_opens_early\")) >= usize::from(members) {",
    },
    Mutant {
        name: "view_keeps_its_epoch",
        file: "crates/tier/src/membership/directory.rs",
        from: "        Epoch { number: number.saturating_add(1), directory: self.life }",
        to: "        let raised = !crate::mutant(\"view_keeps_its_epoch\") || number == 0;
        Epoch { number: number.saturating_add(raised.into()), directory: self.life }",
    },
    Mutant {
        name: "names_left_behind",
        file: "crates/tier-node/src/members.rs",
        from: "            let (names, next) = self.state().directory.names(at, kept_there);",
        to: "            let (names, next) = self.state().directory.names(at, kept_there);
            let names = if dunlin_fabric::mutant(\"names_left_behind\") { Vec::new() } else { names };",
    },
    Mutant {
        name: "home_answers_too_early",
        file: "crates/tier-node/src/members.rs",
        from: "        if is_home && (is_known || state.names.is_whole()) {",
        to: "        if is_home && (is_known || state.names.is_whole() || dunlin_fabric::mutant(\"home_answers_too_early\")) {",
    },
    Mutant {
        name: "last_node_first",
        file: "crates/tier/src/lock.rs",
        from: "                self.waiting.push_back(waiter);",
        to: "                match std::env::var(\"DUNLIN_MUTANT\").as_deref() {
                    Ok(\"last_node_first\") => self.waiting.push_front(waiter),
                    _ => self.waiting.push_back(waiter),
                }",
    },
    Mutant {
        name: "death_of_a_holder_not_told",
        file: "crates/tier-node/src/lock_owner.rs",
        from: "                let _ = self.carry_out(lock, Event::Dead(holder));",
        to: "                let word = self.word(lock).unwrap_or_default();
                let is_told = !dunlin_fabric::mutant(\"death_of_a_holder_not_told\");
                let _ = self.carry_out(lock, if is_told { Event::Dead(holder) } else { Event::Unlock(word) });",
    },
    Mutant {
        name: "fence_numbers_begin_again",
        file: "crates/tier-node/src/lock_owner.rs",
        from: "        let view = self.node.roster.get().view.epoch.number;",
        to: "        let forgets = dunlin_fabric::mutant(\"fence_numbers_begin_again\");
        let view = if forgets { 0 } else { self.node.roster.get().view.epoch.number };",
    },
    Mutant {
        name: "locks_opened_by_whoever_is_asked",
        file: "crates/tier-node/src/lock_owner.rs",
        from: "        if !self.node.roster.is_dynamic {
            return Ok(());
        }
        let current = self.node.roster.get();",
        to: "        if !self.node.roster.is_dynamic || dunlin_fabric::mutant(\"locks_opened_by_whoever_is_asked\") {
            return Ok(());
        }
        let current = self.node.roster.get();",
    },
    Mutant {
        name: "new_keeper_asks_nobody",
        file: "crates/tier/src/record/keepers.rs",
        from: "            None => (BTreeMap::new(), false, Standing::New),",
        to: "            None if crate::mutant(\"new_keeper_asks_nobody\") => (BTreeMap::new(), false, Standing::Settled),
            None => (BTreeMap::new(), false, Standing::New),",
    },
    Mutant {
        name: "stores_not_asked",
        file: "crates/tier-node/src/keepers.rs",
        from: "        if !self.roster.is_dynamic {
            return Ok(true);",
        to: "        if !self.roster.is_dynamic || dunlin_fabric::mutant(\"stores_not_asked\") {
            return Ok(true);",
    },
    Mutant {
        name: "orphans_kept",
        file: "crates/tier-node/src/orphans.rs",
        from: "        for id in ids {
            tracing::warn!",
        to: "        for id in ids.iter().filter(|_| !dunlin_fabric::mutant(\"orphans_kept\")) {
            tracing::warn!",
    },
    Mutant {
        name: "list_orphans_kept",
        file: "crates/tier-node/src/orphans/fixed_list.rs",
        from: "            if let Some(orphans) = search.orphans() {",
        to: "            if let Some(orphans) = search.orphans().filter(|_| !dunlin_fabric::mutant(\"list_orphans_kept\")) {",
    },
    Mutant {
        name: "homes_not_told",
        file: "crates/tier-node/src/orphans/fixed_list.rs",
        from: "            if looks > TELLS || is_home &&",
        to: "            let is_home = is_home && !dunlin_fabric::mutant(\"homes_not_told\");
            if looks > TELLS || is_home &&",
    },
    Mutant {
        name: "lost_movers_not_noticed",
        file: "crates/tier-node/src/keepers.rs",
        from: "            if self.roster.is_dynamic || self.state().directory.changed_by(id).is_none() {",
        to: "            if self.roster.is_dynamic || self.state().directory.changed_by(id).is_none() || dunlin_fabric::mutant(\"lost_movers_not_noticed\") {",
    },
];
