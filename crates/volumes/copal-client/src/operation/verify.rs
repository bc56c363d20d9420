//! Verification: compares the replicas of a group with each other, one range of files at a time.

use crate::{
    net::{connection::CallError, errors::volume_error, machine},
    routing::router::{CallRouter, RETRY_PAUSE},
};
use bytes::Bytes;
use copal_proto::{
    Method, id, is_in_sync,
    messages::{self, failure::Code},
};
use copal_volume::{
    VolumeError,
    group::{DiskId, GroupId, View},
};
use std::time::{Duration, Instant};

/// Files of one range.
const RANGE_FILES: u32 = 1000;
/// Least time that one replica gets for one range: it may read all bytes of it.
const RANGE_TIMEOUT: Duration = Duration::from_secs(600);
/// How often a range is compared before replicas count as different: files change meanwhile.
const TRIES: usize = 20;

/// Result of the verification of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupComparison {
    /// Files of the first replica.
    pub files: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Replicas with a problem.
    pub differences: Vec<ReplicaDifference>,
}

/// A problem of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaDifference {
    /// It has other files than the first replica.
    OtherFiles {
        /// Name of its server.
        server: String,
        /// Name of the first replica's server.
        from: String,
    },
    /// Some of its data cannot be read.
    Damaged {
        /// Name of its server.
        server: String,
        /// The damaged data.
        what: String,
    },
    /// It is still resyncing, or down.
    NotInSync {
        /// Name of its server.
        server: String,
    },
    /// It did not answer.
    Unreached {
        /// Name of its server.
        server: String,
        /// The error of the call.
        why: String,
    },
}

/// Compares the replicas of a group; reads every byte if `deep`.
/// # Errors
/// `NotFound`: there is no such group. `Incomplete`: no replica answered. `Denied`: this client may not.
pub(crate) async fn verify(
    router: &CallRouter,
    group: GroupId,
    deep: bool,
    end: Instant,
) -> Result<GroupComparison, VolumeError> {
    let view = router.map().view(group).ok_or(VolumeError::NotFound)?;
    let mut report = GroupComparison::default();
    for &(disk, role) in &view.members {
        if !role.is_up() {
            let server = server_name(router, disk);
            report.differences.push(ReplicaDifference::NotInSync { server });
        }
    }
    let mut after = Bytes::new();
    loop {
        let mut tries = 0;
        let range = loop {
            let view = router.map().view(group).ok_or(VolumeError::NotFound)?;
            let range = compare(router, &view, after.clone(), deep, end).await?;
            tries += 1;
            let differs =
                range.differences.iter().any(|found| !matches!(found, ReplicaDifference::Damaged { .. }));
            if !differs || tries == TRIES {
                break range;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        };
        report.files += range.files;
        report.bytes += range.bytes;
        for difference in range.differences {
            if !report.differences.contains(&difference) {
                report.differences.push(difference);
            }
        }
        match range.last {
            Some(last) => after = last,
            None => return Ok(report),
        }
    }
}

async fn compare(
    router: &CallRouter,
    view: &View,
    after: Bytes,
    deep: bool,
    end: Instant,
) -> Result<VerifiedRange, VolumeError> {
    let mut range = VerifiedRange::default();
    let mut first: Option<(String, messages::Verified)> = None;
    for disk in view.up() {
        let server = server_name(router, disk);
        // The first replica determines the end of the range. If it has no more files, the range has no end.
        let until = match &first {
            Some((_, found)) if found.more => found.last.clone(),
            _ => Bytes::new(),
        };
        let limit = if first.is_none() { RANGE_FILES } else { RANGE_FILES * 10 };
        let request = messages::Verify {
            group: view.group.0,
            epoch: view.epoch.0,
            after: after.clone(),
            until,
            limit,
            deep,
        };
        let deadline = end.max(machine::now() + RANGE_TIMEOUT);
        let answer = router.call::<messages::Verified>(disk, Method::Verify, &request, deadline).await;
        let found = match answer {
            Ok(found) => found,
            Err(CallError::Failed(failure)) if failure.view.is_some() => {
                if let Some(newer) = &failure.view {
                    router.map().learn(newer);
                }
                range.differences.push(ReplicaDifference::NotInSync { server });
                continue;
            }
            // The client lacks the right, so every replica refuses.
            Err(CallError::Failed(failure)) if failure.code() == Code::Denied => {
                return Err(volume_error(CallError::Failed(failure)));
            }
            Err(error) => {
                let why = error.to_string();
                range.differences.push(ReplicaDifference::Unreached { server, why });
                continue;
            }
        };
        if !is_in_sync(found.role) {
            let server = server.clone();
            range.differences.push(ReplicaDifference::NotInSync { server });
        }
        for what in &found.damaged {
            let (server, what) = (server.clone(), what.clone());
            range.differences.push(ReplicaDifference::Damaged { server, what });
        }
        match &first {
            None => first = Some((server, found)),
            Some((from, known)) => {
                if (known.files, id(known.digest)) != (found.files, id(found.digest)) {
                    let from = from.clone();
                    range.differences.push(ReplicaDifference::OtherFiles { server, from });
                }
            }
        }
    }
    let (_, first) =
        first.ok_or_else(|| VolumeError::Incomplete { what: format!("group {}", view.group) })?;
    (range.files, range.bytes) = (first.files, first.bytes);
    range.last = first.more.then_some(first.last);
    Ok(range)
}

fn server_name(router: &CallRouter, disk: DiskId) -> String {
    router.map().place(disk).map_or_else(|| format!("disk {disk}"), |place| place.server)
}

#[derive(Default)]
struct VerifiedRange {
    files: u64,
    bytes: u64,
    differences: Vec<ReplicaDifference>,
    /// Key after which the next range begins; `None`: this range was the last.
    last: Option<Bytes>,
}
