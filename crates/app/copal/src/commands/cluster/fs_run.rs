//! `copal fs run`: runs operations from JSON lines, many at a time, and prints each result when the operation
//! ends.

use super::CommandContext;
use crate::{
    cluster::{fid_of, file_as_json as as_json, word},
    failure::{Failure, Outcome},
    output::write_out,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use copal_client::{Cluster, ClusterStore};
use copal_volume::{
    Consistency, FileId, PutOptions, ReadOptions, RemoveMode, SettleChoice, SettleOutcome as Settled,
    VolumeError, VolumeId, VolumeOptions,
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::BufRead,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Most files in the answer of a listing.
const MOST_LISTED: usize = 100_000;
/// Lines read ahead of execution.
const READ_AHEAD: usize = 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationLine {
    #[serde(default)]
    id: Value,
    op: String,
    #[serde(default)]
    volume: String,
    #[serde(default)]
    name: String,
    body_b64: Option<String>,
    fid: Option<String>,
    deadline_ms: Option<u64>,
    consistency: Option<String>,
    /// For a get: return the bytes.
    #[serde(default)]
    body: bool,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    with_files: bool,
    #[serde(default)]
    abort: bool,
}

type Volumes = Arc<Mutex<HashMap<String, VolumeId>>>;

pub(crate) fn run(context: &CommandContext<'_>, store: &ClusterStore, parallel: usize) -> Outcome<()> {
    let (give, lines) = mpsc::sync_channel::<String>(READ_AHEAD);
    let reader = thread::Builder::new().name("input".to_owned()).spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if give.send(line).is_err() {
                return;
            }
        }
    });
    reader.map_err(super::start_failure)?;
    let lines = Mutex::new(lines);
    let volumes = Volumes::default();
    // One thread per concurrent operation: the threads only wait for the cluster.
    let started = thread::scope(|scope| {
        for number in 0..parallel {
            let work = || {
                while !context.is_ended() {
                    let next = lines.lock().recv_timeout(Duration::from_millis(100));
                    match next {
                        Ok(line) if line.trim().is_empty() => {}
                        Ok(line) => answer(store, &volumes, &line),
                        Err(mpsc::RecvTimeoutError::Timeout) => {}
                        Err(mpsc::RecvTimeoutError::Disconnected) => return,
                    }
                }
            };
            let worker = thread::Builder::new().name("operation".to_owned());
            match worker.spawn_scoped(scope, work) {
                Ok(_) => {}
                Err(error) if number == 0 => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, operations = number, "fewer concurrent operations than --parallel: no more threads");
                    break;
                }
            }
        }
        Ok(())
    });
    started.map_err(super::start_failure)?;
    match context.is_ended() {
        true => Err(Failure::new(crate::failure::exit::INTERRUPTED, "cancelled", "interrupted")),
        false => Ok(()),
    }
}

/// CLOCK_MONOTONIC, ns: the same for all processes of a machine.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn answer(store: &ClusterStore, volumes: &Volumes, text: &str) {
    let start = now_ns();
    let (id, outcome) = match serde_json::from_str::<OperationLine>(text) {
        Ok(line) => {
            let deadline = line.deadline_ms.map_or(Duration::from_secs(30), Duration::from_millis);
            let operation = RunOperation {
                cluster: store.cluster(),
                volumes,
                line: &line,
                end: Instant::now() + deadline,
            };
            (line.id.clone(), store.wait(operation.run()))
        }
        Err(error) => (Value::Null, Err(OperationError::Words(error.to_string()))),
    };
    let mut reply = match outcome {
        Ok(fields) => fields,
        Err(OperationError::Words(why)) => json!({ "error": "invalid", "message": why }),
        Err(OperationError::Volume(error)) => {
            let mut reply = json!({ "error": word(&error).1, "message": error.to_string() });
            if let Some(fid) = fid_of(&error) {
                reply["fid"] = json!(fid);
            }
            reply
        }
    };
    reply["id"] = id;
    reply["ok"] = json!(reply.get("error").is_none());
    (reply["start_ns"], reply["end_ns"]) = (json!(start), json!(now_ns()));
    write_out(&format!("{reply}\n"));
}

enum OperationError {
    Words(String),
    Volume(VolumeError),
}

impl From<VolumeError> for OperationError {
    fn from(error: VolumeError) -> OperationError {
        OperationError::Volume(error)
    }
}

struct RunOperation<'a> {
    cluster: &'a Cluster,
    volumes: &'a Volumes,
    line: &'a OperationLine,
    end: Instant,
}

impl RunOperation<'_> {
    async fn run(&self) -> Result<Value, OperationError> {
        let outcome = self.try_run().await;
        // The path may name another volume now.
        if matches!(outcome, Err(OperationError::Volume(VolumeError::VolumeGone))) && self.line.op != "mkdir"
        {
            self.volumes.lock().remove(&self.line.volume);
            return self.try_run().await;
        }
        outcome
    }

    async fn try_run(&self) -> Result<Value, OperationError> {
        let (line, cluster, end) = (self.line, self.cluster, self.end);
        let name = line.name.as_bytes();
        match line.op.as_str() {
            "put" => {
                let body = line.body_b64.as_deref().unwrap_or_default();
                let body = STANDARD
                    .decode(body)
                    .map_err(|error| OperationError::Words(format!("body_b64: {error}")))?;
                let vid = self.volume().await?;
                let info = cluster.put(vid, name, Bytes::from(body), &PutOptions::default(), end).await?;
                Ok(as_json(&info))
            }
            "get" => {
                let vid = self.volume().await?;
                let (bytes, info) = cluster.get(vid, name, 0..u64::MAX, &self.options()?, end).await?;
                let mut reply = as_json(&info);
                if line.body {
                    reply["body_b64"] = json!(STANDARD.encode(&bytes));
                }
                Ok(reply)
            }
            "stat" => {
                let vid = self.volume().await?;
                Ok(as_json(&cluster.stat(vid, name, &self.options()?, end).await?))
            }
            "delete" => {
                let vid = self.volume().await?;
                let fid = match self.fid()? {
                    Some(fid) => fid,
                    None => cluster.stat(vid, name, &self.options()?, end).await?.fid,
                };
                cluster.delete(vid, name, fid, end).await?;
                Ok(json!({ "fid": fid.to_string() }))
            }
            "list" => {
                let vid = self.volume().await?;
                let files = cluster
                    .list(vid, line.prefix.as_bytes(), None, MOST_LISTED, &self.options()?, end)
                    .await?;
                let names: Vec<Value> = files
                    .iter()
                    .map(|(name, info)| json!({ "name": String::from_utf8_lossy(name), "fid": info.fid.to_string() }))
                    .collect();
                Ok(json!({ "files": names }))
            }
            "mkdir" => {
                let (parent, name) = line.volume.rsplit_once('/').unwrap_or(("", &line.volume));
                let vid = cluster.create_volume(parent, name, &VolumeOptions::default(), end).await?;
                Ok(json!({ "vid": vid.0 }))
            }
            "rmdir" => {
                let vid = self.volume().await?;
                let how = match line.with_files {
                    true => RemoveMode::WithFiles,
                    false => RemoveMode::IfEmpty,
                };
                cluster.remove_volume(vid, how, end).await?;
                self.volumes.lock().remove(&line.volume);
                Ok(json!({}))
            }
            "settle" => {
                let vid = self.volume().await?;
                let fid =
                    self.fid()?.ok_or_else(|| OperationError::Words("settle takes a fid".to_owned()))?;
                let want = match line.abort {
                    true => SettleChoice::Abort,
                    false => SettleChoice::Commit,
                };
                let outcome = match cluster.settle(vid, fid, want, end).await? {
                    Settled::Committed => "committed",
                    Settled::Aborted => "aborted",
                };
                Ok(json!({ "fid": fid.to_string(), "outcome": outcome }))
            }
            other => Err(OperationError::Words(format!("there is no operation {other:?}"))),
        }
    }

    async fn volume(&self) -> Result<VolumeId, VolumeError> {
        let known = self.volumes.lock().get(&self.line.volume).copied();
        if let Some(vid) = known {
            return Ok(vid);
        }
        let vid = self.cluster.open_volume(&self.line.volume, self.end).await?;
        self.volumes.lock().insert(self.line.volume.clone(), vid);
        Ok(vid)
    }

    fn fid(&self) -> Result<Option<FileId>, OperationError> {
        let parse = |text: &String| {
            u128::from_str_radix(text, 16)
                .map_err(|_| OperationError::Words(format!("{text} is no id of a file")))
        };
        Ok(self.line.fid.as_ref().map(parse).transpose()?.map(FileId))
    }

    fn options(&self) -> Result<ReadOptions, OperationError> {
        let consistency = match self.line.consistency.as_deref() {
            None | Some("available") => Consistency::Available,
            Some("strict") => Consistency::Strict,
            Some(other) => return Err(OperationError::Words(format!("{other} is no consistency"))),
        };
        Ok(ReadOptions { consistency, if_file: None })
    }
}
