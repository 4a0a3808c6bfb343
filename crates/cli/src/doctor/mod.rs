//! `dunlin doctor`: reports the features of this machine, what is missing, and how to fix it.

mod checks;
mod devices;
mod libfabric;

use clap::Args;
use dunlin_command::output::{self, Failure};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Each line is one check. ok: nothing to change; warn: works, but could be faster or larger; FAIL: dunlin cannot run.

Exit status: 0; 1 if a check has the result FAIL.

Examples:
  dunlin doctor
  dunlin doctor --json doctor.json";

/// Check whether this machine supports dunlin, and show what to change.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct DoctorArguments {
    /// Also write the findings to this file as JSON ('-' prints them instead of the table)
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mark {
    /// Nothing to change.
    Ok,
    /// Works, but could be faster or larger.
    Warn,
    /// Dunlin cannot run.
    Fail,
}

impl Mark {
    fn as_str(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Warn => "warn",
            Mark::Fail => "FAIL",
        }
    }
}

/// The result of one check, with details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    name: &'static str,
    mark: Mark,
    /// The observation.
    found: String,
    /// The recommended change; `None` if there is nothing to change.
    advice: Option<String>,
}

impl Finding {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Finding { name, mark: Mark::Ok, found: found.into(), advice: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { name, mark: Mark::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { name, mark: Mark::Fail, found: found.into(), advice: Some(advice.into()) }
    }
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let mut findings = checks::all();
    findings.extend(devices::all());
    findings.push(libfabric::finding());
    let worst = findings.iter().map(|finding| finding.mark).max().unwrap_or(Mark::Ok);
    let json = serde_json::to_string_pretty(&findings).map_err(Failure::new)? + "\n";
    match &arguments.json {
        Some(path) if path.as_os_str() == "-" => output::print(json)?,
        Some(path) => {
            std::fs::write(path, json).map_err(|error| {
                Failure::new(format!("cannot write {}: {error}", path.display()))
                    .help("give a file in a folder that exists")
            })?;
            output::print(text(&findings))?;
        }
        None => output::print(text(&findings))?,
    }
    if worst == Mark::Fail { Err(Failure::Negative) } else { Ok(ExitCode::SUCCESS) }
}

fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<4}  {:<width$}  {}", finding.mark.as_str(), finding.name, finding.found);
        if let Some(advice) = &finding.advice {
            let _ = writeln!(text, "{:<4}  {:<width$}  -> {advice}", "", "");
        }
    }
    let count = |mark| findings.iter().filter(|finding| finding.mark == mark).count();
    let (warned, failed) = (count(Mark::Warn), count(Mark::Fail));
    let _ = match (failed, warned) {
        (0, 0) => writeln!(text, "\nAll is well."),
        (0, warned) => writeln!(text, "\nDunlin runs here; {warned} of {} could be better.", findings.len()),
        (failed, _) => writeln!(text, "\nDunlin cannot run here: {failed} of {} failed.", findings.len()),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_that_is_not_well_says_what_to_do() {
        let mut findings = checks::all();
        findings.extend(devices::all());
        findings.push(libfabric::finding());
        assert!(findings.len() >= 10);
        for finding in &findings {
            assert_eq!(finding.advice.is_none(), finding.mark == Mark::Ok, "{finding:?}");
            assert!(!finding.found.is_empty() && !finding.found.contains('\n'), "{finding:?}");
        }
    }

    #[test]
    fn the_summary_counts() {
        let well = Finding::ok("cores", "8");
        assert!(text(std::slice::from_ref(&well)).ends_with("All is well.\n"));
        let all = [well, Finding::warn("a", "b", "c"), Finding::fail("d", "e", "f")];
        let text = text(&all);
        assert!(text.contains("FAIL  d      e\n             -> f\n"), "{text}");
        assert!(text.ends_with("1 of 3 failed.\n"), "{text}");
    }
}
