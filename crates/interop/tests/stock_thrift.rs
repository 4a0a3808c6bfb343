//! Apache's libraries for Python and Node call Dunlin's server, and Dunlin's client calls their servers.
//! Missing libraries are installed. For Java and C++: `cargo run -p dunlin-interop -- java cpp`.

use dunlin_interop::run::{Language, run};

fn passes(language: Language) {
    let lines = run(language).unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(lines.len(), 8, "both ways on four wires: {lines:#?}");
}

#[test]
fn python() {
    passes(Language::Python);
}

#[test]
fn node() {
    passes(Language::Node);
}
