//! Every planted bug still has its place in the sources. `tests/mutants` builds the sources with the bugs and catches each.

#[path = "../mutants/list.rs"]
mod list;

use std::path::Path;

#[test]
fn every_bug_has_its_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for mutant in list::MUTANTS {
        assert_ne!(mutant.planted(&root), std::fs::read_to_string(root.join(mutant.file)).expect("a source"));
    }
}
