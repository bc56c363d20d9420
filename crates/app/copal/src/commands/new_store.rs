//! The store that a command makes: with `--backend auto` its disk is probed first.

use super::{CommandContext, device};
use crate::{arguments::BackendChoice, failure::Outcome};
use copal_device::probe::ProfileBackend;
use copal_node::{NewStore, ProbePlace};
use copal_object::BackendKind;
use serde_json::json;
use std::path::Path;

/// Options of a new store at `named`. A probe says its result and the reason.
/// # Errors
/// The place cannot be probed, or the probe was interrupted.
pub(super) fn plan(
    context: &CommandContext<'_>,
    named: &Path,
    choice: BackendChoice,
    new: NewStore,
) -> Outcome<NewStore> {
    if let BackendChoice::Given(backend) = choice {
        return Ok(NewStore { backend, ..new });
    }
    let options = context.arguments.common.store_options();
    let place = ProbePlace::of_new_store(named, &options, new.overwrite)?;
    let profile = device::run_probe(context.output, &context.cancel, place)?;
    // On an aged disk segments win less than a default should (docs/measurements/objects.md). So only a person chooses
    // them.
    let backend = BackendKind::Cow;
    let remark = match profile.backend {
        ProfileBackend::Cow => "",
        ProfileBackend::Log => "; --backend log commits faster on this disk, and reads no faster",
    };
    let (name, reason, confidence) = (backend.name(), &profile.reason, profile.confidence.name());
    context.output.message(
        "backend",
        json!({ "backend": name, "suits": profile.backend.name(), "reason": reason, "confidence": confidence, "profile": device::as_json(&profile) }),
    );
    context.output.line(&format!("backend {name} (confidence {confidence}), since {reason}{remark}"));
    // The probe has written to a device that was empty or may be overwritten.
    Ok(NewStore { backend, profile: Some(profile), overwrite: true, ..new })
}
