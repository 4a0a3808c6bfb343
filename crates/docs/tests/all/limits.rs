//! Lengths of pages and files, and the count of hard-to-read English. These limits only fall.

use dunlin_docs::{pages, prose};
use std::path::Path;

/// Occurrences of hard-to-read English in 10 000 words of comments.
const COMMENTS_AT_MOST: f64 = 2.0;
/// The same of documents.
const DOCUMENTS_AT_MOST: f64 = 2.0;
/// Columns of a line of a page, outside of tables and code.
const COLUMNS: usize = 120;

#[test]
fn pages_are_short() {
    for page in pages::all() {
        let path = &page.path;
        let most = if path == Path::new("README.md") {
            120
        } else if path == Path::new("docs/architecture.md") {
            250
        } else if path.starts_with("docs/internals") || path.starts_with("docs/guide") {
            200
        } else {
            continue;
        };
        let lines = page.text.lines().count();
        assert!(lines <= most, "{}: {lines} lines; at most {most}", path.display());
    }
}

#[test]
fn lines_are_short() {
    for page in pages::all() {
        let whole = page.path == Path::new("README.md");
        if page.path.starts_with("docs/reference") || page.path.ends_with("SUMMARY.md") {
            continue;
        }
        for (number, line) in page.text.lines().enumerate() {
            let columns = line.chars().count();
            let long = columns > COLUMNS && (whole || !line.starts_with('|'));
            assert!(!long, "{}:{}: {columns} columns; at most {COLUMNS}", page.path.display(), number + 1);
        }
    }
}

#[test]
fn files_are_one_concern() {
    for folder in ["crates", "apps", "examples"] {
        for file in pages::files(&pages::root().join(folder), "rs") {
            let lines = std::fs::read_to_string(&file).expect("a source").lines().count();
            assert!(lines <= 800, "{}: {lines} lines; at most 800: two concerns?", file.display());
        }
    }
}

#[test]
fn comments_are_plain_english() {
    let mut count = prose::Count::default();
    for folder in ["crates", "apps", "examples"] {
        for file in pages::files(&pages::root().join(folder), "rs") {
            let text = std::fs::read_to_string(&file).expect("a source");
            count.add(&file.display().to_string(), &prose::comments(&text));
        }
    }
    check(&count, COMMENTS_AT_MOST);
}

#[test]
fn documents_are_plain_english() {
    let mut count = prose::Count::default();
    for page in pages::all() {
        count.add(&page.path.display().to_string(), &prose::sentences(&page.text));
    }
    check(&count, DOCUMENTS_AT_MOST);
}

#[track_caller]
fn check(count: &prose::Count, at_most: f64) {
    let found = count.per_10_000();
    println!("{} words, {found:.1} occurrences in 10 000", count.words);
    assert!(
        found <= at_most,
        "{found:.1} in 10 000 words, at most {at_most}; CONTRIBUTING says what to write instead:\n{}",
        count.found.join("\n")
    );
}
