//! `ProfileBackend`: the backends between which a probe chooses.

/// Backend that a profile names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileBackend {
    /// Free pages.
    Cow,
    /// Segments.
    Log,
}

impl ProfileBackend {
    /// Its name in commands and profiles.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ProfileBackend::Cow => "cow",
            ProfileBackend::Log => "log",
        }
    }
}
