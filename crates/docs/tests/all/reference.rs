//! The generated pages are those that the code gives.

use dunlin_docs::{pages, reference};

#[test]
fn generated_pages_are_fresh() {
    for page in reference::generate().expect("generated") {
        let text = std::fs::read_to_string(pages::root().join(page.path)).unwrap_or_default();
        assert!(text == page.text, "{} is stale; write it with: cargo run -p dunlin-docs", page.path);
    }
}

/// The text of an error does not repeat that of its source, which callers print behind it.
#[test]
fn messages_do_not_repeat_their_sources() {
    let (with_source, repeating) = dunlin_docs::sources::messages_with_sources().unwrap();
    assert!(with_source > 80, "{with_source} errors with a source were found");
    assert_eq!(repeating, [""; 0], "errors that repeat their source");
}
