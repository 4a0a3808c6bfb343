//! The generated pages are those that the code gives.

use dunlin_docs::{pages, reference};

#[test]
fn generated_pages_are_fresh() {
    for page in reference::generate().expect("generated") {
        let text = std::fs::read_to_string(pages::root().join(page.path)).unwrap_or_default();
        assert!(text == page.text, "{} is stale; write it with: cargo run -p dunlin-docs", page.path);
    }
}
