//! Command lines in pages are understood by the commands.

use dunlin_command_testing::program;
use dunlin_docs::pages;
use std::process::Command;

/// The words of a line up to a comment, a pipe or a redirection, as far as it calls `dunlin`.
fn words(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start_matches("$ ").trim();
    let rest = ["dunlin ", "target/release/dunlin ", "cargo run --release -- "]
        .into_iter()
        .find_map(|start| line.strip_prefix(start))?;
    let end =
        [" #", " |", " >", " <", " && ", " &", ";"].into_iter().filter_map(|stop| rest.find(stop)).min();
    let words = rest[..end.unwrap_or(rest.len())].split_whitespace();
    Some(words.map(|word| word.trim_matches(['\'', '"']).to_owned()).collect())
}

/// The program that runs a command, and its words.
fn of(mut words: Vec<String>) -> (&'static str, Vec<String>) {
    match words.first().map(String::as_str) {
        Some("bench") => ("dunlin-bench", words.split_off(1)),
        Some("sim") => ("dunlin-sim", words.split_off(1)),
        Some("explain" | "gen") => ("dunlin-idl", words),
        Some("node" | "tier") => ("dunlin-tier", words),
        Some("apps") => ("dunlin-apps", words),
        _ => ("dunlin", words),
    }
}

#[test]
fn command_lines_are_understood() {
    let (mut wrong, mut lines) = (Vec::new(), 0);
    for page in pages::all() {
        for block in page.blocks().into_iter().filter(|block| matches!(&*block.language, "console" | "sh")) {
            for line in block.code.lines() {
                let Some(words) = words(line) else { continue };
                lines += 1;
                let (name, words) = of(words);
                let parse = ["internal", "parse"].map(str::to_owned).into_iter().chain(words);
                let output = Command::new(program(name)).args(parse).output().expect("it runs");
                if !output.status.success() {
                    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                    wrong.push(format!("{}: {line}\n{errors}", page.path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(lines > 50, "{lines} command lines were checked");
}

#[test]
fn a_wrong_option_is_not_understood() {
    for (name, words) in [
        ("dunlin", ["ping", "--sise"]),
        ("dunlin-sim", ["figure", "--nope"]),
        ("dunlin-idl", ["explain", "--x"]),
    ] {
        let status = Command::new(program(name))
            .args(["internal", "parse"])
            .args(words)
            .output()
            .expect("it runs")
            .status;
        assert_eq!(status.code(), Some(2), "{name} {words:?}");
    }
}

#[test]
fn examples_that_pages_run_exist() {
    for page in pages::all() {
        for (at, option) in page.text.match_indices("--example ") {
            let name: String = page.text[at + option.len()..]
                .chars()
                .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
                .collect();
            let root = pages::root();
            let file = format!("{name}.rs");
            let mut folders = vec![root.join("examples")];
            for crates in ["crates", "apps"] {
                let entries = std::fs::read_dir(root.join(crates)).expect("a folder").flatten();
                folders.extend(entries.map(|entry| entry.path().join("examples")));
            }
            let found = name.is_empty()
                || name.chars().all(char::is_uppercase)
                || folders
                    .iter()
                    .any(|folder| folder.join(&file).exists() || folder.join(&name).join("main.rs").exists());
            assert!(found, "{}: there is no example {name}", page.path.display());
        }
    }
}
