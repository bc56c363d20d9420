//! `copal mount`: snapshots as a file system.

use super::{EndReason, OpenExport, deleted};
use crate::{
    arguments::MountArgs as Words,
    commands::{CommandContext, close},
    failure::{Failure, Outcome},
    output::write_out,
    repository::OpenRepository,
};
use copal_backup::{Error, serve};
use copal_export::{MountContent, SnapshotMount};
use copal_node::Access;
use serde_json::json;
use std::time::Duration;

/// Poll interval of the end of the mount.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(context: &CommandContext<'_>, words: &Words) -> Outcome<()> {
    context.memory()?;
    let opened = context.open(Access::Read)?;
    // The UUID is used from here on, since the name may pass to another VM.
    let found = words.vm.as_deref().map(|name| vm_named(&opened, name)).transpose();
    let vm = match found {
        Err(failure) => return close(opened, Err(failure)),
        Ok(vm) => vm,
    };
    let shown = vm.map_or(serve::Shown::All, serve::Shown::Vm);
    let vm = vm.map(|vm| vm.to_string());
    let export = OpenExport::open(context, opened, "mount", shown)?;
    let outcome = show_until_ended(context, words, &export, vm);
    let closed = export.close(context);
    outcome?;
    closed
}

/// The UUID of a VM, found by UUID or name.
fn vm_named(opened: &OpenRepository, name: &str) -> Outcome<uuid::Uuid> {
    let vms = opened.repository().vms()?;
    let found = vms.iter().find(|vm| vm.name == name || vm.uuid.to_string() == name);
    found.map(|vm| vm.uuid).ok_or_else(|| {
        let name = name.to_owned();
        Failure::from(Error::NotFound { what: "VM", name })
    })
}

fn show_until_ended(
    context: &CommandContext<'_>,
    words: &Words,
    export: &OpenExport,
    vm: Option<String>,
) -> Outcome<()> {
    let lender = export.lender();
    let listing = export.lender();
    let content = MountContent {
        lender,
        cache: export.cache.clone(),
        list: Box::new(move || Ok(listing.lend()?.list(vm.as_deref())?.snapshots)),
    };
    let of_mount = |error: copal_export::MountError| Failure::plain("mount", error.to_string());
    let mount = SnapshotMount::start(&words.directory, content, export.close_flag()).map_err(of_mount)?;
    let directory = words.directory.display().to_string();
    match context.output.is_json() {
        true => {
            let fields = json!({ "command": "mount", "directory": directory });
            context.output.message("ready", fields);
        }
        false => write_out(&format!("ready {directory}\n")),
    }
    let end = loop {
        if mount.is_gone() {
            break EndReason::Asked;
        }
        if let Some(end) = export.end(context) {
            break end;
        }
        context.pause(POLL_INTERVAL);
    };
    mount.end().map_err(of_mount)?;
    match end {
        EndReason::Asked => Ok(()),
        EndReason::Deleted => Err(deleted("a snapshot that is mounted here")),
    }
}
