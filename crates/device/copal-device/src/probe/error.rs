//! `ProbeError`: reasons why a probe has no result.

use crate::DeviceError;

/// Least length of the range of a probe.
pub const PROBE_BYTES_MIN: u64 = 32 << 20;

/// Why a probe ended without a profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A command failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The range is shorter than [`PROBE_BYTES_MIN`].
    #[error("{bytes} bytes are too few to probe, it takes {PROBE_BYTES_MIN}")]
    TooSmall {
        /// Bytes of the range.
        bytes: u64,
    },
    /// The caller ended it.
    #[error("the probe was interrupted")]
    Interrupted,
    /// A command was never answered.
    #[error("a command was never answered")]
    Lost,
}
