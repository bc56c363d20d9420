//! `copal store probe`: whether an object store can hold a repository.

use super::CommandContext;
use crate::{
    failure::{Failure, Outcome},
    place::{RepositoryPlace, remote},
};
use copal_remote::{CloudKind, ProbeOutcome, ProbeReport, RemoteUrl};
use serde_json::{Value, json};

/// Clocks that differ by less are equal: the `Date` of an answer has seconds.
const EQUAL_MS: i64 = 2000;

pub(super) fn run(context: &CommandContext<'_>) -> Outcome<()> {
    let common = &context.arguments.common;
    let named = common.repository()?;
    let Some(RepositoryPlace::Remote(url)) = RepositoryPlace::shared(named)? else {
        return Err(Failure::usage(format!(
            "{} is no object store, and `copal store probe` asks those; give --repo s3://BUCKET/PREFIX, az:// or gs://. \
             `copal device profile` measures a disk",
            named.display()
        )));
    };
    let report = remote::probe(common, &url)?;
    let unsuitable = report.unsuitable();
    let fields = json!({
        "command": "store probe",
        "repository": url.to_string(),
        "usable": unsuitable.is_none(),
        "create_is_exclusive": as_json(report.create_is_exclusive),
        "upload_is_exclusive": as_json(report.upload_is_exclusive),
        "list_is_current": as_json(report.list_is_current),
        "may_delete": as_json(report.may_delete),
        "delete_has_condition": as_json(report.delete_has_condition),
        "may_overwrite": as_json(report.may_overwrite),
        "keeps_versions": report.keeps_versions,
        "clock_offset_ms": report.clock_offset_ms,
        "left_behind": report.left_behind,
    });
    context.output.answer(fields, || text(&url, &report));
    match unsuitable {
        Some(why) => Err(remote::unsuitable(&url, why)),
        None => Ok(()),
    }
}

/// `null`: these credentials do not permit to ask.
fn as_json(outcome: ProbeOutcome) -> Value {
    match outcome {
        ProbeOutcome::Yes => Value::Bool(true),
        ProbeOutcome::No => Value::Bool(false),
        ProbeOutcome::Denied => Value::Null,
    }
}

fn text(url: &RemoteUrl, report: &ProbeReport) -> String {
    let word = |outcome| match outcome {
        ProbeOutcome::Yes => "yes",
        ProbeOutcome::No => "no",
        ProbeOutcome::Denied => "not permitted",
    };
    let clock = match report.clock_offset_ms {
        None => "unknown".to_owned(),
        Some(ms) if ms.abs() < EQUAL_MS => "equal to this machine's".to_owned(),
        Some(ms) if ms > 0 => format!("{} s ahead of this machine", ms / 1000),
        Some(ms) => format!("{} s behind this machine", -ms / 1000),
    };
    let mut text = format!(
        "{url}\n\
         A second create of a file is refused    {}\n\
         A second upload in parts is refused     {}\n\
         Lists are current                       {}\n\
         These credentials may delete            {}\n\
         A delete can name one version           {}\n\
         These credentials may overwrite         {}\n\
         Deleted objects stay as old versions    {}\n\
         Clock of the store                      {clock}\n",
        word(report.create_is_exclusive),
        word(report.upload_is_exclusive),
        word(report.list_is_current),
        word(report.may_delete),
        word(report.delete_has_condition),
        word(report.may_overwrite),
        report.keeps_versions.map_or("unknown", |keeps| if keeps { "yes" } else { "no" }),
    );
    if report.keeps_versions == Some(true) {
        text.push_str(
            "Deleted objects keep their bytes until a lifecycle rule of the bucket removes old versions.\n",
        );
    }
    if !report.left_behind.is_empty() {
        text.push_str(&format!(
            "These objects stay, since the credentials may not delete: {}\n",
            report.left_behind.join(", ")
        ));
    }
    let is_open = report.may_delete == ProbeOutcome::Yes || report.may_overwrite == ProbeOutcome::Yes;
    if is_open && url.kind == CloudKind::S3 {
        text.push_str(
            "A stolen key of this machine could delete or overwrite backups. This policy for its user forbids both; prune\n\
             with other credentials:\n",
        );
        text.push_str(&policy(url));
    }
    text
}

/// A policy for hosts that back up: create, read and list.
fn policy(url: &RemoteUrl) -> String {
    let (bucket, prefix) = (&url.bucket, &url.prefix);
    let objects = format!("arn:aws:s3:::{bucket}/{prefix}/*");
    let policy = json!({
        "Version": "2012-10-17",
        "Statement": [
            { "Effect": "Allow", "Action": ["s3:GetObject", "s3:AbortMultipartUpload"], "Resource": objects },
            { "Effect": "Allow", "Action": "s3:PutObject", "Resource": objects,
              "Condition": { "Null": { "s3:if-none-match": "false" } } },
            { "Effect": "Allow", "Action": "s3:ListBucket", "Resource": format!("arn:aws:s3:::{bucket}"),
              "Condition": { "StringLike": { "s3:prefix": format!("{prefix}/*") } } },
        ],
    });
    format!("{policy:#}\n")
}
