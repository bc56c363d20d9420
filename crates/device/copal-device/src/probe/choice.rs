//! Choice of the backend by the figures, with its reason.

use super::{DecimalRatio, DeviceProfile, ProfileBackend};
use crate::ZonedModel;

/// From this ratio of sequential to random writes on, and with this gain of groups, segments win.
const LOG_RATIO: DecimalRatio = DecimalRatio(2000);
const LOG_GAIN: DecimalRatio = DecimalRatio(400);
/// Up to this ratio, free pages win.
const COW_RATIO: DecimalRatio = DecimalRatio(600);
/// In between, segments win from these figures on.
const COARSE_PAGE: u32 = 16 << 10;
const SLOW_FLUSH_NS: u64 = 5_000_000;

/// The backend for a device with these figures, and the reason.
pub(super) fn choose(profile: &DeviceProfile) -> (ProfileBackend, String) {
    let (ratio, gain) = (profile.sequential_ratio, profile.group_gain);
    let flush = profile.flush_ns as f64 / 1e6;
    let pages = format!("sequential writes move {ratio} times as many pages as random ones");
    let groups = format!("16 pages in one durable write gain {gain}, and a flush takes {flush:.2} ms");
    if profile.zoned == ZonedModel::HostAware {
        return (ProfileBackend::Log, "it has zones, and a write at the end of a zone is cheaper".to_owned());
    }
    if ratio >= LOG_RATIO && gain >= LOG_GAIN {
        return (ProfileBackend::Log, format!("{pages} (20 or more), {groups} (gain of 4 or more)"));
    }
    if ratio <= COW_RATIO {
        return (ProfileBackend::Cow, format!("{pages} (6 or less)"));
    }
    if profile.page_bytes > COARSE_PAGE {
        let page = profile.page_bytes >> 10;
        return (ProfileBackend::Log, format!("{pages}, and its page of {page} KiB is longer than 16 KiB"));
    }
    if profile.flush_ns > SLOW_FLUSH_NS {
        return (ProfileBackend::Log, format!("{pages}, and a flush takes {flush:.2} ms (more than 5 ms)"));
    }
    (
        ProfileBackend::Cow,
        format!("{pages} (less than 20 or without a gain of groups), {groups} (5 ms or less)"),
    )
}
