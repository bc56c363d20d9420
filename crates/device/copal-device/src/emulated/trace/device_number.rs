//! `DeviceNumber`: major and minor of a block device.

use std::fmt;
use std::str::FromStr;

/// Number of a block device in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Number of its driver.
    pub major: u32,
    /// Number among the devices of the driver.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A text that is no device number.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0:?} is no device number; give major and minor, as in 7:0")]
pub struct DeviceNumberError(String);

impl FromStr for DeviceNumber {
    type Err = DeviceNumberError;

    /// Reads "7:0" or "7,0".
    fn from_str(text: &str) -> Result<DeviceNumber, DeviceNumberError> {
        let number = || {
            let (major, minor) = text.split_once([':', ','])?;
            Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
        };
        number().ok_or_else(|| DeviceNumberError(text.to_owned()))
    }
}
