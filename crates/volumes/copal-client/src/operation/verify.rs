//! Comparing the members of a group with each other, span by span.

use crate::api::cluster::{Cluster, SOON};
use crate::net::connection::CallError;
use crate::net::errors::volume_error;
use crate::net::machine;
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

/// Files of a span.
const SPAN: u32 = 1000;
/// How long one span of one member may take: all its bytes may be read.
const ANSWER: Duration = Duration::from_secs(600);
/// Times that a span is looked at again before members are said to differ: files come and go meanwhile.
const TRIES: usize = 20;

/// What was found in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Files of the first member.
    pub files: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// What is not as it should be.
    pub differences: Vec<ReplicaDifference>,
}

/// A member that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaDifference {
    /// It has other files than the first.
    OtherFiles {
        /// Its name.
        server: String,
        /// Name of the first.
        from: String,
    },
    /// Something of it cannot be read.
    Damaged {
        /// Its name.
        server: String,
        /// What.
        what: String,
    },
    /// It is still taking over from others, or away.
    NotInSync {
        /// Its name.
        server: String,
    },
    /// It did not answer.
    Unreached {
        /// Its name.
        server: String,
        /// Why.
        why: String,
    },
}

impl Cluster {
    /// Compares the members of a group; reads every byte if `deep`.
    /// # Errors
    /// `NotFound`: there is no such group. `Incomplete`: no member answered. `Denied`: this client may not.
    pub async fn verify(
        &self,
        group: GroupId,
        deep: bool,
        end: Instant,
    ) -> Result<VerifyReport, VolumeError> {
        let view = self.map().view(group).ok_or(VolumeError::NotFound)?;
        let mut report = VerifyReport::default();
        for &(disk, role) in &view.members {
            if !role.is_up() {
                let server = self.name_of(disk);
                report.differences.push(ReplicaDifference::NotInSync { server });
            }
        }
        let mut after = Bytes::new();
        loop {
            let mut tries = 0;
            let span = loop {
                let view = self.map().view(group).ok_or(VolumeError::NotFound)?;
                let span = self.compare(&view, after.clone(), deep, end).await?;
                tries += 1;
                let differs =
                    span.differences.iter().any(|found| !matches!(found, ReplicaDifference::Damaged { .. }));
                if !differs || tries == TRIES {
                    break span;
                }
                tokio::time::sleep(SOON).await;
            };
            report.files += span.files;
            report.bytes += span.bytes;
            for difference in span.differences {
                if !report.differences.contains(&difference) {
                    report.differences.push(difference);
                }
            }
            match span.last {
                Some(last) => after = last,
                None => return Ok(report),
            }
        }
    }

    async fn compare(
        &self,
        view: &View,
        after: Bytes,
        deep: bool,
        end: Instant,
    ) -> Result<Span, VolumeError> {
        let mut span = Span::default();
        let mut first: Option<(String, messages::Verified)> = None;
        for disk in view.up() {
            let server = self.name_of(disk);
            // Whatever lies up to where the first member got; all of the rest, if that was its end.
            let until = match &first {
                Some((_, found)) if found.more => found.last.clone(),
                _ => Bytes::new(),
            };
            let limit = if first.is_none() { SPAN } else { SPAN * 10 };
            let request = messages::Verify {
                group: view.group.0,
                epoch: view.epoch.0,
                after: after.clone(),
                until,
                limit,
                deep,
            };
            let told = self.call::<messages::Verified>(
                disk,
                Method::Verify,
                &request,
                end.max(machine::now() + ANSWER),
            );
            let found = match told.await {
                Ok(found) => found,
                Err(CallError::Failed(failure)) if failure.view.is_some() => {
                    if let Some(newer) = &failure.view {
                        self.map().learn(newer);
                    }
                    span.differences.push(ReplicaDifference::NotInSync { server });
                    continue;
                }
                // Of the caller, not of the member: another one refuses as well.
                Err(CallError::Failed(failure)) if failure.code() == Code::Denied => {
                    return Err(volume_error(CallError::Failed(failure)));
                }
                Err(error) => {
                    let why = error.to_string();
                    span.differences.push(ReplicaDifference::Unreached { server, why });
                    continue;
                }
            };
            if !is_in_sync(found.role) {
                let server = server.clone();
                span.differences.push(ReplicaDifference::NotInSync { server });
            }
            for what in &found.damaged {
                let (server, what) = (server.clone(), what.clone());
                span.differences.push(ReplicaDifference::Damaged { server, what });
            }
            match &first {
                None => first = Some((server, found)),
                Some((from, known)) => {
                    if (known.files, id(known.digest)) != (found.files, id(found.digest)) {
                        let from = from.clone();
                        span.differences.push(ReplicaDifference::OtherFiles { server, from });
                    }
                }
            }
        }
        let (_, first) =
            first.ok_or_else(|| VolumeError::Incomplete { what: format!("group {}", view.group) })?;
        (span.files, span.bytes) = (first.files, first.bytes);
        span.last = first.more.then_some(first.last);
        Ok(span)
    }

    fn name_of(&self, disk: DiskId) -> String {
        self.map().place(disk).map_or_else(|| format!("disk {disk}"), |place| place.server)
    }
}

#[derive(Default)]
struct Span {
    files: u64,
    bytes: u64,
    differences: Vec<ReplicaDifference>,
    /// Where to go on; none: this was the last.
    last: Option<Bytes>,
}
