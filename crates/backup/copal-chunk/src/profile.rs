//! Chunking profiles: the sizes between which chunks are cut, chosen once per repository.

/// How disks are cut into chunks; fixed when a repository is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ChunkProfile {
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
pub(crate) enum CutRule {
    /// Cut where the rolling hash falls below a threshold.
    Content { min: usize, average: usize, max: usize },
    /// Cut at multiples of the size within the segment.
    Fixed { size: usize },
}

impl ChunkProfile {
    /// Every profile, in the order of their codes.
    pub const ALL: [ChunkProfile; 6] = [
        ChunkProfile::Default,
        ChunkProfile::Paper,
        ChunkProfile::Fixed4K,
        ChunkProfile::Fixed8K,
        ChunkProfile::Fixed16K,
        ChunkProfile::Clone,
    ];

    /// Code of the profile on disk.
    pub fn code(self) -> u8 {
        match self {
            ChunkProfile::Default => 1,
            ChunkProfile::Paper => 2,
            ChunkProfile::Fixed4K => 3,
            ChunkProfile::Fixed8K => 4,
            ChunkProfile::Fixed16K => 5,
            ChunkProfile::Clone => 6,
        }
    }

    /// The profile with this code; `None` if it is unknown.
    pub fn from_code(code: u8) -> Option<ChunkProfile> {
        ChunkProfile::ALL.into_iter().find(|profile| profile.code() == code)
    }

    /// Name on the command line: `default`, `paper`, `fixed-4k`, `fixed-8k`, `fixed-16k`, `clone`.
    pub fn name(self) -> &'static str {
        match self {
            ChunkProfile::Default => "default",
            ChunkProfile::Paper => "paper",
            ChunkProfile::Fixed4K => "fixed-4k",
            ChunkProfile::Fixed8K => "fixed-8k",
            ChunkProfile::Fixed16K => "fixed-16k",
            ChunkProfile::Clone => "clone",
        }
    }

    /// The profile with this name.
    pub fn from_name(name: &str) -> Option<ChunkProfile> {
        ChunkProfile::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Longest chunk the profile cuts, in bytes.
    pub fn max_chunk_bytes(self) -> usize {
        match self.rule() {
            CutRule::Content { max, .. } => max,
            CutRule::Fixed { size } => size,
        }
    }

    pub(crate) fn rule(self) -> CutRule {
        const K: usize = 1024;
        match self {
            ChunkProfile::Default => CutRule::Content { min: 4 * K, average: 16 * K, max: 64 * K },
            ChunkProfile::Paper => CutRule::Content { min: 2 * K, average: 4 * K, max: 16 * K },
            ChunkProfile::Fixed4K => CutRule::Fixed { size: 4 * K },
            ChunkProfile::Fixed8K => CutRule::Fixed { size: 8 * K },
            ChunkProfile::Fixed16K => CutRule::Fixed { size: 16 * K },
            ChunkProfile::Clone => CutRule::Fixed { size: 64 * K },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes are a disk format: the page of the catalog lists each with its profile.
    #[test]
    fn the_page_of_the_catalog_lists_every_code() {
        let page = include_str!("../../../../docs/formats/backup-catalog.md");
        let line = page.lines().find_map(|line| line.strip_prefix("Profiles: ")).expect("a line of profiles");
        let listed: Vec<&str> = line.trim_end_matches('.').split(", ").collect();
        let expected: Vec<String> = ChunkProfile::ALL
            .iter()
            .map(|profile| match (profile.name().strip_prefix("fixed-"), profile.rule()) {
                (Some(_), CutRule::Fixed { size }) => format!("{} fixed {} KiB", profile.code(), size / 1024),
                (None, CutRule::Fixed { size }) => {
                    format!("{} {} (fixed {} KiB)", profile.code(), profile.name(), size / 1024)
                }
                (_, CutRule::Content { .. }) => format!("{} {}", profile.code(), profile.name()),
            })
            .collect();
        assert_eq!(listed, expected);
    }
}
