//! `copal doctor`: checks for common problems of operation, one line each with the remedy.

mod machine;
mod reach;

use super::CommandContext;
use crate::{
    arguments::DoctorArgs,
    cluster,
    failure::{Failure, Outcome, exit},
    human,
};
use copal_client::{
    ClientProfile, TlsIdentity,
    administration::{ClusterStatus, requests},
    client_tls,
};
use copal_server::CertificateValidity;
use serde_json::json;
use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

/// A certificate that expires sooner causes a warning.
const SOON: Duration = Duration::from_secs(30 * 24 * 3600);

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckState {
    Good,
    /// Works now, but is a risk.
    Doubtful,
    Bad,
}

impl CheckState {
    fn word(self) -> &'static str {
        match self {
            CheckState::Good => "good",
            CheckState::Doubtful => "warning",
            CheckState::Bad => "bad",
        }
    }
}

/// Results of all checks.
struct DoctorFindings {
    all: Vec<(&'static str, CheckState, String)>,
}

impl DoctorFindings {
    fn good(&mut self, name: &'static str, sentence: impl Into<String>) {
        self.all.push((name, CheckState::Good, sentence.into()));
    }

    fn doubtful(&mut self, name: &'static str, sentence: impl Into<String>) {
        self.all.push((name, CheckState::Doubtful, sentence.into()));
    }

    fn bad(&mut self, name: &'static str, sentence: impl Into<String>) {
        self.all.push((name, CheckState::Bad, sentence.into()));
    }
}

pub(crate) fn run(context: &CommandContext<'_>, words: &DoctorArgs) -> Outcome<()> {
    let common = &context.arguments.common;
    if common.cluster.is_none() && words.dir.is_none() {
        return Err(Failure::usage(
            "nothing to check was named: give --cluster FILE (or COPAL_CLUSTER) for a cluster, --dir DIR for the directory of a server",
        ));
    }
    let mut findings = DoctorFindings { all: Vec::new() };
    if let Some(path) = &common.cluster {
        match ClientProfile::read(path) {
            Err(error) => findings.bad("profile", error.to_string()),
            Ok(profile) => {
                findings.good("profile", format!("{} can be read", path.display()));
                private("profile", path, &mut findings);
                let identity = TlsIdentity {
                    authority: profile.authority.clone(),
                    certificate: profile.certificate.clone(),
                    key: profile.key.clone(),
                };
                let ahead_ms = reach::look(&profile, &identity, &mut findings);
                certificates(&identity, ahead_ms, &mut findings);
            }
        }
    }
    if let Some(dir) = &words.dir {
        machine::look(dir, &mut findings);
    }
    tell(context, &findings)
}

fn tell(context: &CommandContext<'_>, findings: &DoctorFindings) -> Outcome<()> {
    for (name, state, sentence) in &findings.all {
        let fields = json!({ "check": name, "state": state.word(), "message": sentence });
        context.output.message("check", fields);
        context.output.line(&format!("{:8} {name}: {sentence}", state.word()));
    }
    let count = |wanted: CheckState| findings.all.iter().filter(|(_, state, _)| *state == wanted).count();
    let (bad, doubtful) = (count(CheckState::Bad), count(CheckState::Doubtful));
    let fields = json!({ "checks": findings.all.len(), "bad": bad, "warnings": doubtful });
    context
        .output
        .summary(fields, || format!("{} checks, {bad} bad, {doubtful} warnings\n", findings.all.len()));
    match bad {
        0 => Ok(()),
        _ => Err(Failure::new(
            exit::DAMAGED,
            "unhealthy",
            format!("{bad} of {} checks are bad; the lines above say what to do", findings.all.len()),
        )),
    }
}

/// Checks the permissions of a file with a key: every reader of it can act as this client or server.
fn private(name: &'static str, path: &Path, findings: &mut DoctorFindings) {
    match path.metadata() {
        Ok(meta) if meta.permissions().mode() & 0o077 != 0 => {
            findings.bad(name, format!("others can read the key in {}; run chmod 600 on it", path.display()))
        }
        Ok(_) => {}
        Err(error) => findings.bad(name, format!("{}: {error}", path.display())),
    }
}

/// Checks that certificate and key belong together and remain valid for some time by the cluster's clock,
/// which is `ahead_ms` ahead of this machine's.
fn certificates(identity: &TlsIdentity, ahead_ms: i64, findings: &mut DoctorFindings) {
    if let Err(error) = client_tls(identity) {
        findings.bad("certificate", format!("{error}; take the file of the cluster again"));
        return;
    }
    for (whose, pem) in [("the authority's", &identity.authority), ("the own", &identity.certificate)] {
        let own_ms = human::now_ms();
        let now = UNIX_EPOCH + Duration::from_millis(own_ms.saturating_add_signed(ahead_ms));
        match CertificateValidity::of_pem(pem) {
            Err(error) => findings.bad("certificate", format!("{whose} certificate cannot be read: {error}")),
            Ok(validity) if now < validity.from => findings.bad(
                "certificate",
                format!("{whose} certificate is not good yet; is the clock right by which it was made?"),
            ),
            Ok(validity) if now > validity.until => {
                findings.bad(
                    "certificate",
                    format!(
                        "{whose} certificate ended on {}; a server renews its own once a master answers, and `copal client renew` \
                         writes a new profile of a client",
                        validity.last_day()
                    ),
                );
            }
            Ok(validity) => {
                let left = validity.until.duration_since(now).unwrap_or_default();
                let days = left.as_secs() / (24 * 3600);
                match left < SOON {
                    true => {
                        findings.doubtful("certificate", format!("{whose} certificate ends in {days} days"))
                    }
                    false => {
                        findings.good("certificate", format!("{whose} certificate is good for {days} days"))
                    }
                }
            }
        }
    }
}

/// Queries a cluster, like any command.
fn status(profile: &ClientProfile) -> Outcome<ClusterStatus> {
    cluster::administer(&cluster::connect_with(profile)?, &requests::ShowStatus {})
}
