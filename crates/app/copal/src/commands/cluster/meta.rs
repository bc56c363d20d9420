//! `copal meta`: backs up, restores and checks the database of a master.

use super::{CommandContext, start_failure, take};
use crate::{
    arguments::MetaCommand,
    failure::{Failure, Outcome, exit},
};
use copal_master::{MetadataBackupError, TableSummary};
use copal_server::MasterHome;
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

pub(crate) fn run(context: &CommandContext<'_>, verb: &MetaCommand) -> Outcome<()> {
    match verb {
        MetaCommand::Backup { dir, file } => {
            let kept = copal_master::back_up_tables(&found(dir)?, file).map_err(failure)?;
            print_tables(context, &kept, &format!("saved in {}", file.display()));
            Ok(())
        }
        MetaCommand::Restore { dir, file, away } => {
            let _lock = take(dir)?;
            let database = MasterHome::database(dir);
            let kept = copal_master::restore_tables(file, &database, away, now_ms()).map_err(failure)?;
            let home = MasterHome::read(dir).is_ok();
            let then = match home {
                true => format!(
                    "start it with `copal master --dir {} --after-restore` while all data servers run",
                    dir.display()
                ),
                false => {
                    format!("put master.json of the old master into {} before it is started", dir.display())
                }
            };
            print_tables(context, &kept, &format!("restored into {}; {then}", dir.display()));
            Ok(())
        }
        MetaCommand::Check { dir, file } => {
            let database = match (dir, file) {
                (_, Some(file)) => file.clone(),
                (Some(dir), None) => found(dir)?,
                (None, None) => {
                    return Err(Failure::usage(
                        "nothing to check was named: give --dir DIR, or the FILE of a copy",
                    ));
                }
            };
            let found = copal_master::check_tables(&database).map_err(failure)?;
            for sentence in &found {
                context.output.error(json!({ "message": sentence }), sentence);
            }
            context.output.summary(json!({ "disagreements": found.len() }), || {
                format!("{}: {} disagreements\n", database.display(), found.len())
            });
            match found.len() {
                0 => Ok(()),
                _ => Err(Failure::new(
                    exit::DAMAGED,
                    "damaged",
                    "the tables are inconsistent; restore a copy with `copal meta restore`",
                )),
            }
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// The database of a master's directory.
fn found(dir: &Path) -> Outcome<PathBuf> {
    let database = MasterHome::database(dir);
    if MasterHome::read(dir).is_ok_and(|home| home.meta.is_some()) {
        return Err(Failure::new(
            exit::USAGE,
            "shared",
            format!(
                "the master in {} shares a database with others: back that up with its own tools (mariadb-dump \
                 --single-transaction)",
                dir.display()
            ),
        ));
    }
    match database.exists() {
        true => Ok(database),
        false => Err(Failure::new(
            exit::NO_REPOSITORY,
            "no_master",
            format!("there is no database of a master in {}", dir.display()),
        )),
    }
}

fn print_tables(context: &CommandContext<'_>, kept: &TableSummary, what: &str) {
    let fields = json!({ "volumes": kept.volumes, "servers": kept.servers, "map_version": kept.map_version });
    context
        .output
        .summary(fields, || format!("{} volumes and {} servers {what}\n", kept.volumes, kept.servers));
}

fn failure(error: MetadataBackupError) -> Failure {
    match error {
        MetadataBackupError::Damaged { .. } => Failure::new(exit::DAMAGED, "damaged", error.to_string()),
        MetadataBackupError::System { path, source }
            if source.kind() == std::io::ErrorKind::AlreadyExists =>
        {
            Failure::new(
                exit::DENIED,
                "exists",
                format!("{} is there already; give another name", path.display()),
            )
        }
        error => start_failure(error),
    }
}
