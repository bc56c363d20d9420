//! `copal device probe`: measures a disk.

use super::CommandContext;
use crate::{
    arguments::DeviceProbeArgs,
    failure::{Failure, Outcome, exit},
    human,
    output::{CommandOutput, write_err},
    place::refuse_address,
    repository::create_private,
};
use copal_backup::CancelFlag;
use copal_device::{
    DeviceOpenError,
    probe::{DeviceProfile, ProbeConfidence, ProbeError},
};
use copal_node::{NodeError, ProbePlace};
use copal_object::{StoreError, StoreOpenError};
use serde_json::{Value, json};
use std::{
    io::{ErrorKind, Write},
    path::Path,
};

pub(super) fn probe(context: &CommandContext<'_>, words: &DeviceProbeArgs) -> Outcome<()> {
    refuse_address(&words.path)?;
    let options = context.arguments.common.store_options();
    let place =
        ProbePlace::find(&words.path, &options, words.force).map_err(|error| refusal(&words.path, error))?;
    let create = |file| create_private(file).map(|to| (file, to)).map_err(cannot_create(file));
    let out = words.out.as_deref().map(create).transpose()?;
    let profile = run_probe(context.output, &context.cancel, place);
    let profile = match (profile, out) {
        (Ok(profile), Some((file, mut to))) => {
            to.write_all(profile.to_string().as_bytes()).map_err(cannot_write(file))?;
            profile
        }
        (Err(failure), Some((file, _))) => {
            // Created by this command, and empty.
            let _ = std::fs::remove_file(file);
            return Err(failure);
        }
        (profile, None) => profile?,
    };
    let mut fields = as_json(&profile);
    fields["command"] = "device probe".into();
    fields["path"] = words.path.display().to_string().into();
    context.output.summary(fields, || as_text(&profile));
    Ok(())
}

/// Runs a probe and shows its steps.
pub(super) fn run_probe(
    output: &CommandOutput,
    cancel: &CancelFlag,
    place: ProbePlace,
) -> Outcome<DeviceProfile> {
    let is_ended = cancel.clone();
    let shown = !output.is_json() && !output.is_quiet();
    let interrupted = match place.overwrites() {
        None => "interrupted; the probe left nothing behind, run the command again".to_owned(),
        Some(device) => format!(
            "interrupted; the probe has overwritten parts of {}: run the command again with --force",
            device.display()
        ),
    };
    let profile = place.probe(Box::new(move || is_ended.is_cancelled()), &mut |at| {
        let (name, number) = (at.step.name(), at.number + 1);
        output.message("status", json!({ "stage": "probe", "step": name, "number": number, "of": at.of }));
        if shown {
            write_err(&format!("probing, step {number} of {}: {name}\n", at.of));
        }
    });
    profile.map_err(|error| match error {
        ProbeError::Interrupted => Failure::new(exit::INTERRUPTED, "cancelled", interrupted),
        error => Failure::plain("probe", format!("the probe failed: {error}")),
    })
}

/// Every place where a probe cannot write is a mistake of the command line.
fn refusal(path: &Path, error: NodeError) -> Failure {
    let name = path.display();
    let sentence = match &error {
        NodeError::NoFreeRange { source: StoreError::NoSpace { needed_bytes, .. }, .. } => format!(
            "the store on {name} has no {}MiB of free space in one piece, in which a probe could write; delete \
             something, or give a file on the same disk",
            needed_bytes >> 20
        ),
        NodeError::NotProbed { .. } => format!(
            "a probe of the block device {name} destroys its data, and nothing was written; give --force if nothing on it \
             is needed"
        ),
        NodeError::TooShort { bytes, least, .. } => format!(
            "{name} has {}, too few for a probe; name a file of at least {}MiB, or a block device",
            human::bytes(*bytes),
            least >> 20
        ),
        NodeError::ReadOnly { .. } | NodeError::ReadOnlyDevice { .. } => {
            format!("{name} is read-only; name a file that may be written, nothing was changed")
        }
        NodeError::Objects { source: StoreOpenError::Open(error), .. } => match error {
            DeviceOpenError::Claimed { .. } => format!("{error}, nothing was written"),
            DeviceOpenError::Locked { .. } => {
                format!("{name} is in use by another process; end that one first, nothing was written")
            }
            DeviceOpenError::WrongKind { found, .. } => {
                format!("{name} is {found}; name a file on the disk, or a block device")
            }
            DeviceOpenError::ReadOnlyStorage { .. } => {
                format!("{name} is on read-only storage; name a file that may be written")
            }
            error => error.to_string(),
        },
        _ => return error.into(),
    };
    Failure::usage(sentence)
}

/// An existing name is a mistake of the command line.
fn cannot_create(file: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::usage(format!(
            "{} exists and is not replaced; give --out a new file, nothing was probed",
            file.display()
        )),
        _ => cannot_write(file)(error),
    }
}

fn cannot_write(file: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| {
        Failure::plain(
            "out",
            format!("cannot write {}: {error}; name a new file where there is room", file.display()),
        )
    }
}

/// The figures of a profile under the names of its text.
pub(super) fn as_json(profile: &DeviceProfile) -> Value {
    json!({
        "kind": profile.kind.name(),
        "rotational": profile.rotational,
        "logical_block_bytes": profile.logical_block,
        "page_bytes": profile.page_bytes,
        "rmw_ratio": profile.rmw_ratio.value(),
        "read_iops": profile.read_iops,
        "write_iops": profile.write_iops,
        "read_bytes_per_s": profile.read_bytes_per_s,
        "write_bytes_per_s": profile.write_bytes_per_s,
        "sequential_ratio": profile.sequential_ratio.value(),
        "read_knee": profile.read_knee,
        "write_knee": profile.write_knee,
        "read_ns": profile.read_ns,
        "write_ns": profile.write_ns,
        "flush_ns": profile.flush_ns,
        "fua_ns": profile.fua_ns,
        "group_gain": profile.group_gain.value(),
        "durable_write_commands": profile.durable_write_commands.value(),
        "gap_bytes": profile.gap_bytes,
        "depth": profile.depth(),
        "segment_bytes": profile.segment_bytes(),
        "plp": profile.plp,
        "flush_may_be_ignored": profile.flush_may_be_ignored(),
        "confidence": profile.confidence.name(),
        "backend": profile.backend.name(),
        "reason": profile.reason,
    })
}

/// A table of the figures, and the choice with its reason.
pub(super) fn as_text(profile: &DeviceProfile) -> String {
    let millis = |nanos: u64| match nanos {
        0..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        _ => format!("{:.2} ms", nanos as f64 / 1e6),
    };
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let cliff = match profile.has_cliff() {
        true => format!("{} (half of it takes {} times as long)", profile.page_bytes, profile.rmw_ratio),
        false => format!("{} (no cliff below it)", profile.page_bytes),
    };
    let rows = [
        row("Page in bytes", cliff),
        row("Random reads, writes a second", format!("{}, {}", profile.read_iops, profile.write_iops)),
        row(
            "Sequential reads, writes a second",
            format!(
                "{}, {}",
                human::bytes(profile.read_bytes_per_s),
                human::bytes(profile.write_bytes_per_s)
            ),
        ),
        row("Sequential by random writes, in pages", profile.sequential_ratio.to_string()),
        row("Useful depth of reads, writes", format!("{}, {}", profile.read_knee, profile.write_knee)),
        row("Read alone", millis(profile.read_ns)),
        row("Write, its flush", format!("{}, {}", millis(profile.write_ns), millis(profile.flush_ns))),
        row(
            "Durable write, its commands",
            format!("{}, {}", millis(profile.fua_ns), profile.durable_write_commands),
        ),
        row("Gain of groups of 16 pages", profile.group_gain.to_string()),
        row("Gap that is read through", human::bytes(profile.gap_bytes)),
    ];
    let mut text = human::table(&["Figure", "Value"], &rows);
    let plp = if profile.plp { ", power-loss protection as a person said" } else { "" };
    text.push_str(&format!("\nconfidence: {}{plp}\n", profile.confidence.name()));
    if profile.confidence == ProbeConfidence::Low {
        text.push_str("The disk or the machine changed meanwhile: probe again when the machine is idle.\n");
    }
    if profile.flush_may_be_ignored() {
        text.push_str("The flush is very short; it may be ignored below this device.\n");
    }
    text.push_str(&format!("backend: {}, since {}\n", profile.backend.name(), profile.reason));
    text
}
