//! Vertex programs, and the plain values that they store in regions.

use std::fmt::Debug;

/// A value of a fixed size that is stored in regions. Every pattern of bits is a value, so bytes that somebody else wrote
/// are never invalid.
pub trait Plain: Copy + Debug + Send + Sync + 'static {
    /// The length of the encoding in bytes.
    const BYTES: usize;
    /// Encodes the value into `bytes`, which has [`BYTES`](Plain::BYTES) bytes.
    fn put(self, bytes: &mut [u8]);
    /// Decodes a value from `bytes`, which has [`BYTES`](Plain::BYTES) bytes.
    fn take(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($number:ty),*) => {$(
        impl Plain for $number {
            const BYTES: usize = size_of::<$number>();

            #[inline]
            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn take(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$number>()];
                own.copy_from_slice(bytes);
                <$number>::from_le_bytes(own)
            }
        }
    )*};
}

plain!(u32, u64, f64);

/// A message of a vertex to its neighbours: at most 64 bits.
pub trait Message: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// Returns the message as a word.
    fn to_bits(self) -> u64;
    /// Returns the message of a word. Every word is a message.
    fn from_bits(bits: u64) -> Self;
}

impl Message for f64 {
    fn to_bits(self) -> u64 {
        f64::to_bits(self)
    }

    fn from_bits(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
}

impl Message for u32 {
    fn to_bits(self) -> u64 {
        self.into()
    }

    /// The lower half of the word.
    fn from_bits(bits: u64) -> u32 {
        bits as u32
    }
}

/// A vertex as a program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vertex {
    /// Its number.
    pub id: u32,
    /// The number of edges that leave it, with duplicates and self-loops.
    pub degree: u32,
}

/// A vertex program: gather, apply, scatter (PowerGraph, OSDI 2012). In each step a vertex gathers the messages of the
/// vertices with an edge to it, in the order of their numbers, applies the sum, and scatters a message to all vertices
/// to which it has an edge.
///
/// With delta caching ([`CACHES`](Program::CACHES)), the gathered sum of a vertex stays from step to step, messages are
/// changes, and the vertices that scatter nothing cost nothing. Then `apply` and `scatter` must have no effect on a vertex
/// whose sum is as before, because the engine leaves it out.
pub trait Program: Send + Sync + 'static {
    /// The data of a vertex.
    type Data: Plain;
    /// A message, and a sum of messages.
    type Message: Message;
    /// The sum of no messages. A message that equals it is not sent.
    const NONE: Self::Message;
    /// Whether sums are kept. Without, each vertex gathers all its neighbours' messages in each step, and each sends one.
    const CACHES: bool;
    /// The name, which all members of a job compare.
    const NAME: &'static str;

    /// Returns the data of a vertex before the first step, which begins with a scatter.
    fn start(&self, vertex: Vertex) -> Self::Data;
    /// Returns a neighbour's message as it arrives over one edge.
    fn gather(&self, message: Self::Message) -> Self::Message;
    /// Adds two messages.
    fn sum(&self, one: Self::Message, other: Self::Message) -> Self::Message;
    /// Changes the data of a vertex by its sum.
    fn apply(&self, vertex: Vertex, gathered: Self::Message, data: &mut Self::Data);
    /// Returns the message to the neighbours; [`NONE`](Program::NONE) for no message.
    fn scatter(&self, vertex: Vertex, data: &mut Self::Data) -> Self::Message;

    /// Returns the number of steps; `None` until no vertex scatters.
    fn steps(&self) -> Option<u32> {
        None
    }

    /// Returns a number that all members of a job compare: a hash of the program's settings.
    fn settings(&self) -> u64 {
        0
    }
}
