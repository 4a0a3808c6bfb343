//! Copies of the IDL files that pilota's generator can read: Dunlin's hints are blanked, values are
//! completed, and includes refer to the copies.

use dunlin_idl::{Document, File};
use std::io;
use std::path::{Path, PathBuf};

/// Writes the copies with these texts below `folder`. Each copy has its own folder, since file names may
/// repeat. Returns the path of the first copy, which is that of the document's own file.
pub(crate) fn write(document: &Document, texts: &[String], folder: &Path) -> io::Result<PathBuf> {
    let paths: Vec<PathBuf> = document
        .files
        .iter()
        .enumerate()
        .map(|(number, file)| {
            let name = file.path.file_name().unwrap_or_default();
            folder.join(number.to_string()).join(name)
        })
        .collect();
    for ((file, text), path) in document.files.iter().zip(texts).zip(&paths) {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, with_includes(file, text, &paths))?;
        // pilota makes cargo watch the files that it reads. A copy gets its original's modification time, so
        // that cargo does not always find it changed.
        if let Ok(time) = std::fs::metadata(&file.path).and_then(|metadata| metadata.modified()) {
            std::fs::File::options().write(true).open(path)?.set_modified(time)?;
        }
    }
    paths.into_iter().next().ok_or_else(|| io::Error::other("a document has a file"))
}

/// Returns the text of a file with the paths of its includes replaced.
fn with_includes(file: &File, text: &str, paths: &[PathBuf]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut includes = file.includes.iter().peekable();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let mut rest = line;
        while let Some(include) = includes.next_if(|include| include.place.line as usize == number + 1) {
            let Some(start) = rest.find(&include.path) else { break };
            out.push_str(&rest[..start]);
            out.push_str(&paths[include.file.0].to_string_lossy());
            rest = &rest[start + include.path.len()..];
        }
        out.push_str(rest);
    }
    out
}
