//! `cargo run -p dunlin-interop -- [python] [node] [java] [cpp]`: Dunlin and Apache's libraries call each
//! other; all four languages by default. `./test interop` runs it.

use anyhow::{Context, Result};
use dunlin_interop::node;
use dunlin_interop::run::{Language, run};

fn main() -> Result<()> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    if named == [node::SERVE] {
        return node::serve();
    }
    let known = |name: &String| {
        let found = Language::ALL.into_iter().find(|language| language.name() == name);
        found.with_context(|| format!("'{name}' is none of python, node, java and cpp"))
    };
    let mut languages = named.iter().map(known).collect::<Result<Vec<_>>>()?;
    if languages.is_empty() {
        languages.extend(Language::ALL);
    }
    for language in languages {
        for line in run(language).with_context(|| language.name())? {
            println!("{line}");
        }
    }
    Ok(())
}
