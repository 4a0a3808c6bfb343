//! Code in pages is code that the workspace compiles.

use dunlin_docs::excerpts::is_excerpt;
use dunlin_docs::pages::{self, Block};

/// Code, and every other block whose source a comment names.
fn is_checked(block: &Block) -> bool {
    matches!(&*block.language, "rust" | "thrift") || block.from.is_some()
}

#[test]
fn blocks_of_code_are_excerpts_of_sources() {
    let mut wrong = Vec::new();
    let mut blocks = 0;
    for page in pages::all() {
        for block in page.blocks().into_iter().filter(is_checked) {
            blocks += 1;
            let first = block.code.lines().next().unwrap_or_default().to_owned();
            let Some(from) = block.from else {
                wrong.push(format!(
                    "{}: no comment names the source of the block '{first}'",
                    page.path.display()
                ));
                continue;
            };
            match std::fs::read_to_string(pages::root().join(&from)) {
                Ok(source) if is_excerpt(&block.code, &source) => {}
                Ok(_) => wrong
                    .push(format!("{}: the block '{first}' does not stand in {from}", page.path.display())),
                Err(error) => wrong.push(format!("{}: {from}: {error}", page.path.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(blocks > 20, "{blocks} blocks were checked");
}

#[test]
fn blocks_have_a_language() {
    let known = ["rust", "thrift", "console", "sh", "text", "toml"];
    for page in pages::all() {
        for block in page.blocks() {
            assert!(
                known.contains(&&*block.language),
                "{}: a block of '{}'",
                page.path.display(),
                block.language
            );
        }
    }
}
