//! Decoders of this crate, by name, for the fuzz target. Built for tests and fuzzing only.

#[cfg(any(test, feature = "emulated"))]
use crate::emulated::{BlockTrace, DiskModel, HddModel, HddProfile, ReplaySummary, SsdModel, SsdProfile};
use crate::probe::DeviceProfile;

/// Takes any bytes, returns nothing and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("profile", |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(profile) = text.parse::<DeviceProfile>() {
            assert_eq!(profile.to_string().parse(), Ok(profile.clone()), "a profile prints itself");
            assert!(profile.depth() >= 8 && profile.segment_bytes().is_power_of_two());
        }
    }),
    #[cfg(any(test, feature = "emulated"))]
    ("block trace", replay),
];

/// Reads a trace and replays it on both models, as `disk-replay` does.
#[cfg(any(test, feature = "emulated"))]
fn replay(bytes: &[u8]) {
    let Ok(trace) = BlockTrace::read(bytes) else { return };
    for (device, _) in trace.devices() {
        let commands = trace.commands(device);
        let end = commands.iter().map(|traced| traced.command.end()).max().unwrap_or(0);
        let size = end.max(1 << 30);
        let mut models: [Box<dyn DiskModel>; 2] = [
            Box::new(HddModel::new(size, HddProfile::default())),
            Box::new(SsdModel::new(size, SsdProfile::default())),
        ];
        for model in &mut models {
            let _ = ReplaySummary::replay(commands, &mut **model);
        }
    }
}
