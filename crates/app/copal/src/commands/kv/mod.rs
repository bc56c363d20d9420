//! `copal kv`: inspects and repairs the engine below a repository, or any store of it.

mod dump;
mod filters;
mod heat_svg;
mod repair;
mod stats;
mod verify;

use super::CommandContext;
use crate::{
    arguments::kv::{EnginePlace, KvArgs, KvCommand},
    failure::{Failure, Outcome, exit},
    place::RepositoryPlace,
};
use copal_kv::{Options, Store};
use copal_node::{Access, MemoryShares, NodeError, StoreLocation};
use copal_object::Store as Objects;
use std::path::{Path, PathBuf};

pub(super) fn run(context: &CommandContext<'_>, kv: &KvArgs) -> Outcome<()> {
    let place = EnginePlace {
        common: &context.arguments.common,
        store: kv.store.as_ref(),
        patience: context.patience(),
    };
    if place.common.record_gets.is_some() {
        return Err(Failure::usage(
            "--record-gets records the look-ups of commands on a repository; `copal kv` makes none of its own",
        ));
    }
    match &kv.command {
        KvCommand::Dump(words) => dump::run(context, &place, words),
        KvCommand::Verify(words) => verify::run(context, &place, words),
        KvCommand::Repair(words) => repair::run(context, &place, words),
        KvCommand::Stats => stats::run(context, &place),
        KvCommand::Filters(words) => filters::run(context, &place, words),
    }
}

/// The location of the named store.
fn place_of(place: &EnginePlace<'_>) -> Outcome<StoreLocation> {
    match place.store {
        None => match RepositoryPlace::find(place.common)? {
            RepositoryPlace::Store(location) => Ok(location),
            RepositoryPlace::Remote(url) => Err(Failure::usage(format!(
                "{url} is in an object store, which has no engine; name a store of this machine with `copal kv --store DIR`"
            ))),
            RepositoryPlace::Cluster(_) => Err(Failure::usage(
                "a repository in a cluster has no engine of its own; inspect the store of a data server with \
                 `copal kv --store DIR`",
            )),
        },
        Some(path) => bare(path),
    }
}

/// A store outside a repository.
pub(crate) fn bare(path: &Path) -> Outcome<StoreLocation> {
    use std::os::unix::fs::FileTypeExt;
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Ok(StoreLocation::Files(path.to_owned())),
        Ok(meta) if meta.file_type().is_block_device() => Ok(StoreLocation::Device(path.to_owned())),
        Ok(_) => Ok(StoreLocation::File(path.to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::new(
            exit::NO_REPOSITORY,
            "no_store",
            format!("there is no store at {}; check the path", path.display()),
        )),
        Err(error) => Err(Failure::plain("open", format!("cannot look at {}: {error}", path.display()))),
    }
}

fn objects(place: &EnginePlace<'_>, access: Access) -> Outcome<(PathBuf, Objects)> {
    let found = place_of(place)?;
    let (objects, _) = found.open(access, &place.common.store_options(), &place.patience)?;
    Ok((found.path().to_owned(), objects))
}

/// Opens the engine of the named store.
fn engine(place: &EnginePlace<'_>, access: Access) -> Outcome<(PathBuf, Store)> {
    let (path, objects) = objects(place, access)?;
    let options = Options {
        memory_bytes: MemoryShares::of(place.common.memory_bytes())?.engine,
        read_only: access == Access::Read,
        ..Options::default()
    };
    let store =
        Store::open(objects, options).map_err(|source| NodeError::Engine { path: path.clone(), source })?;
    Ok((path, store))
}

/// Ends a session; its writes are durable then.
fn close(store: &Store, access: Access) -> Outcome<()> {
    store.close().map_err(failed)?;
    if access == Access::Write {
        let closed = store.objects().close();
        closed.map_err(|error| Failure::plain("close", format!("closing the store: {error}")))?;
    }
    Ok(())
}

fn failed(error: copal_kv::Error) -> Failure {
    if error.is_corruption() {
        return Failure::new(exit::DAMAGED, "damaged", error.to_string());
    }
    if error.is_no_space() || error.is_host_full() {
        return Failure::from(copal_backup::Error::NoSpace);
    }
    Failure::plain("engine", error.to_string())
}

/// The failure of a command that found damage.
pub(crate) fn damaged(path: &Path, places: u64, advice: &str) -> Failure {
    Failure::new(
        exit::DAMAGED,
        "damaged",
        format!(
            "{} is damaged in {places} {}; {advice}",
            path.display(),
            if places == 1 { "place" } else { "places" }
        ),
    )
}
