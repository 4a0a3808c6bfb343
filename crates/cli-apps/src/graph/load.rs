//! The graph of a job: from files, or generated.

use clap::Args;
use dunlin_app_graph::Edges;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::Failure;
use dunlin_command::progress;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

/// Options that select the graph.
#[derive(Args, Clone, Debug)]
pub(super) struct SourceArguments {
    /// Files of edges
    #[arg(required_unless_present = "rmat")]
    files: Vec<PathBuf>,
    /// Files are pairs of 32-bit little-endian numbers
    #[arg(long)]
    binary: bool,
    /// Number of vertices [default: as the largest number in the files implies]
    #[arg(long, value_name = "N", conflicts_with = "rmat")]
    vertices: Option<u32>,
    /// Generate an R-MAT graph of 2^SCALE vertices
    #[arg(long, value_name = "SCALE", conflicts_with = "files", value_parser = clap::value_parser!(u32).range(0..=28))]
    rmat: Option<u32>,
    /// Edges of a generated graph for each vertex
    #[arg(long, default_value_t = 16, value_name = "N", requires = "rmat")]
    each: u32,
    /// Seed of a generated graph
    #[arg(long, default_value_t = 1, value_name = "N", requires = "rmat")]
    seed: u64,
}

/// A file that is read with progress, until a signal comes.
struct Reading<'a> {
    file: File,
    bar: &'a ProgressBar,
    interrupt: &'a Interrupt,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.interrupt.received().is_some() {
            return Err(io::Error::other("stopped by a signal"));
        }
        let read = self.file.read(buffer)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}

impl SourceArguments {
    pub(super) fn load(&self, interrupt: &Interrupt) -> Result<Edges, Failure> {
        if let Some(scale) = self.rmat {
            let bar = progress::counting(u64::from(self.each) << scale, "edges");
            let edges = Edges::rmat_while(scale, self.each, self.seed, |edges| {
                bar.set_position(edges);
                interrupt.received().is_none()
            });
            bar.finish_and_clear();
            interrupt.check()?;
            return edges.map_err(Failure::new);
        }
        let mut edges = Edges::default();
        for path in &self.files {
            edges = edges.join(self.read(path, interrupt)?);
        }
        Ok(edges)
    }

    fn read(&self, path: &Path, interrupt: &Interrupt) -> Result<Edges, Failure> {
        let failed =
            |error: io::Error| Failure::new(error).context(format!("cannot read {}", path.display()));
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?;
        let bar = progress::bytes(length.is_file().then_some(length.len()), &path.display().to_string());
        let reading = Reading { file, bar: &bar, interrupt };
        let edges = if self.binary {
            Edges::read_binary(reading, self.vertices)
        } else {
            Edges::read_text(BufReader::with_capacity(1 << 18, reading), self.vertices)
        };
        bar.finish_and_clear();
        interrupt.check()?;
        edges.map_err(|error| Failure::new(error).context(path.display()))
    }
}
