//! `copal device profile`: the profile that a store holds.

use super::{CommandContext, device, inspect};
use crate::{
    arguments::DeviceProfileArgs,
    failure::{Failure, Outcome},
    signals::text_file,
};
use copal_device::probe::{DeviceProfile, PROFILE_BYTES_MAX};
use copal_node::Access;
use serde_json::json;
use std::path::Path;

pub(super) fn run(context: &CommandContext<'_>, words: &DeviceProfileArgs) -> Outcome<()> {
    // Read before the store is opened: a mistake changes nothing.
    let wanted = words.set.as_deref().map(read).transpose()?;
    let location = inspect::place(&words.store)?;
    let access = if wanted.is_some() { Access::Write } else { Access::Read };
    let options = context.arguments.common.store_options();
    let (store, _) = location.open(access, &options, &context.patience())?;
    let failed = |error| Failure::plain("profile", format!("{}: {error}", location.path().display()));
    if let Some(wanted) = &wanted {
        store.set_profile(wanted).map_err(failed)?;
    }
    let profile = store.profile();
    let (gap_bytes, depth, backend) = (store.gap_bytes(), store.depth(), store.backend());
    store.close().map_err(failed)?;
    let fields = json!({
        "command": "device profile",
        "store": location.path().display().to_string(),
        "store_backend": backend.name(),
        "store_gap_bytes": gap_bytes,
        "store_depth": depth,
        "profile": profile.as_ref().map(device::as_json),
    });
    context.output.answer(fields, || match &profile {
        Some(profile) => profile.to_string(),
        None => format!(
            "the store has no profile: gap {gap_bytes} bytes, depth {depth}; make one with `copal device probe --out` and give it to --set\n"
        ),
    });
    Ok(())
}

/// Reads a profile from a file.
fn read(file: &Path) -> Outcome<DeviceProfile> {
    let name = file.display();
    // A longer file is refused as too long.
    let text = text_file::read(file, PROFILE_BYTES_MAX + 1).map_err(|error| {
        Failure::usage(format!("cannot read {name}: {error}; name a file of `copal device probe --out`"))
    })?;
    let text = text.ok_or_else(|| Failure::interrupted_read(file))?;
    text.parse().map_err(|error| Failure::usage(format!("{name}: {error}")))
}
