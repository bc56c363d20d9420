//! What kind of device lies below a store, as its server tells.

/// Kind of the device below a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A disk that turns.
    Hdd,
    /// Flash.
    Ssd,
}

impl Medium {
    /// The word for it in messages and in what is shown.
    pub fn word(self) -> &'static str {
        match self {
            Medium::Hdd => "hdd",
            Medium::Ssd => "ssd",
        }
    }

    /// What a word means; `None`: not told, or none that this release knows.
    pub fn of_word(word: &str) -> Option<Medium> {
        [Medium::Hdd, Medium::Ssd].into_iter().find(|medium| medium.word() == word)
    }
}
