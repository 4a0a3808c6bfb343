//! The structure of the crates: arrows between the rooms of the engine, circles of files.

use dunlin_docs::pages::root;
use dunlin_docs::rooms::{Rooms, Structure};

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
