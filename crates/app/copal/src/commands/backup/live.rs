//! A backup of a running VM: creates and ends the point in time.

use crate::{
    arguments::{BackupArgs, FormatWord, FreezeWord},
    failure::{Failure, Outcome, exit},
};
use copal_backup::{DiskSource, Error, Repository};
use copal_disk::source::ContentEvidence;
use copal_live::QmpError;
use copal_live::{BackupEnd, FleeceOptions, FreezeMethod, LiveDisk, LiveError, LiveVm, PointInTime};

use super::TypedDisk;

/// The running VM of the command line, if it names one.
pub(super) fn typed_vm(backup: &BackupArgs, disks: &[TypedDisk]) -> Option<LiveVm> {
    let live = &backup.live;
    Some(LiveVm {
        name: backup.vm.clone(),
        qmp: live.qmp.clone()?,
        disks: disks
            .iter()
            .map(|disk| LiveDisk {
                name: disk.name.clone(),
                // The command line has the node as text.
                node: disk.image.to_string_lossy().into_owned(),
                serial: disk.serial.clone().unwrap_or_default(),
                began_with_base: None,
                sentinel: None,
            })
            .collect(),
        nbd_socket: live.nbd_socket.clone(),
        fleece: FleeceOptions { directory: live.fleece_dir.clone(), limit_millionths: live.fleece_limit },
        freeze: live.freeze.map(|FreezeWord::Agent| FreezeMethod::Agent(live.agent_socket.clone())),
    })
}

/// Creates the point in time.
pub(super) fn hold(
    repository: &Repository,
    mut vm: LiveVm,
    format: FormatWord,
) -> Outcome<(PointInTime, Vec<DiskSource>)> {
    vm.look_up_bitmaps(repository)?;
    let (point, mut disks) = PointInTime::take(&vm, repository.info().domain)?;
    if format == FormatWord::Raw {
        let guessed = disks.iter_mut().filter(|disk| disk.content == ContentEvidence::Guessed);
        guessed.for_each(|disk| disk.content = ContentEvidence::Stated);
    }
    Ok((point, disks))
}

/// Ends the point in time after the backup; returns the outcome with warnings for the user.
pub(super) fn end<T>(point: PointInTime, outcome: Result<T, Error>) -> Outcome<(T, Vec<String>)> {
    match outcome {
        Ok(done) => Ok((done, point.end(BackupEnd::Published))),
        Err(error) => {
            let is_source = matches!(error, Error::Source { .. });
            let faults = if is_source { point.faults() } else { Vec::new() };
            let left = point.end(BackupEnd::Abandoned);
            let mut failure = Failure::from(error);
            if !faults.is_empty() {
                failure.sentence = faults.join("; ");
            }
            for complaint in left {
                failure.sentence.push_str("; ");
                failure.sentence.push_str(&complaint);
            }
            Err(failure)
        }
    }
}

impl From<LiveError> for Failure {
    fn from(error: LiveError) -> Failure {
        match &error {
            LiveError::Busy { .. } => Failure::new(exit::BUSY, "busy", error.to_string()),
            LiveError::Qmp(QmpError::NoGreeting { .. }) => {
                Failure::new(exit::BUSY, "busy", error.to_string())
            }
            _ => Failure::new(exit::SOURCE, "source", error.to_string()),
        }
    }
}

impl From<QmpError> for Failure {
    fn from(error: QmpError) -> Failure {
        LiveError::from(error).into()
    }
}
