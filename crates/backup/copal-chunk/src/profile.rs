//! Chunking profiles: the sizes between which chunks are cut, chosen once per repository.

/// How disks are cut into chunks; fixed when a repository is created.
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
    /// Fixed 64 KiB, for cloned templates; chunk sizes reveal nothing.
    Clone,
}

/// The cutting rule of a profile, sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Cut where the rolling hash falls below a threshold.
    Content { min: usize, average: usize, max: usize },
    /// Cut at multiples of the size within the segment.
    Fixed { size: usize },
}

impl Profile {
    /// Every profile, in the order of their codes.
    pub const ALL: [Profile; 6] = [
        Profile::Default,
        Profile::Paper,
        Profile::Fixed4K,
        Profile::Fixed8K,
        Profile::Fixed16K,
        Profile::Clone,
    ];

    /// Code of the profile on disk.
    pub fn code(self) -> u8 {
        match self {
            Profile::Default => 1,
            Profile::Paper => 2,
            Profile::Fixed4K => 3,
            Profile::Fixed8K => 4,
            Profile::Fixed16K => 5,
            Profile::Clone => 6,
        }
    }

    /// The profile with this code; `None` if it is unknown.
    pub fn from_code(code: u8) -> Option<Profile> {
        Profile::ALL.into_iter().find(|profile| profile.code() == code)
    }

    /// Name on the command line: `default`, `paper`, `fixed-4k`, `fixed-8k`, `fixed-16k`, `clone`.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Default => "default",
            Profile::Paper => "paper",
            Profile::Fixed4K => "fixed-4k",
            Profile::Fixed8K => "fixed-8k",
            Profile::Fixed16K => "fixed-16k",
            Profile::Clone => "clone",
        }
    }

    /// The profile with this name.
    pub fn from_name(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Longest chunk the profile cuts, in bytes.
    pub fn max_chunk_bytes(self) -> usize {
        match self.rule() {
            Rule::Content { max, .. } => max,
            Rule::Fixed { size } => size,
        }
    }

    pub(crate) fn rule(self) -> Rule {
        const K: usize = 1024;
        match self {
            Profile::Default => Rule::Content { min: 4 * K, average: 16 * K, max: 64 * K },
            Profile::Paper => Rule::Content { min: 2 * K, average: 4 * K, max: 16 * K },
            Profile::Fixed4K => Rule::Fixed { size: 4 * K },
            Profile::Fixed8K => Rule::Fixed { size: 8 * K },
            Profile::Fixed16K => Rule::Fixed { size: 16 * K },
            Profile::Clone => Rule::Fixed { size: 64 * K },
        }
    }
}
