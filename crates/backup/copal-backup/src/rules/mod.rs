//! Tests of the rules: flaws as negative controls, the exhaustive model of a fleet, and the worked examples
//! of the formats.

pub(crate) mod broken;
#[cfg(test)]
pub(crate) mod golden;
#[cfg(test)]
pub(crate) mod model;
