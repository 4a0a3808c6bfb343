//! Size classes: the chunk or pages for an item of a given size.

/// Bytes of a page, the unit of large items.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pages of a slab.
pub(crate) const SLAB_PAGES: usize = 4;
/// Bytes of a slab, which is cut into chunks of one size class.
pub(crate) const SLAB_BYTES: usize = PAGE_BYTES * SLAB_PAGES;

/// Chunk sizes: multiples of 16, about four per doubling; the upper ones are the largest that divide a slab
/// well.
pub(crate) const CHUNK_BYTES: [u16; 29] = [
    32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1488,
    1808, 2048, 2336, 2720, 3264, 4096, 5456, 8192,
];
const LARGEST_CHUNK: usize = CHUNK_BYTES[CHUNK_BYTES.len() - 1] as usize;

/// Class by size in units of 16 bytes, rounded up.
const CLASS_OF: [u8; LARGEST_CHUNK / 16 + 1] = {
    let mut table = [0; LARGEST_CHUNK / 16 + 1];
    let mut class = 0;
    let mut units = 0;
    while units < table.len() {
        if units * 16 > CHUNK_BYTES[class] as usize {
            class += 1;
        }
        table[units] = class as u8;
        units += 1;
    }
    table
};

/// The memory that an item occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Footprint {
    /// One chunk of a slab of this class.
    Chunk(u8),
    /// This many consecutive pages.
    Run(u32),
}

impl Footprint {
    /// Returns the footprint of an item of `bytes` bytes, header included.
    #[inline]
    pub(crate) fn of(bytes: usize) -> Self {
        match CLASS_OF.get(bytes.div_ceil(16)) {
            Some(&class) => Self::Chunk(class),
            None => Self::Run(bytes.div_ceil(PAGE_BYTES) as u32),
        }
    }

    /// Returns the consecutive free pages that its allocation needs at most.
    pub(crate) fn pages(self) -> usize {
        match self {
            Self::Chunk(_) => SLAB_PAGES,
            Self::Run(pages) => pages as usize,
        }
    }
}

/// Returns the bytes of a chunk of `class`.
#[inline]
pub(crate) fn chunk_bytes(class: u8) -> usize {
    usize::from(CHUNK_BYTES[usize::from(class)])
}

/// Returns the chunks in one slab of `class`.
#[inline]
pub(crate) fn chunks_per_slab(class: u8) -> u16 {
    const COUNTS: [u16; CHUNK_BYTES.len()] = {
        let mut counts = [0; CHUNK_BYTES.len()];
        let mut class = 0;
        while class < counts.len() {
            counts[class] = (SLAB_BYTES / CHUNK_BYTES[class] as usize) as u16;
            class += 1;
        }
        counts
    };
    COUNTS[usize::from(class)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_that_holds_it() {
        for bytes in 1..=SLAB_BYTES {
            match Footprint::of(bytes) {
                Footprint::Chunk(class) => {
                    assert!(chunk_bytes(class) >= bytes);
                    assert!(class == 0 || chunk_bytes(class - 1) < bytes);
                }
                Footprint::Run(pages) => {
                    assert!(bytes > LARGEST_CHUNK);
                    assert_eq!(pages as usize, bytes.div_ceil(PAGE_BYTES));
                }
            }
        }
    }

    #[test]
    fn chunks_are_aligned_and_waste_little_of_a_slab() {
        for class in 0..CHUNK_BYTES.len() as u8 {
            assert_eq!(chunk_bytes(class) % 16, 0);
            let wasted = SLAB_BYTES - chunk_bytes(class) * usize::from(chunks_per_slab(class));
            assert!(wasted * 14 < SLAB_BYTES, "class {class} wastes {wasted} bytes per slab");
        }
    }
}
