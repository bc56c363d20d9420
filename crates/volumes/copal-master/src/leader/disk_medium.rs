//! Kind of the device below a store, as its server reports it.

/// Kind of the device below a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskMedium {
    /// Rotating disk.
    Hdd,
    /// Flash.
    Ssd,
}

impl DiskMedium {
    /// Its word in messages and output.
    pub fn word(self) -> &'static str {
        match self {
            DiskMedium::Hdd => "hdd",
            DiskMedium::Ssd => "ssd",
        }
    }

    /// The medium of a word; `None`: not reported, or unknown to this release.
    pub fn of_word(word: &str) -> Option<DiskMedium> {
        [DiskMedium::Hdd, DiskMedium::Ssd].into_iter().find(|medium| medium.word() == word)
    }
}
