//! `copal fs`: volumes and files of a cluster.

use super::{CommandContext, answer, fs_run, group::as_table};
use crate::{
    arguments::{FileArgs, FsArgs, FsCommand, TransferWord},
    cluster::{self, administer, file_as_json as as_json, of_volume},
    failure::{Failure, Outcome, exit},
    human,
    stdin::InterruptibleStdin,
};
use bytes::Bytes;
use copal_client::{ClusterStore, TransferMode, administration::requests};
use copal_volume::{
    Consistency, FileId, FileInfo, PutOptions, ReadOptions, RemoveMode, SettleChoice,
    SettleOutcome as Settled, VolumeError, VolumeId, VolumeOptions, VolumeStore,
};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    path::Path,
};

/// Bytes per read or write.
const CHUNK: usize = 4 << 20;
/// Entries per request of a listing.
const PAGE: usize = 1000;

pub(crate) fn run(context: &CommandContext<'_>, words: &FsArgs) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?.with_deadline(words.deadline);
    let fs = FileCommands { context, store: &store };
    match &words.verb {
        FsCommand::Mkdir { volume, quota } => fs.mkdir(volume, *quota),
        FsCommand::Put { file, from, transfer } => {
            store.cluster().set_transfer(match transfer {
                TransferWord::Auto => TransferMode::Auto,
                TransferWord::Parallel => TransferMode::Parallel,
                TransferWord::Chain => TransferMode::Chain,
            });
            fs.put(file, from)
        }
        FsCommand::Get { file, to, strict } => fs.get(file, to, *strict),
        FsCommand::Ls { volume, prefix } => fs.ls(volume, prefix),
        FsCommand::Stat { file, strict } => fs.stat(file, *strict),
        FsCommand::Rm { file, fid } => fs.rm(file, *fid),
        FsCommand::Rmdir { volume, with_files } => fs.rmdir(volume, *with_files),
        FsCommand::Mv { from, to } => {
            store.rename_volume(from, to).map_err(of_volume)?;
            context.output.summary(json!({ "from": from, "to": to }), || format!("{from} is {to} now\n"));
            Ok(())
        }
        FsCommand::Where { volume, .. } => fs.show_where(volume),
        FsCommand::Settle { volume, fid, abort } => fs.settle(volume, FileId(*fid), *abort),
        FsCommand::Run { parallel } => fs_run::run(context, &store, usize::from(*parallel)),
    }
}

struct FileCommands<'a> {
    context: &'a CommandContext<'a>,
    store: &'a ClusterStore,
}

impl FileCommands<'_> {
    fn volume(&self, path: &str) -> Outcome<VolumeId> {
        self.store.open_volume(path).map_err(|error| match error {
            VolumeError::NotFound => Failure::new(
                exit::NOT_FOUND,
                "not_found",
                format!(
                    "there is no volume {path}; `copal fs ls` lists them, `copal fs mkdir {path}` makes it"
                ),
            ),
            error => of_volume(error),
        })
    }

    fn mkdir(&self, path: &str, quota_bytes: Option<u64>) -> Outcome<()> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let options = VolumeOptions { quota_bytes, ..VolumeOptions::default() };
        let vid = self.store.create_volume(parent, name, &options).map_err(of_volume)?;
        let fields = json!({ "volume": path, "vid": vid.0, "group": vid.birth_group().0 });
        self.context.output.summary(fields, || format!("created {path} in group {}\n", vid.birth_group()));
        Ok(())
    }

    fn put(&self, file: &FileArgs, from: &Path) -> Outcome<()> {
        let vid = self.volume(&file.volume)?;
        let mut source: Box<dyn Read> = match from.as_os_str() == "-" {
            true => Box::new(InterruptibleStdin::new(self.context.cancel.clone())),
            false => Box::new(File::open(from).map_err(|error| {
                Failure::new(exit::SOURCE, "source", format!("cannot read {}: {error}", from.display()))
            })?),
        };
        let named = |error| named(file, error);
        let options = PutOptions::default();
        let first = read_chunk(&mut source, from)?;
        let info = match first.len() < CHUNK {
            true => self.store.put(vid, file.name.as_bytes(), first, &options).map_err(named)?,
            false => {
                let mut writer = self.store.writer(vid, file.name.as_bytes(), &options).map_err(named)?;
                let mut chunk = first;
                while !chunk.is_empty() {
                    if self.context.is_ended() {
                        return Err(Failure::new(
                            exit::INTERRUPTED,
                            "cancelled",
                            "interrupted; the file was not created",
                        ));
                    }
                    writer.append(chunk).map_err(named)?;
                    chunk = read_chunk(&mut source, from)?;
                }
                writer.commit().map_err(named)?
            }
        };
        self.context.output.summary(as_json(&info), || {
            format!("{}/{}: {}, file {}\n", file.volume, file.name, human::bytes(info.size), info.fid)
        });
        Ok(())
    }

    fn get(&self, file: &FileArgs, to: &Path, strict: bool) -> Outcome<()> {
        let vid = self.volume(&file.volume)?;
        let name = file.name.as_bytes();
        let options = how(strict);
        let info = self.store.stat(vid, name, &options).map_err(|error| named(file, error))?;
        let is_stdout = to.as_os_str() == "-";
        let failed = |error: std::io::Error| {
            let what = match error.kind() {
                ErrorKind::AlreadyExists => "it exists; give another name".to_owned(),
                _ => error.to_string(),
            };
            Failure::new(exit::FAILURE, "target", format!("cannot write {}: {what}", to.display()))
        };
        let mut target: Box<dyn Write> = match is_stdout {
            true => Box::new(std::io::stdout()),
            false => Box::new(File::create_new(to).map_err(failed)?),
        };
        let copied = self
            .copy(file, (vid, &info), &mut target)
            .and_then(|()| target.flush().map_err(CopyError::Target));
        if let Err(cut) = copied {
            if !is_stdout {
                // An incomplete file is removed: later nothing would show that it is incomplete.
                drop(target);
                let _ = std::fs::remove_file(to);
            }
            return Err(match cut {
                CopyError::Target(error) => failed(error),
                CopyError::Source(failure) => failure,
            });
        }
        if !is_stdout {
            self.context
                .output
                .summary(as_json(&info), || format!("{}: {}\n", to.display(), human::bytes(info.size)));
        }
        Ok(())
    }

    fn ls(&self, path: &str, prefix: &str) -> Outcome<()> {
        let vid = match path.is_empty() {
            true => None,
            false => Some(self.volume(path)?),
        };
        let volumes = self.volumes_below(path)?;
        let mut files: Vec<(Bytes, FileInfo)> = Vec::new();
        if let Some(vid) = vid {
            loop {
                let after = files.last().map(|(name, _)| name.clone());
                let page = self
                    .store
                    .list(vid, prefix.as_bytes(), after.as_deref(), PAGE, &ReadOptions::STRICT)
                    .map_err(of_volume)?;
                let is_last = page.len() < PAGE;
                files.extend(page);
                if is_last {
                    break;
                }
            }
        }
        let listed: Vec<Value> = files
            .iter()
            .map(|(name, info)| {
                let mut file = as_json(info);
                file["name"] = json!(String::from_utf8_lossy(name));
                file
            })
            .collect();
        let below: Vec<Value> =
            volumes.iter().map(|(name, vid)| json!({ "name": name, "vid": vid.0 })).collect();
        self.context.output.answer(json!({ "volumes": below, "files": listed }), || {
            let mut rows: Vec<Vec<String>> = volumes
                .iter()
                .map(|(name, vid)| vec![format!("{name}/"), String::new(), String::new(), vid.to_string()])
                .collect();
            rows.extend(files.iter().map(|(name, info)| {
                vec![
                    String::from_utf8_lossy(name).into_owned(),
                    human::bytes(info.size),
                    human::local_time(info.created_ms),
                    info.fid.to_string(),
                ]
            }));
            human::table(&["Name", "Size", "Created", "Id"], &rows)
        });
        Ok(())
    }

    fn volumes_below(&self, path: &str) -> Outcome<Vec<(String, VolumeId)>> {
        let mut volumes: Vec<(String, VolumeId)> = Vec::new();
        loop {
            let after = volumes.last().map(|(name, _)| name.clone());
            let page = self.store.list_volumes(path, after.as_deref(), PAGE).map_err(of_volume)?;
            let is_last = page.len() < PAGE;
            volumes.extend(page);
            if is_last {
                return Ok(volumes);
            }
        }
    }

    /// Writes all bytes of a file.
    fn copy(
        &self,
        file: &FileArgs,
        (vid, info): (VolumeId, &FileInfo),
        target: &mut dyn Write,
    ) -> Result<(), CopyError> {
        let of_this = ReadOptions { if_file: Some(info.fid), ..ReadOptions::default() };
        let mut at = 0;
        while at < info.size {
            let end = info.size.min(at + CHUNK as u64);
            let bytes = self
                .store
                .get(vid, file.name.as_bytes(), at..end, &of_this)
                .map_err(|error| CopyError::Source(named(file, error)))?;
            at = end;
            target.write_all(&bytes).map_err(CopyError::Target)?;
            if self.context.is_ended() {
                let interrupted = Failure::new(exit::INTERRUPTED, "cancelled", "interrupted");
                return Err(CopyError::Source(interrupted));
            }
        }
        Ok(())
    }

    fn stat(&self, file: &FileArgs, strict: bool) -> Outcome<()> {
        let vid = self.volume(&file.volume)?;
        let info =
            self.store.stat(vid, file.name.as_bytes(), &how(strict)).map_err(|error| named(file, error))?;
        self.context.output.answer(as_json(&info), || {
            format!(
                "{}/{}\nsize     {} bytes\ncreated  {}\nfile     {}\ncrc32c   {:08x}\n",
                file.volume,
                file.name,
                info.size,
                human::local_time(info.created_ms),
                info.fid,
                info.crc32c
            )
        });
        Ok(())
    }

    fn rm(&self, file: &FileArgs, fid: Option<u128>) -> Outcome<()> {
        let vid = self.volume(&file.volume)?;
        let name = file.name.as_bytes();
        let meant = fid.map(FileId);
        let fid = match meant {
            Some(fid) => fid,
            None => {
                self.store.stat(vid, name, &ReadOptions::default()).map_err(|error| named(file, error))?.fid
            }
        };
        let delete = self.store.cluster().delete(vid, name, fid, self.store.end());
        self.store.wait(delete).map_err(|error| match (error, meant) {
            (VolumeError::NotFound, Some(fid)) => Failure::new(
                exit::NOT_FOUND,
                "not_found",
                format!(
                    "{} in {} is not file {fid}: nothing is deleted; `copal fs stat {} {}` shows which file it is",
                    file.name, file.volume, file.volume, file.name
                ),
            ),
            (error, _) => named(file, error),
        })?;
        self.context.output.summary(json!({ "fid": fid.to_string() }), || {
            format!("deleted {}/{}\n", file.volume, file.name)
        });
        Ok(())
    }

    fn rmdir(&self, path: &str, with_files: bool) -> Outcome<()> {
        let vid = self.volume(path)?;
        let how = match with_files {
            true => RemoveMode::WithFiles,
            false => RemoveMode::IfEmpty,
        };
        self.store.remove_volume(vid, how).map_err(of_volume)?;
        self.context.output.summary(json!({ "volume": path }), || format!("removed {path}\n"));
        Ok(())
    }

    fn show_where(&self, path: &str) -> Outcome<()> {
        let vid = self.volume(path)?;
        let group = administer(self.store, &requests::ShowGroup { group: vid.birth_group().0 })?;
        answer(self.context, &group, || as_table(std::slice::from_ref(&group)))
    }

    fn settle(&self, path: &str, fid: FileId, abort: bool) -> Outcome<()> {
        let vid = self.volume(path)?;
        let want = match abort {
            true => SettleChoice::Abort,
            false => SettleChoice::Commit,
        };
        let outcome = self.store.settle(vid, fid, want).map_err(|error| match error {
            VolumeError::NotFound => Failure::new(
                exit::NOT_FOUND,
                "not_found",
                format!("no file has the id {fid} yet: nothing is settled; a put that ends with exit code 43 prints the id"),
            ),
            error => of_volume(error),
        })?;
        let word = match outcome {
            Settled::Committed => "committed",
            Settled::Aborted => "aborted",
        };
        let fields = json!({ "fid": fid.to_string(), "outcome": word });
        self.context.output.answer(fields, || format!("file {fid} is {word}\n"));
        Ok(())
    }
}

fn named(file: &FileArgs, error: VolumeError) -> Failure {
    match error {
        VolumeError::NotFound => Failure::new(
            exit::NOT_FOUND,
            "not_found",
            format!(
                "there is no file {} in {}; `copal fs ls {}` lists them",
                file.name, file.volume, file.volume
            ),
        ),
        error @ VolumeError::Unknown { fid } => Failure {
            sentence: format!(
                "the outcome of file {fid} is unknown: some servers may have it; `copal fs settle {} {fid}` decides it",
                file.volume
            ),
            ..of_volume(error)
        },
        error => of_volume(error),
    }
}

/// Reads up to a chunk; shorter only at the end.
fn read_chunk(source: &mut dyn Read, from: &Path) -> Outcome<Bytes> {
    let mut chunk = Vec::new();
    let read = source.take(CHUNK as u64).read_to_end(&mut chunk);
    read.map_err(|error| {
        Failure::new(exit::SOURCE, "source", format!("cannot read {}: {error}", from.display()))
    })?;
    Ok(Bytes::from(chunk))
}

/// Reason for the early end of a copy.
enum CopyError {
    Source(Failure),
    Target(std::io::Error),
}

fn how(strict: bool) -> ReadOptions {
    ReadOptions {
        consistency: match strict {
            true => Consistency::Strict,
            false => Consistency::Available,
        },
        if_file: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: after exit code 43 the command to settle the file named no volume. Fix: it can be pasted.
    #[test]
    fn an_unknown_outcome_names_the_settle_command() {
        let file = FileArgs { volume: "mail/2026".to_owned(), name: "m1".to_owned() };
        let fid = FileId::new(1, 2, 3);
        let failure = named(&file, VolumeError::Unknown { fid });
        assert_eq!(failure.exit_code, exit::UNKNOWN);
        let command = format!("`copal fs settle mail/2026 {fid}`");
        assert!(failure.sentence.contains(&command), "{}", failure.sentence);
    }
}
