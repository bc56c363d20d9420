//! A number with two decimals, which compares and prints exactly.

use std::fmt;

/// A number in hundredths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DecimalRatio(pub u64);

impl DecimalRatio {
    /// The nearest number to `value`; 0 for negative values and for those that are no number.
    #[must_use]
    pub fn of(value: f64) -> DecimalRatio {
        DecimalRatio((value * 100.0).round() as u64)
    }

    /// The number.
    #[must_use]
    pub fn value(self) -> f64 {
        self.0 as f64 / 100.0
    }
}

impl fmt::Display for DecimalRatio {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}
