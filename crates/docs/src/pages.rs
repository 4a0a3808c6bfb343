//! The Markdown pages of the project.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::path::{Path, PathBuf};

/// A page.
#[derive(Debug)]
pub struct Page {
    /// The path below the root of the project.
    pub path: PathBuf,
    /// The text.
    pub text: String,
}

/// A block of code with the comment before it.
#[derive(Debug, Default)]
pub struct Block {
    /// The word behind the fence.
    pub language: String,
    /// The source that the comment `<!-- from PATH -->` before the block names.
    pub from: Option<String>,
    /// The code.
    pub code: String,
}

/// The root of the project.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All pages: those in the root, and those below `docs/`, in the order of their paths.
#[must_use]
pub fn all() -> Vec<Page> {
    let root = root();
    let mut paths: Vec<PathBuf> = files(&root.join("docs"), "md");
    let entries = std::fs::read_dir(&root).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    paths.sort();
    let page = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        Page { path: path.strip_prefix(&root).map_or(path.clone(), Path::to_path_buf), text }
    };
    paths.into_iter().map(page).collect()
}

/// The files below a folder with this extension, without build output.
#[must_use]
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if !matches!(
                path.file_name().and_then(|name| name.to_str()),
                Some("target" | ".git" | "node_modules")
            ) {
                found.extend(files(&path, extension));
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

impl Page {
    /// The blocks of code.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut from, mut open) = (Vec::new(), None, None::<Block>);
        for event in parser(&self.text) {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(word) => word.to_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    open = Some(Block { language, from: from.take(), code: String::new() });
                }
                Event::Text(text) => {
                    if let Some(block) = &mut open {
                        block.code.push_str(&text);
                    }
                }
                Event::End(TagEnd::CodeBlock) => blocks.extend(open.take()),
                Event::Html(html) => {
                    let comment =
                        html.trim().strip_prefix("<!-- from ").and_then(|rest| rest.strip_suffix(" -->"));
                    from = comment.map(str::to_owned);
                }
                Event::Start(Tag::HtmlBlock) | Event::End(TagEnd::HtmlBlock) => {}
                _ => from = None,
            }
        }
        blocks
    }

    /// The targets of links and pictures.
    #[must_use]
    pub fn links(&self) -> Vec<String> {
        let target = |event| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some(dest_url.to_string())
            }
            _ => None,
        };
        parser(&self.text).filter_map(target).collect()
    }

    /// The anchors of the headings, as GitHub and mdBook make them.
    #[must_use]
    pub fn anchors(&self) -> Vec<String> {
        let (mut anchors, mut heading) = (Vec::new(), None::<String>);
        for event in parser(&self.text) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take().map(|text| anchor(&text))),
                _ => {}
            }
        }
        anchors
    }
}

fn anchor(heading: &str) -> String {
    let kept = |letter: char| match letter {
        ' ' => Some('-'),
        letter if letter.is_alphanumeric() || matches!(letter, '-' | '_') => {
            Some(letter.to_ascii_lowercase())
        }
        _ => None,
    };
    heading.trim().chars().filter_map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_know_their_source() {
        let text = "# A `b`: c\n\n<!-- from x.rs -->\n```rust\nlet a = 1;\n```\n\ntext [l](y.md#z)\n\n```sh\nls\n```\n";
        let page = Page { path: "p.md".into(), text: text.to_owned() };
        let blocks = page.blocks();
        assert_eq!((blocks[0].language.as_str(), blocks[0].from.as_deref()), ("rust", Some("x.rs")));
        assert_eq!((blocks[1].language.as_str(), blocks[1].from.as_deref()), ("sh", None));
        assert_eq!(blocks[0].code, "let a = 1;\n");
        assert_eq!(page.links(), ["y.md#z"]);
        assert_eq!(page.anchors(), ["a-b-c"]);
    }
}
