//! Random numbers for mounts, incarnations and uuids: from the operating system, or from a seed in tests.

/// Source of random numbers.
#[derive(Clone, Debug)]
pub(crate) enum EntropySource {
    System,
    #[cfg(test)]
    Seed(copal_testkit::Random),
}

impl EntropySource {
    /// A random number, never 0.
    ///
    /// # Panics
    /// When the operating system provides no randomness; continuing would not be safe.
    pub(crate) fn next(&mut self) -> u64 {
        match self {
            EntropySource::System => loop {
                let mut bytes = [0; 8];
                if let Err(error) = getrandom::fill(&mut bytes) {
                    panic!("the operating system provides no random numbers: {error}");
                }
                let value = u64::from_le_bytes(bytes);
                if value != 0 {
                    return value;
                }
            },
            #[cfg(test)]
            EntropySource::Seed(random) => random.next_u64() | 1 << 63,
        }
    }
}
