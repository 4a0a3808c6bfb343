//! The functions of a job, which a user writes.

/// The input of one map task.
#[derive(Clone, Copy, Debug)]
pub struct Split<'a> {
    /// The name of the source, such as a file.
    pub source: &'a str,
    /// The offset of the first byte in the source.
    pub offset: u64,
    /// Whole records.
    pub bytes: &'a [u8],
}

/// The functions of a job (section 8.2, after Phoenix). All processes of a job have the same program.
///
/// The results do not depend on the number of workers, on the order of tasks, or on tasks that were repeated, if
/// [`combine`](Program::combine) is associative and commutative. A panic of a function ends the job.
pub trait Program: Send + Sync + 'static {
    /// The name and the parameters. Processes with different ones do not work together.
    fn name(&self) -> String;

    /// Emits keys with values for a part of the input.
    fn map(&self, split: Split<'_>, emit: &mut dyn FnMut(&[u8], &[u8]));

    /// Adds the value of a key to the one that is held. A worker calls it while it maps, and a reducer for the values of
    /// several workers.
    fn combine(&self, key: &[u8], held: &mut Vec<u8>, value: &[u8]);

    /// Turns the combined value of a key into its result, by default the value itself; without one the key is left out.
    fn reduce(&self, _key: &[u8], value: Vec<u8>) -> Option<Vec<u8>> {
        Some(value)
    }
}
