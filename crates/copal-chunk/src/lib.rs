//! Chunking and fingerprints: segments, content-defined and fixed chunks, holes; pure.

/// How disks are cut into chunks; fixed when a repository is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Profile {
    /// Content-defined, 4 KiB to 64 KiB, 16 KiB on average.
    #[default]
    Default,
    /// Content-defined, 2 KiB to 16 KiB, 4 KiB on average, as in the paper.
    Paper,
    /// Fixed 4 KiB.
    Fixed4K,
    /// Fixed 8 KiB.
    Fixed8K,
    /// Fixed 16 KiB.
    Fixed16K,
    /// Fixed 64 KiB: for cloned templates; sizes betray nothing.
    Clone,
}
