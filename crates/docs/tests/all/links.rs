//! Links resolve, and the table of contents is whole.

use dunlin_docs::pages;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn files_and_anchors_of_links_exist() {
    let pages = pages::all();
    let anchors: HashMap<PathBuf, Vec<String>> =
        pages.iter().map(|page| (page.path.clone(), page.anchors())).collect();
    let mut wrong = Vec::new();
    for page in &pages {
        for link in page.links() {
            if link.starts_with("http://") || link.starts_with("https://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.path.clone(),
                file => plain(&page.path.parent().unwrap_or(Path::new("")).join(file)),
            };
            if !pages::root().join(&target).exists() {
                wrong.push(format!("{}: {link}: there is no {}", page.path.display(), target.display()));
            } else if !anchor.is_empty()
                && !anchors.get(&target).is_some_and(|anchors| anchors.iter().any(|known| known == anchor))
            {
                wrong.push(format!(
                    "{}: {link}: {} has no such heading",
                    page.path.display(),
                    target.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_of_contents_lists_every_page_of_the_book() {
    let pages = pages::all();
    let summary = pages.iter().find(|page| page.path == Path::new("docs/SUMMARY.md")).expect("the summary");
    let listed: Vec<PathBuf> =
        summary.links().iter().map(|link| plain(&Path::new("docs").join(link))).collect();
    for page in &pages {
        if page.path.starts_with("docs") && page.path != summary.path {
            assert!(listed.contains(&page.path), "docs/SUMMARY.md does not list {}", page.path.display());
        }
    }
}
