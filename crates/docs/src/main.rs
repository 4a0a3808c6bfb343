//! `cargo run -p dunlin-docs`: writes the generated pages. With `--check` it fails where one is stale.

use anyhow::{Context as _, Result, bail};
use dunlin_docs::{pages, reference};

fn main() -> Result<()> {
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(_) => bail!("usage: dunlin-docs [--check]"),
    };
    for page in reference::generate()? {
        let path = pages::root().join(page.path);
        if std::fs::read_to_string(&path).is_ok_and(|text| text == page.text) {
            continue;
        }
        if check {
            bail!("{} is stale; write it with: cargo run -p dunlin-docs", page.path);
        }
        std::fs::write(&path, page.text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", page.path);
    }
    Ok(())
}
