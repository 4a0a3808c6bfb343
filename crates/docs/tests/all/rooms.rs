//! The structure of the crates: arrows between the rooms of the engine, circles of files.

use dunlin_docs::pages::root;
use dunlin_docs::rooms::{Module, Rooms, Structure, shown};

/// Crates in which no two files name each other, directly or through others.
const WITHOUT_CIRCLES: &[&str] = &["command-testing", "docs", "fabric-shm", "fabric-sim", "hints"];

#[test]
fn arrows_between_the_rooms_of_the_engine_run_down() {
    let krate = root().join("crates/rpc");
    let text = std::fs::read_to_string(krate.join("rooms.txt")).expect("the list of rooms");
    let rooms = Rooms::parse(&text).expect("a list of rooms");
    let structure = Structure::of(&krate.join("src")).expect("the sources of the engine");
    assert!(structure.files() > 50, "{} files were read", structure.files());
    assert!(structure.arrows().len() > 200, "{} arrows were found", structure.arrows().len());
    let found = rooms.violations(&structure);
    assert!(found.is_empty(), "crates/rpc/rooms.txt has no such arrow:\n{}", found.join("\n"));
}

#[test]
fn files_of_these_crates_have_an_order() {
    for krate in WITHOUT_CIRCLES {
        let sources = root().join("crates").join(krate).join("src");
        let structure = Structure::of(&sources).expect("the sources of a crate");
        let named = |circle: &Vec<Module>| circle.iter().map(shown).collect::<Vec<_>>().join(", ");
        let circles: Vec<String> = structure.circles().iter().map(named).collect();
        assert!(circles.is_empty(), "{krate}: files that name each other: {}", circles.join("; "));
    }
}
