//! Decoders of this crate, by name, for the fuzz target. Built for tests and fuzzing only.

use crate::probe::DeviceProfile;

/// Takes any bytes, returns nothing and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[("profile", |bytes| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(profile) = text.parse::<DeviceProfile>() {
        assert_eq!(profile.to_string().parse(), Ok(profile.clone()), "a profile prints itself");
        assert!(profile.depth() >= 8 && profile.segment_bytes().is_power_of_two());
    }
})];
