//! Counts the system calls of a program between two marks, with `strace`. For programs that measure the cost
//! of a back-end's calls.

use std::collections::BTreeMap;
use std::io;
use std::process::Command;

/// The number of calls: by case, by whether the marking thread made them, and by name.
pub type Counts = BTreeMap<(String, bool, String), u64>;

/// Writes a mark into strace's log: following calls count for the case of this name, or for none after `end`.
pub fn mark(case: &str) {
    // The file does not exist; the attempt to open it appears in the log. Opening is one call, while reading
    // metadata is two the first time.
    let _ = std::fs::File::open(format!("{MARK}{case}"));
}

const MARK: &str = "/mark/";

/// Runs this program again under strace with these arguments, and counts its calls.
///
/// # Errors
/// strace is missing, or the program fails.
pub fn traced(arguments: &[&str]) -> io::Result<Counts> {
    let log = std::env::temp_dir().join(format!("dunlin-trace-{}", std::process::id()));
    let program = std::env::current_exe()?;
    let status =
        Command::new("strace").args(["-f", "-qq", "-o"]).arg(&log).arg(program).args(arguments).status();
    let text = std::fs::read_to_string(&log);
    let _ = std::fs::remove_file(&log);
    let status = status?;
    if !status.success() {
        return Err(io::Error::other(format!("under strace: {status}")));
    }
    Ok(count(&text?))
}

fn count(log: &str) -> Counts {
    let mut section: Option<(&str, &str)> = None;
    let mut counts = Counts::new();
    for line in log.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        // A call that was interrupted by another thread's line appears twice.
        if call.starts_with("<...") || call.starts_with("---") || call.starts_with("+++") {
            continue;
        }
        if let Some((_, rest)) = call.split_once(&format!("\"{MARK}")) {
            let case = rest.split('"').next().unwrap_or_default();
            section = (case != "end").then_some((case, thread));
            continue;
        }
        if let (Some((case, own)), Some((name, _))) = (section, call.split_once('(')) {
            *counts.entry((case.to_owned(), own == thread, name.to_owned())).or_default() += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_count_between_marks_once_and_by_thread() {
        let log = "7 read(3, \"x\", 1) = 1\n\
                   7 statx(AT_FDCWD, \"/mark/look\", 0) = -1 ENOENT\n\
                   7 write(3, \"x\", 1 <unfinished ...>\n\
                   8  read(4, \"y\", 1) = 1\n\
                   7 <... write resumed>) = 1\n\
                   7 write(3, \"x\", 1) = 1\n\
                   7 --- SIGCHLD {} ---\n\
                   7 statx(AT_FDCWD, \"/mark/end\", 0) = -1 ENOENT\n\
                   7 write(3, \"x\", 1) = 1\n";
        let known = count(log);
        let of = |own, name: &str| known.get(&("look".into(), own, name.into())).copied();
        assert_eq!((of(true, "write"), of(false, "read"), known.len()), (Some(2), Some(1), 2));
    }
}
