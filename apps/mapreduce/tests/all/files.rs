//! Files as input.

use dunlin_app_mapreduce::{Files, Input, MapReduceError};
use std::path::PathBuf;

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("dunlin-mapreduce-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn read(files: &Files) -> Result<Vec<(String, u64, Vec<u8>)>, MapReduceError> {
    let (mut all, mut buffer) = (Vec::new(), Vec::new());
    for split in 0..files.splits() {
        files.read(split, &mut buffer, &mut |split| {
            all.push((split.source.to_owned(), split.offset, split.bytes.to_vec()));
        })?;
    }
    Ok(all)
}

#[test]
fn splits_have_whole_lines_of_several_files() {
    let folder = folder("lines");
    let [one, empty, two] = ["one", "empty", "two"].map(|name| folder.join(name));
    let text: String = (0..40_000).map(|number| format!("line {number}\n")).collect();
    std::fs::write(&one, &text).unwrap();
    std::fs::write(&empty, b"").unwrap();
    std::fs::write(&two, b"no end").unwrap();
    let files = Files::open([one.clone(), empty, two.clone()], 64 << 10).unwrap();
    assert_eq!(files.bytes(), text.len() as u64 + 6);
    let all = read(&files).unwrap();
    assert_eq!(all.len() as u64, (text.len() as u64).div_ceil(64 << 10) + 1);
    let (last, first) = all.split_last().unwrap();
    assert_eq!((last.0.as_str(), last.1, last.2.as_slice()), (two.to_str().unwrap(), 0, &b"no end"[..]));
    assert!(first.iter().all(|(_, _, bytes)| bytes.starts_with(b"line ") && bytes.ends_with(b"\n")));
    assert_eq!(first.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect::<Vec<_>>(), text.as_bytes());

    // A file that changes, or goes.
    std::fs::write(&two, b"no end at all").unwrap();
    assert!(matches!(read(&files), Err(MapReduceError::Input { .. })));
    std::fs::remove_file(&two).unwrap();
    let error = read(&files).unwrap_err();
    assert!(error.to_string().contains("two"), "{error}");
    assert!(matches!(Files::open([two], 1 << 20), Err(MapReduceError::Input { .. })));
    assert!(matches!(Files::open([folder.clone()], 1 << 20), Err(MapReduceError::Input { .. })));
    assert!(matches!(Files::open([one], 1), Err(MapReduceError::Settings(_))));
    std::fs::remove_dir_all(folder).unwrap();
}
