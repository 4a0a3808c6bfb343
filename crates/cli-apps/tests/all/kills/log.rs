//! Two writers and a cleaner of a log on the second node. A writer, the cleaner, the node of the log, or that of the
//! first writer is killed.

use super::{Nodes, below, check_survivor, kill, pass_part_of, until_killed, wait};
use dunlin_command_testing::{Ended, HANG, Patience, Running};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The transactions of a writer, of two entries each.
const TRANSACTIONS: usize = 3000;
/// The second node is the home of its regions' names, and the first one that of the first locks of its writers' rows.
const LOG: &str = "orders-30";
const APPEND: [&str; 7] = ["apps", "log", "append", LOG, "--together=2", "--positions", "--wait=60s"];
const CLEAN: [&str; 5] = ["apps", "log", "clean", LOG, "--positions"];

fn input(writer: usize) -> String {
    let entries = |number: usize| {
        format!("{writer} {number} first\n{writer} {number} second {}\n", "z".repeat(number % 40))
    };
    (0..TRANSACTIONS).map(entries).collect()
}

/// The entries that were handed on, by the position of their transaction.
#[derive(Default)]
struct HandedOn(BTreeMap<u64, Vec<String>>);

impl HandedOn {
    /// Adds the output of a cleaner. A killed one may have printed a part of the last lines, which its successor repeats.
    fn add(&mut self, cleaner: &Ended) {
        let text = cleaner.text();
        let is_killed = cleaner.code().is_none();
        let end = text.rfind('\n').map_or(0, |end| end + 1);
        assert!(is_killed || end == text.len(), "a torn line");
        let mut found: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        let mut last = 0;
        for line in text[..end].lines() {
            let (position, entry) = line.split_once(' ').expect("a position and an entry");
            let position = position.parse().expect("a position");
            assert!(position >= last, "{position} after {last}");
            last = position;
            found.entry(position).or_default().push(entry.to_owned());
        }
        if is_killed && found.last_entry().is_some_and(|last| last.get().len() < 2) {
            found.pop_last();
        }
        for (position, entries) in found {
            let before = self.0.entry(position).or_insert_with(|| entries.clone());
            assert!(*before == entries, "other entries at {position}: {before:?}, {entries:?}");
        }
    }

    /// Checks that a writer's transactions are there once, in order and whole. The last one of a killed writer may have
    /// been committed without an acknowledgement, and a log that has ended lacks the last ones.
    fn check(&self, writer: usize, ended: &Ended, is_log_there: bool) {
        let text = ended.text();
        let lines = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let acknowledged: Vec<u64> = lines.lines().map(|line| line.parse().expect("a position")).collect();
        let all = input(writer);
        let mut plain = all.lines();
        let label = format!("{writer} ");
        let own = self.0.iter().filter(|(_, entries)| entries.iter().all(|entry| entry.starts_with(&label)));
        let mut count = 0;
        for (position, entries) in own {
            let expected: Vec<_> = plain.by_ref().take(2).collect();
            assert_eq!(*entries, expected, "at {position}");
            if let Some(said) = acknowledged.get(count) {
                assert_eq!(position, said);
            }
            count += 1;
        }
        let most = acknowledged.len() + usize::from(ended.code() != Some(0));
        assert!(count <= most, "{count} of {most} transactions of writer {writer}");
        assert!(!is_log_there || count >= acknowledged.len(), "{count} of {} are there", acknowledged.len());
        assert!(ended.code() != Some(0) || acknowledged.len() == TRANSACTIONS);
    }
}

/// Kills a process while writers and the cleaner run; returns whether it was in time.
fn round(victim: usize, time: &mut Option<Duration>) -> bool {
    let mut nodes = Nodes::start();
    // The node that makes and cleans the log. The log ends with its record, which is at that node.
    let at = usize::from(victim == 4);
    let create = ["apps", "log", "create", LOG, "--on", "two", "--size", "64KiB", "--lease", "300ms"];
    nodes.run(at, &[&create[..], &["--grant", "anyone=rw"]].concat()).well();
    let clean = |nodes: &Nodes| nodes.spawn(at, &[&CLEAN[..], &["--follow"]].concat());
    let mut cleaner = Some(clean(&nodes));
    let mut writers = [0, 1]
        .map(|writer| Some(Running::with_input(nodes.words(writer, &APPEND), input(writer).as_bytes())));
    let begin = Instant::now();
    writers.iter().flatten().for_each(|writer| drop(writer.line()));
    if let Some(time) = time {
        pass_part_of(*time);
    }
    let (mut handed_on, mut ends, mut is_killed) = (HandedOn::default(), [None, None], false);
    match victim {
        0 | 1 => {
            // The cleaner closes the hole that it leaves.
            let (ended, is) = kill(writers[victim].take().expect("it runs"));
            (ends[victim], is_killed) = (Some(ended), is);
        }
        2 => {
            let (ended, is) = kill(cleaner.take().expect("it runs"));
            handed_on.add(&ended);
            cleaner = Some(clean(&nodes));
            is_killed = is;
        }
        3 | 4 => {
            // The second node has the log. The cleaner closes the hole of the writer at the first one.
            nodes.kill(4 - victim);
            is_killed = true;
        }
        _ => {}
    }
    for (writer, end) in writers.iter_mut().zip(&mut ends) {
        if let Some(mut writer) = writer.take() {
            let (mut seen, mut patience) = (String::new(), Patience::new(HANG / 4));
            while writer.is_running() {
                std::thread::sleep(Duration::from_millis(20));
                if patience.look() {
                    continue;
                }
                let status = nodes.run(at, &["apps", "log", "status", LOG]).text();
                assert!(status != seen, "victim {victim}, {is_killed}: a writer does not go on: {status}");
                (seen, patience) = (status, Patience::new(HANG / 4));
            }
            *end = Some(writer.end());
        }
    }
    let ends = ends.map(|end| end.expect("all have ended"));
    time.get_or_insert_with(|| begin.elapsed());
    let cleaner = cleaner.expect("it runs");
    if victim == 3 {
        let ended = cleaner.end();
        ends.iter().chain([&ended]).for_each(check_survivor);
        handed_on.add(&ended);
    } else {
        // It is empty in the end: nobody has lost room.
        wait("an empty log", || {
            let status = nodes.run(at, &["apps", "log", "status", LOG]).well().text();
            status.contains("0 B of 64 KiB in use").then_some(())
        });
        cleaner.signal("INT");
        let ended = cleaner.end_within(HANG);
        // A cleaner that has just begun has no handler of signals.
        assert!(matches!(ended.code(), Some(0) | None), "{}", ended.errors);
        handed_on.add(&ended);
        assert!(is_killed || ends.iter().all(|end| end.code() == Some(0)), "{ends:?}");
    }
    for (writer, end) in ends.iter().enumerate() {
        if victim == 4 && writer == 0 {
            check_survivor(end);
        } else {
            assert!(victim == 3 || victim == writer || end.code() == Some(0), "{}", end.errors);
        }
        handed_on.check(writer, end, victim != 3);
    }
    is_killed
}

#[test]
fn kills_at_random_points_lose_and_repeat_no_transaction() {
    let (mut time, mut counts) = (None, [0; 5]);
    // The first round only measures the time of all commits.
    assert!(!round(5, &mut time));
    until_killed(|_| {
        let victim = below(5) as usize;
        let is_killed = round(victim, &mut time);
        counts[victim] += u32::from(is_killed);
        is_killed
    });
    let [one, two, cleaners, homes, nodes] = counts;
    println!(
        "killed: writers {}, cleaners {cleaners}, nodes of the log {homes}, nodes of a writer {nodes}",
        one + two
    );
}
