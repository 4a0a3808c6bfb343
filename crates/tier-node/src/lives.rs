//! The lives of processes of this host, as the kernel tells them.

/// One life of a process: its id, and the time of its start by the clock of the kernel.
pub(crate) type Life = (u32, u64);

/// Returns the time of the start of a process that lives.
pub(crate) fn started(process: u32) -> Option<u64> {
    start_in(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Returns the life of a process now.
pub(crate) fn life_of(process: u32) -> Option<Life> {
    Some((process, started(process)?))
}

/// Returns whether a life has not ended.
pub(crate) fn lives((process, start): Life) -> bool {
    started(process) == Some(start)
}

/// Reads the time of the start from the text of `/proc/PID/stat`: field 22. The second field, a name in parentheses, may
/// have any characters. A process that is dead, and that nobody has waited for, has no memory any more.
fn start_in(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X" | "x")).then(|| fields.nth(18)?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_a_process_and_its_start() {
        let stat =
            |state: &str| format!("77 (a ) b) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20");
        assert_eq!(start_in(&stat("S")), Some(4711));
        assert_eq!(start_in(&stat("Z")), None);
        for text in ["", "77 (a", "77 (a) S 1", "77 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x"] {
            assert_eq!(start_in(text), None, "{text}");
        }
        let own = life_of(std::process::id()).unwrap();
        assert!(lives(own) && !lives((own.0, own.1 + 1)));
        assert_eq!(started(u32::MAX), None);
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_has_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while started(child.id()).is_some() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
    }
}
