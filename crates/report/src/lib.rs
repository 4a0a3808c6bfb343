//! Result documents of measurements: one JSON object with rows, a text table, and plots.
//!
//! Field names end in their unit (`p50_ns`, `size_bytes`, `throughput_ops`, `bytes_per_s`). Table and plots
//! derive the unit from this suffix, so a new field needs no code here.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

mod chart;
mod host;
mod plot;

mod table;
mod tidy;
mod unit;

pub mod statistics;

pub use chart::charts_of;
pub use dunlin_fabric::rates::day;
pub use host::HostDescription;
pub use plot::{Axis, Bars, Chart, Content, Lines, PlotError, draw};

pub use table::{escaped, html, markdown, table};
pub use unit::{Unit, readable};

use statistics::Latency;

/// Returns the commit that this crate was built from; `unknown` outside a checkout.
#[must_use]
pub fn commit() -> &'static str {
    option_env!("DUNLIN_COMMIT").unwrap_or("unknown")
}

/// Named values in a fixed order: a row of a document, or its parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    fields: Vec<(String, Value)>,
}

impl Row {
    /// Creates a row without fields.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a field. An existing field of that name keeps its position. NaN and infinity, which JSON cannot
    /// hold, become null.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        let value = value.into();
        match self.fields.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.fields.push((name.to_owned(), value)),
        }
        self
    }

    /// Sets a field as [`Row::set`] does, and returns the row.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Sets `p50_ns`, `p99_ns`, `p999_ns`, `max_ns` and `samples`.
    pub fn set_latency(&mut self, latency: &Latency) -> &mut Self {
        self.set("p50_ns", rounded(latency.p50_ns()))
            .set("p99_ns", rounded(latency.p99_ns()))
            .set("p999_ns", rounded(latency.p999_ns()))
            .set("max_ns", rounded(latency.max_ns()))
            .set("samples", latency.samples())
    }

    /// Returns the value of a field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Returns the value of a field as a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// Iterates over the fields in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value))
    }
}

/// Rounds to four digits after the point, which is finer than the resolution of the clocks. Values below 1
/// keep four significant digits, so that only zero becomes zero.
pub fn rounded(value: f64) -> f64 {
    if value.abs() < 1.0 {
        return format!("{value:.3e}").parse().unwrap_or(value);
    }
    (value * 1e4).round() / 1e4
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (name, value) in &self.fields {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// One measurement, with the parameters needed to repeat it.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// The command that made the measurement, for example `bench limit`.
    pub name: String,
    /// Commit of the build.
    pub commit: String,
    /// The machine.
    pub host: HostDescription,
    /// The measured fabric, for example `shm`; `none` for floors.
    pub fabric: String,
    /// The parameters of the command, defaults included.
    pub parameters: Row,
    /// The results.
    pub rows: Vec<Row>,
}

impl Document {
    /// Creates a document for this build and this machine, without rows.
    #[must_use]
    pub fn new(name: &str, fabric: &str, parameters: Row) -> Self {
        Self {
            name: name.to_owned(),
            commit: commit().to_owned(),
            host: HostDescription::of_this_host(),
            fabric: fabric.to_owned(),
            parameters,
            rows: Vec::new(),
        }
    }

    /// Formats the rows as an aligned text table.
    #[must_use]
    pub fn table(&self) -> String {
        table(&self.rows)
    }

    /// Writes the document as JSON. The write is atomic, through a temporary file in the same folder.
    ///
    /// # Errors
    /// If the folder cannot be written to. No partial file remains.
    pub fn write_json(&self, path: &Path) -> Result<(), WriteError> {
        write_atomically(path, |out| {
            serde_json::to_writer_pretty(&mut *out, self)?;
            out.write_all(b"\n")
        })
    }

    /// Draws the charts of [`charts_of`] as SVG. The write is atomic.
    ///
    /// # Errors
    /// [`PlotError::Nothing`] when no row has a value to draw; [`PlotError::Write`] if the folder cannot be
    /// written to.
    pub fn write_plot(&self, path: &Path) -> Result<(), PlotError> {
        self.write_charts(path, &charts_of(&self.name, &self.rows))
    }

    /// Draws `charts` as SVG, with this document's machine and commit at the bottom. The write is atomic.
    ///
    /// # Errors
    /// As [`Document::write_plot`].
    pub fn write_charts(&self, path: &Path, charts: &[Chart]) -> Result<(), PlotError> {
        let cores = if self.host.cores == 1 { "core" } else { "cores" };
        let foot = format!("{}, {} {cores}, commit {}", self.host.cpu, self.host.cores, self.commit);
        let drawing = draw(charts, &foot)?;
        Ok(write_atomically(path, |out| out.write_all(drawing.as_bytes()))?)
    }
}

/// The error that prevented a document from being written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}; does its folder exist, and may you write there?", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// Writes a file atomically: a reader sees either the old content or the whole new content.
///
/// # Errors
/// If the folder cannot be written to, or if `content` fails. The old file is kept, and no temporary file
/// remains.
pub fn write_atomically(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    let name = path.file_name().ok_or_else(|| failed(io::Error::from(io::ErrorKind::IsADirectory)))?;
    let mut temporary_name = std::ffi::OsString::from(".");
    temporary_name.push(name);
    temporary_name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary_name);
    let write = || {
        let mut out = BufWriter::new(File::create(&temporary)?);
        content(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|source| {
        // Ignore the error: the file may not exist.
        let _ = std::fs::remove_file(&temporary);
        failed(source)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_four_digits_and_makes_nothing_zero() {
        for (value, wanted) in [
            (1_234.567_89, 1_234.567_9),
            (-0.123_456, -0.1235),
            (193.0 / 54_856_293.0, 3.518e-6),
            (9.999_96e-4, 0.001),
            (0.0, 0.0),
            (5e-324, 5e-324),
        ] {
            assert_eq!(rounded(value), wanted, "{value}");
        }
        assert!(rounded(f64::NAN).is_nan());
        assert_eq!(rounded(f64::INFINITY), f64::INFINITY);
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("dunlin-report-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        folder
    }

    fn example() -> Document {
        let mut latency = Latency::new();
        [100, 120, 140].into_iter().for_each(|value| latency.record(value));
        let mut row = Row::new().with("name", "round_trip_32").with("placement", "near");
        row.set_latency(&latency);
        let mut document = Document::new("bench limit", "none", Row::new().with("size_bytes", 32));
        document.rows.push(row);
        document
    }

    #[test]
    fn json_has_the_agreed_fields() {
        let folder = folder("json");
        let path = folder.join("out.json");
        example().write_json(&path).expect("written");
        let text = std::fs::read_to_string(&path).expect("there");
        let read: Value = serde_json::from_str(&text).expect("JSON");
        for field in ["name", "commit", "host", "fabric", "parameters", "rows"] {
            assert!(!read[field].is_null(), "{field}");
        }
        assert_eq!(read["parameters"]["size_bytes"], 32);
        assert_eq!(read["rows"][0]["p50_ns"], 120.0);
        assert_eq!(read["rows"][0]["samples"], 3);
        assert!(text.find("\"name\"") < text.find("\"rows\""), "fields keep their order");
        assert_eq!(std::fs::read_dir(&folder).expect("folder").count(), 1, "no temporary file stays");
        std::fs::remove_dir_all(folder).expect("cleaned up");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = folder("fail");
        let path = folder.join("out.json");
        std::fs::write(&path, "old").expect("written");
        let error = write_atomically(&path, |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("full"))
        })
        .expect_err("the writer failed");
        assert!(error.to_string().contains("out.json"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "old");
        assert_eq!(std::fs::read_dir(&folder).expect("folder").count(), 1);
        let missing = folder.join("no/such/out.json");
        assert!(example().write_json(&missing).is_err());
        std::fs::remove_dir_all(folder).expect("cleaned up");
    }

    #[test]
    fn plots_are_written() {
        let folder = folder("plot");
        let path = folder.join("out.svg");
        example().write_plot(&path).expect("written");
        let text = std::fs::read_to_string(&path).expect("there");
        assert!(text.contains("bench limit: latency") && text.contains("120 ns") && text.contains(commit()));
        let empty = Document::new("empty", "none", Row::new());
        assert!(matches!(empty.write_plot(&path), Err(PlotError::Nothing)));
        assert_eq!(std::fs::read_to_string(&path).expect("there"), text, "the old plot stays");
        std::fs::remove_dir_all(folder).expect("cleaned up");
    }

    #[test]
    fn rows_keep_order_and_replace() {
        let mut row = Row::new().with("b", 1).with("a", 2);
        row.set("b", 3).set("c", f64::NAN);
        assert_eq!(serde_json::to_string(&row).expect("JSON"), r#"{"b":3,"a":2,"c":null}"#);
        assert_eq!(row.number("b"), Some(3.0));
        assert_eq!(row.number("c"), None);
    }
}
