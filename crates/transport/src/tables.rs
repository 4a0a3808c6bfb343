//! Rate tables of devices, measured by `dunlin bench fetch-table` and stored in the user's cache folder:
//! `$XDG_CACHE_HOME/dunlin/fetch-tables` or `~/.cache/dunlin/fetch-tables`, one file per device.
//!
//! Reading a file yields validated rates or an error, whatever the file holds: it may be corrupt, huge, not a
//! regular file, owned by another user, or of another device. A client without a usable file works without
//! measured rates, and a warning names the file and the remedy.

use dunlin_fabric::WithSources;
use dunlin_fabric::{BadRates, ConnectionRow, DeviceIdentity, RateRow, Rates, RatesBook, RatesSource};
use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// The version of the file format.
const VERSION: u32 = 1;
/// The maximum file size. A table of 64 rows takes about 10 KiB.
const MAX_BYTES: u64 = 64 * 1024;
/// The maximum length of the device description in a file name.
const NAME_BYTES: usize = 80;

/// A folder of rate tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    folder: PathBuf,
}

/// The error of reading or writing a table.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// The environment names no folder for tables.
    #[error(
        "there is no folder for measured tables: neither XDG_CACHE_HOME nor HOME is an absolute path; set one of them"
    )]
    NoFolder,
    /// An error of the operating system.
    #[error("{} cannot be read or written", path.display())]
    System {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is not a regular file that only this user can write.
    #[error("{} is no file of this user's alone, but {what}; remove it", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The kind of file found.
        what: &'static str,
    },
    /// The file is not a table.
    #[error("{} holds no table: {why}; remove it, or measure again with `dunlin bench fetch-table`", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file has another format version.
    #[error(
        "{} is of version {theirs} of the format, not {VERSION}: measure again with `dunlin bench fetch-table`", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        theirs: u32,
    },
    /// The file belongs to another device.
    #[error(
        "{} tells of another device ({theirs}): remove it, or measure again with `dunlin bench fetch-table`", path.display()
    )]
    OtherDevice {
        /// The file.
        path: PathBuf,
        /// The device in the file.
        theirs: String,
    },
    /// The rates in the file are invalid.
    #[error("{}: {bad}; remove it, or measure again with `dunlin bench fetch-table`", path.display())]
    Rates {
        /// The file.
        path: PathBuf,
        /// The invalid rate and the reason.
        bad: BadRates,
    },
}

/// The content of a file.
#[derive(Debug, Deserialize, Serialize)]
struct Document {
    version: u32,
    device: Device,
    unix_time_s: u64,
    rows: Vec<Row>,
    /// Absent from tables of versions that did not measure it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    connections: Vec<Connections>,
}

/// The part that is common to all versions.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

#[derive(Debug, Deserialize, Serialize)]
struct Device {
    fabric: String,
    properties: Vec<(String, String)>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Row {
    size_bytes: u32,
    reads_per_s: f64,
    writes_per_s: f64,
    read_ns: f64,
}

/// The rate by connections.
#[derive(Debug, Deserialize, Serialize)]
struct Connections {
    connections: u32,
    writes_per_s: f64,
}

impl Tables {
    /// Returns the tables in the user's cache folder, which need not exist.
    pub fn of_user() -> Result<Self, TableError> {
        Self::of_variables(|name| std::env::var_os(name))
    }

    fn of_variables(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, TableError> {
        // Relative paths must be ignored (XDG base directory specification).
        let folder = |name| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
        Ok(Self::in_folder(cache.ok_or(TableError::NoFolder)?.join("dunlin").join("fetch-tables")))
    }

    /// Returns the tables in a folder, which need not exist.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Tables { folder: folder.into() }
    }

    /// Returns the path of a device's table, which need not exist.
    pub fn path(&self, device: &DeviceIdentity) -> PathBuf {
        let words = device.to_string();
        let plain = |byte: char| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { '-' };
        let mut name = String::new();
        for letter in words.chars().map(plain) {
            if !(letter == '-' && name.ends_with('-')) && name.len() < NAME_BYTES {
                name.push(letter);
            }
        }
        // The name may be truncated; the file itself identifies its device.
        self.folder.join(format!("{}-{:016x}.json", name.trim_matches('-'), xxh3_64(words.as_bytes())))
    }

    /// Returns the rates of a device, or `None` if it has no table. Blocks to read a small file.
    ///
    /// # Errors
    /// The file exists but cannot be used.
    pub fn load(&self, device: &DeviceIdentity) -> Result<Option<Rates>, TableError> {
        let path = self.path(device);
        match read(&path)? {
            Some(text) => parse(&path, device, &text).map(Some),
            None => Ok(None),
        }
    }

    /// Writes the measured rates of a device, by size and by connections (if they were measured), atomically, replacing an existing table. Returns the file's
    /// path.
    ///
    /// # Errors
    /// The folder cannot be created or written to, or the rates are invalid.
    pub fn save(
        &self,
        device: &DeviceIdentity,
        (rows, connections): (&[RateRow], &[ConnectionRow]),
        unix_time_s: u64,
    ) -> Result<PathBuf, TableError> {
        let path = self.path(device);
        let system = |path: &Path| {
            let path = path.to_owned();
            move |source| TableError::System { path, source }
        };
        let document = Document {
            version: VERSION,
            device: Device { fabric: device.fabric.clone(), properties: device.properties.clone() },
            unix_time_s,
            rows: rows
                .iter()
                .map(|row| Row {
                    size_bytes: row.bytes,
                    reads_per_s: row.reads,
                    writes_per_s: row.writes,
                    read_ns: row.read_nanos,
                })
                .collect(),
            connections: connections
                .iter()
                .map(|row| Connections { connections: row.connections, writes_per_s: row.writes })
                .collect(),
        };
        let mut text =
            serde_json::to_vec_pretty(&document).map_err(|error| system(&path)(io::Error::other(error)))?;
        text.push(b'\n');
        // Parsed again, so that the file holds nothing that clients would reject.
        parse(&path, device, &text)?;
        let folder = &self.folder;
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(system(folder))?;
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(system(folder))?;
        file.write_all(&text).and_then(|()| file.as_file().sync_all()).map_err(system(&path))?;
        file.persist(&path).map_err(|error| system(&path)(error.error))?;
        Ok(path)
    }
}

impl RatesBook for Tables {
    fn rates_of(&self, device: &DeviceIdentity) -> Option<Rates> {
        match self.load(device) {
            Ok(rates) => rates,
            Err(error) => {
                tracing::warn!(target: "dunlin::transport", "a measured table is not used: {}", WithSources(&error));
                None
            }
        }
    }
}

/// Returns the content of a file; `None` if it does not exist. Does not follow symbolic links, and does not
/// block on a pipe.
fn read(path: &Path) -> Result<Option<Vec<u8>>, TableError> {
    let system = |source: io::Error| TableError::System { path: path.to_owned(), source };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => {
            return Err(TableError::NotOurs { path: path.to_owned(), what: "a symbolic link" });
        }
        Err(errno) => return Err(system(errno.into())),
    };
    let about = file.metadata().map_err(system)?;
    let wrong = if !about.is_file() {
        Some("a folder, pipe, socket or device")
    } else if ![0, rustix::process::geteuid().as_raw()].contains(&about.uid()) {
        Some("another user's")
    } else if about.mode() & 0o022 != 0 {
        Some("one that others may write")
    } else {
        None
    };
    if let Some(what) = wrong {
        return Err(TableError::NotOurs { path: path.to_owned(), what });
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(system)?;
    if text.len() as u64 > MAX_BYTES {
        let why = format!("it is longer than {MAX_BYTES} bytes");
        return Err(TableError::Broken { path: path.to_owned(), why });
    }
    Ok(Some(text))
}

/// Parses the rates in a file's untrusted text.
fn parse(path: &Path, device: &DeviceIdentity, text: &[u8]) -> Result<Rates, TableError> {
    let broken =
        |error: serde_json::Error| TableError::Broken { path: path.to_owned(), why: error.to_string() };
    let head: Head = serde_json::from_slice(text).map_err(broken)?;
    if head.version != VERSION {
        return Err(TableError::Version { path: path.to_owned(), theirs: head.version });
    }
    let document: Document = serde_json::from_slice(text).map_err(broken)?;
    let theirs = DeviceIdentity { fabric: document.device.fabric, properties: document.device.properties };
    if theirs != *device {
        let theirs = theirs.to_string().escape_debug().take(200).collect();
        return Err(TableError::OtherDevice { path: path.to_owned(), theirs });
    }
    let rows = document.rows.iter().map(|row| RateRow {
        bytes: row.size_bytes,
        reads: row.reads_per_s,
        writes: row.writes_per_s,
        read_nanos: row.read_ns,
    });
    let source = RatesSource::Measured { device: device.to_string(), unix_time_s: document.unix_time_s };
    let connections = document.connections.iter();
    let connections =
        connections.map(|row| ConnectionRow { connections: row.connections, writes: row.writes_per_s });
    Rates::new(rows.collect(), source)
        .and_then(|rates| rates.with_connections(connections.collect()))
        .map_err(|bad| TableError::Rates { path: path.to_owned(), bad })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn device() -> DeviceIdentity {
        DeviceIdentity::of("rdma").with("device", "mlx5_0").with("firmware", "16.35 / \"x\"")
    }

    fn rows() -> Vec<RateRow> {
        Rates::rf_rpc().rows().to_vec()
    }

    fn folder() -> (tempfile::TempDir, Tables) {
        let folder = tempfile::tempdir().unwrap();
        let tables = Tables::in_folder(folder.path().join("a").join("b"));
        (folder, tables)
    }

    /// Loads the device's table from a file with this content.
    fn loaded(text: &[u8]) -> Result<Option<Rates>, TableError> {
        let (_folder, tables) = folder();
        tables.save(&device(), (&rows(), &[]), 7).unwrap();
        std::fs::write(tables.path(&device()), text).unwrap();
        tables.load(&device())
    }

    fn good() -> String {
        let (_folder, tables) = folder();
        std::fs::read_to_string(tables.save(&device(), (&rows(), &[]), 7).unwrap()).unwrap()
    }

    #[test]
    fn what_was_kept_comes_back_and_only_for_its_device() {
        let (_folder, tables) = folder();
        assert!(tables.load(&device()).unwrap().is_none());
        let path = tables.save(&device(), (&rows(), &[]), 1_795_305_600).unwrap();
        let rates = tables.load(&device()).unwrap().unwrap();
        assert_eq!(rates.rows(), rows());
        assert!(rates.source().to_string().starts_with("measured on 2026-11-22 for rdma: device mlx5_0"));
        let other = device().with("port", 2);
        assert!(tables.load(&other).unwrap().is_none());
        // A second measurement replaces the file and leaves no other file in the folder.
        let [first, second] = [rows()[0], rows()[1]];
        assert_eq!(tables.save(&device(), (&[first, second], &[]), 9).unwrap(), path);
        assert_eq!(tables.load(&device()).unwrap().unwrap().rows().len(), 2);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        // A file copied to the path of another device's table.
        std::fs::copy(&path, tables.path(&other)).unwrap();
        assert!(matches!(tables.load(&other), Err(TableError::OtherDevice { .. })));
    }

    #[test]
    fn rates_by_connections_come_back_and_may_be_absent() {
        let (_folder, tables) = folder();
        let row = |connections, writes| ConnectionRow { connections, writes };
        let connections = [row(8, 20e6), row(64, 19e6), row(256, 2e6)];
        let path = tables.save(&device(), (&rows(), &connections), 7).unwrap();
        assert_eq!(tables.load(&device()).unwrap().unwrap().connections(), connections);
        let text = std::fs::read_to_string(&path).unwrap();
        for (bad, says) in [
            (text.replace("\"connections\": 64", "\"connections\": 8"), "row 1 by connections"),
            (text.replace("20000000.0", "-1.0"), "row 0 by connections"),
            (text.replace("20000000.0", "\"fast\""), "holds no table"),
        ] {
            std::fs::write(&path, bad).unwrap();
            assert!(tables.load(&device()).unwrap_err().to_string().contains(says), "{says}");
        }
        // A table of a version without them.
        assert!(!good().contains("connections"));
        std::fs::write(&path, good()).unwrap();
        assert!(tables.load(&device()).unwrap().unwrap().connections().is_empty());
        assert!(tables.save(&device(), (&rows(), &connections[..1]), 7).is_err());
    }

    #[test]
    fn nothing_is_kept_that_would_be_refused() {
        let (_folder, tables) = folder();
        let bad = [RateRow { reads: f64::NAN, ..rows()[0] }, rows()[1]];
        assert!(tables.save(&device(), (&bad, &[]), 0).is_err());
        assert!(matches!(tables.save(&device(), (&rows()[..1], &[]), 0), Err(TableError::Rates { .. })));
        assert!(!tables.folder.exists());
    }

    #[test]
    fn files_that_are_no_tables_are_errors_that_name_them() {
        for (text, says) in [
            (String::new(), "holds no table"),
            ("[]".to_owned(), "holds no table"),
            ("{\"version\":1}".to_owned(), "holds no table"),
            (good().replace("\"version\": 1", "\"version\": 2"), "version 2"),
            (good().replace("\"version\": 1", "\"version\": -1"), "holds no table"),
            (good().replace("mlx5_0", "mlx5_1"), "another device"),
            (good().replace("11260000.0", "0.0"), "row 0"),
            (good().replace("11260000.0", "-5.0"), "row 0"),
            (good().replace("11260000.0", "1e999"), "holds no table"),
            (good().replace("11260000.0", "null"), "holds no table"),
            (good().replace("\"size_bytes\": 256", "\"size_bytes\": 16"), "row 1"),
            (good().replace("\"size_bytes\": 256", "\"size_bytes\": 1e3"), "holds no table"),
            (" ".repeat(70_000), "longer than"),
            ("[".repeat(60_000), "holds no table"),
        ] {
            let error = loaded(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(".json"), "{says}: {error}");
        }
        assert!(loaded(good().as_bytes()).unwrap().is_some());
    }

    #[test]
    fn what_is_no_file_of_ours_is_not_read() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let (_folder, tables) = folder();
        let path = tables.save(&device(), (&rows(), &[]), 7).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(tables.load(&device()), Err(TableError::NotOurs { .. })));
        std::fs::remove_file(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(matches!(tables.load(&device()), Err(TableError::NotOurs { .. })));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(tables.load(&device()), Err(TableError::NotOurs { .. })));
        std::fs::remove_dir(&path).unwrap();
        // The pipe has no writer; reading must not block.
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(tables.load(&device()), Err(TableError::NotOurs { .. })));
        assert!(tables.rates_of(&device()).is_none(), "a client goes without");
    }

    #[test]
    fn the_folder_is_the_users_cache() {
        let of = |pairs: &'static [(&str, &str)]| {
            let get = |wanted: &str| {
                pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| OsString::from(value))
            };
            Tables::of_variables(get).map(|tables| tables.folder)
        };
        let cache = of(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]).unwrap();
        assert_eq!(cache, Path::new("/c/dunlin/fetch-tables"));
        let home = of(&[("XDG_CACHE_HOME", "c"), ("HOME", "/h")]).unwrap();
        assert_eq!(home, Path::new("/h/.cache/dunlin/fetch-tables"));
        assert!(matches!(of(&[("HOME", "")]), Err(TableError::NoFolder)));
    }

    #[test]
    fn names_of_files_are_plain_and_differ() {
        let tables = Tables::in_folder("/t");
        let odd = DeviceIdentity::of("shm").with("processor", "../../\0 A(R) é ".repeat(30));
        let name = tables.path(&odd).file_name().unwrap().to_str().unwrap().to_owned();
        assert!(
            name.len() < 120 && name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c)),
            "{name}"
        );
        assert_eq!(tables.path(&odd).parent(), Some(Path::new("/t")));
        assert_ne!(tables.path(&odd), tables.path(&odd.with("cores", 2)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_are_borne(text in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(!matches!(loaded(&text), Ok(Some(_))));
        }

        /// A valid file with one changed byte is refused or yields validated rates.
        #[test]
        fn changed_files_are_borne(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut text = good().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            if let Ok(Some(rates)) = loaded(&text) {
                prop_assert!(Rates::new(rates.rows().to_vec(), RatesSource::Given).is_ok());
            }
        }
    }
}
