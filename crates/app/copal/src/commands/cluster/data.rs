//! `copal data`.

use super::{
    CommandContext, check_address, check_advertised, check_fixed_address, check_listens, child,
    start_failure, take, tokens,
};
use crate::{
    arguments::DataArgs,
    commands::new_store,
    failure::{Failure, Outcome, exit},
};
use copal_data::MemberIdentity;
use copal_node::{
    MemberStack, MemoryShares, NewStore, NodeError, StoreLocation, StoreOptions, UnfinishedStore,
};
use copal_object::BackendKind;
use copal_server::{DataProcess, HomeError, ServerHome, StoreSpace};
use copal_volume::group::{Incarnation, Term};
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Poll interval of the end of the process.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest search of a joining server for the master.
const TO_JOIN: Duration = Duration::from_secs(30);

pub(crate) fn run(context: &CommandContext<'_>, words: &DataArgs) -> Outcome<()> {
    if let Some(parent) = words.child.end_with_parent {
        child::end_with_parent(parent)?;
    }
    crate::commands::descriptors::raise_limit();
    let _lock = take(&words.dir)?;
    let home = match ServerHome::read(&words.dir) {
        Ok(home) if home.has_joined() => again(context, words, home)?,
        Ok(home) => begin(context, words, Some(home))?,
        Err(HomeError::Missing { .. }) => begin(context, words, None)?,
        Err(error) => return Err(start_failure(error)),
    };
    let options = store_options(context, home.limit_bytes);
    let location = match StoreLocation::find(&words.dir) {
        Err(NodeError::NotFound { .. }) => return Err(lost_store(words, &home)),
        found => found?,
    };
    let opened = location.open(copal_node::Access::Write, &options, &context.patience())?;
    let shares = shares(context, &home)?;
    let stack = MemberStack::open(location.path(), opened, shares.engine)?;
    let whose = stack.members().identity()?;
    if whose.is_none_or(|whose| (whose.server, whose.disk) != (home.server_uuid(), home.disk_uuid())) {
        return Err(lost_store(words, &home));
    }
    let drawn = copal_volume::random_incarnation().map_err(start_failure)?;
    let identity = stack.members().boot(drawn)?;
    let room = StoreRoom {
        objects: stack.objects().clone(),
        directory: words.dir.clone(),
        limit_bytes: home.limit_bytes,
    };
    let medium = medium(&words.dir);
    let rate = home.recovery_bytes_per_s.unwrap_or_else(|| recovery_rate(medium));
    let process = DataProcess::start(
        stack.members().clone(),
        identity,
        &home,
        &words.dir,
        Box::new(room),
        rate,
        medium.unwrap_or_default(),
    )
    .map_err(start_failure)?;
    let http = process.answer_monitor(&home.http).map_err(start_failure)?;
    context.output.message(
        "ready",
        json!({ "name": home.name, "pid": std::process::id(), "address": process.address(), "http": http }),
    );
    let monitored = super::monitored(http.as_deref());
    context.output.line(&format!("ready: {} listens at {}{monitored}", home.name, process.address()));
    let mut refused = None;
    while refused.is_none() && !context.is_ended() {
        refused = process.sent_away(POLL_INTERVAL);
    }
    process.stop();
    stack.close()?;
    match refused {
        None => Ok(()),
        Some(refused) => Err(Failure::new(exit::DENIED, "denied", refused.to_string())),
    }
}

/// A start after the first.
fn again(context: &CommandContext<'_>, words: &DataArgs, mut home: ServerHome) -> Outcome<ServerHome> {
    if words.join.is_some() {
        return Err(Failure::new(
            exit::DENIED,
            "exists",
            format!(
                "{} is the directory of {} already; start it with --dir alone",
                words.dir.display(),
                home.name
            ),
        ));
    }
    if words.backend.backend.is_some() {
        return Err(Failure::usage(format!(
            "the store in {} exists and keeps its kind; leave --backend out",
            words.dir.display()
        )));
    }
    if let Some(listen) = &words.listen {
        check_address(listen)?;
        home.listen.clone_from(listen);
        // The saved address belongs to the previous listener.
        home.advertise = None;
    }
    if words.advertise.is_some() {
        home.advertise.clone_from(&words.advertise);
    }
    home.advertise.as_deref().map_or(Ok(()), check_fixed_address)?;
    check_advertised(home.reached_at())?;
    if words.recovery_rate.is_some() {
        home.recovery_bytes_per_s = words.recovery_rate;
    }
    if words.limit.is_some() {
        home.limit_bytes = words.limit;
    }
    if let Some(http) = &words.monitored.http {
        home.http.clone_from(http);
    }
    let memory = context.arguments.common.memory;
    home.memory_bytes = memory.or(home.memory_bytes);
    // Checked before the settings are written: a refused start changes nothing.
    shares(context, &home)?;
    let is_changed = words.listen.is_some()
        || words.advertise.is_some()
        || words.recovery_rate.is_some()
        || words.limit.is_some();
    if place(words, &mut home) || is_changed || memory.is_some() || words.monitored.http.is_some() {
        home.write(&words.dir).map_err(start_failure)?;
    }
    Ok(home)
}

/// Takes over the rack and zone of the arguments; returns whether any was given.
fn place(words: &DataArgs, home: &mut ServerHome) -> bool {
    if let Some(rack) = &words.rack {
        home.rack.clone_from(rack);
    }
    if let Some(zone) = &words.zone {
        home.zone.clone_from(zone);
    }
    words.rack.is_some() || words.zone.is_some()
}

/// The first start: draws ids and writes them to the directory, creates the store, joins the cluster, and
/// writes the server's identity into the store. If the store cannot be created, the server does not join, and
/// the token stays valid.
fn begin(context: &CommandContext<'_>, words: &DataArgs, drawn: Option<ServerHome>) -> Outcome<ServerHome> {
    let (Some(name), Some(token)) = (&words.name, &words.join) else {
        return Err(Failure::new(
            exit::NO_REPOSITORY,
            "no_server",
            format!(
                "there is no data server in {}; the first start takes --name, --listen and --join TOKEN (of `copal node \
                 token`)",
                words.dir.display()
            ),
        ));
    };
    let listen = words.listen.as_deref();
    let listen =
        listen.ok_or_else(|| Failure::usage("a new server needs an address: give --listen HOST:PORT"))?;
    match &words.advertise {
        Some(advertise) => check_fixed_address(advertise)?,
        None => check_advertised(listen)?,
    }
    check_listens(listen)?;
    let token = tokens::read(token)?;
    let mut home = match drawn {
        // An interrupted first start: the same server, with the present arguments.
        Some(mut drawn) => {
            drawn.name.clone_from(name);
            listen.clone_into(&mut drawn.listen);
            drawn.limit_bytes = words.limit;
            drawn
        }
        None => ServerHome::draw(name, listen, words.limit).map_err(start_failure)?,
    };
    home.advertise.clone_from(&words.advertise);
    place(words, &mut home);
    home.recovery_bytes_per_s = words.recovery_rate;
    home.memory_bytes = context.arguments.common.memory;
    // Checked before the token is used.
    shares(context, &home)?;
    home.http = words.monitored.http.clone().unwrap_or_default();
    home.write(&words.dir).map_err(start_failure)?;
    let options = store_options(context, home.limit_bytes);
    let unfinished = match StoreLocation::find(&words.dir) {
        // Created by an interrupted first start; its identity is checked when it is opened.
        Ok(_) => None,
        Err(_) => {
            let choice = words.backend.choice(BackendKind::Cow);
            let new = new_store::plan(context, &words.dir, choice, NewStore::default())?;
            // A limit below the least size is refused as a size.
            let least = NewStore::least_bytes(new.backend);
            let new = NewStore { size_bytes: words.limit.filter(|limit| *limit < least), ..new };
            Some(UnfinishedStore::start(&words.dir, &options, &new)?)
        }
    };
    let capacity = words.limit.into_iter().chain(free_bytes(&words.dir)).min().unwrap_or_default();
    home.join(&token, capacity, TO_JOIN).map_err(|error| match error {
        copal_server::JoinError::Call(error) => crate::cluster::of_call(error),
        other => start_failure(other),
    })?;
    if let Some(unfinished) = unfinished {
        found_store(context, &home, unfinished, &options)?;
    }
    // Written last: later starts need nothing but the directory.
    home.write(&words.dir).map_err(start_failure)?;
    Ok(home)
}

fn found_store(
    context: &CommandContext<'_>,
    home: &ServerHome,
    unfinished: UnfinishedStore,
    options: &StoreOptions,
) -> Outcome<()> {
    let opened = unfinished.open(options, &context.patience())?;
    let shares = shares(context, home)?;
    let stack = MemberStack::open(unfinished.path(), opened, shares.engine)?;
    let founded = stack.members().assign(&MemberIdentity {
        cluster: home.cluster(),
        server: home.server_uuid(),
        disk: home.disk_uuid(),
        incarnation: Incarnation(0),
        term: Term(0),
    });
    founded.map_err(start_failure)?;
    stack.close()?;
    unfinished.finish()?;
    Ok(())
}

fn store_options(context: &CommandContext<'_>, limit_bytes: Option<u64>) -> StoreOptions {
    StoreOptions { limit_bytes, ..context.arguments.common.store_options() }
}

/// Shares of the memory budget given at this start, or saved by an earlier one.
fn shares(context: &CommandContext<'_>, home: &ServerHome) -> Outcome<MemoryShares> {
    let kept = home.memory_bytes;
    let bytes = kept.unwrap_or_else(|| context.arguments.common.memory_bytes());
    Ok(MemoryShares::of(bytes)?)
}

/// Reports to the master that the store of the directory is missing or belongs to another server, so that the
/// master does not wait for this server. Returns the failure of the command.
fn lost_store(words: &DataArgs, home: &ServerHome) -> Failure {
    let reported = match copal_server::report_lost_store(home) {
        Ok(()) => "the master makes other replicas now".to_owned(),
        Err(error) => format!("the master could not be informed: {error}"),
    };
    Failure::new(
        exit::DENIED,
        "store_gone",
        format!(
            "the store in {} is missing or belongs to another server, so acknowledged data is not there ({reported}); join with a new name and an empty directory, and declare this server lost with `copal node lost {}`",
            words.dir.display(),
            home.name
        ),
    )
}

/// Free bytes of the file system; `None` if unknown.
fn free_bytes(directory: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(directory).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Default rate of copies, in bytes per second, which leaves bandwidth to clients.
fn recovery_rate(medium: Option<&str>) -> u64 {
    match medium {
        Some("hdd") => 40_000_000,
        _ => 200_000_000,
    }
}

/// Kind of disk below a directory, as reported by the kernel; `None` if unknown.
fn medium(directory: &Path) -> Option<&'static str> {
    let meta = std::fs::metadata(directory).ok()?;
    let device = std::os::linux::fs::MetadataExt::st_dev(&meta);
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has no queue of its own.
    let turns = ["queue", "../queue"].into_iter().find_map(|queue| {
        std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/rotational")).ok()
    })?;
    match turns.trim() {
        "1" => Some("hdd"),
        "0" => Some("ssd"),
        _ => None,
    }
}

struct StoreRoom {
    objects: copal_object::Store,
    directory: PathBuf,
    limit_bytes: Option<u64>,
}

impl StoreSpace for StoreRoom {
    fn bytes(&self) -> (u64, u64) {
        let space = self.objects.space();
        let used = space.live_bytes + space.staged_bytes + space.quarantine_bytes;
        // The host may have less free space than the limit allows.
        let of_host = free_bytes(&self.directory).map(|free| space.size_bytes.saturating_add(free));
        let capacity = self.limit_bytes.into_iter().chain(of_host).min().unwrap_or(space.size_bytes);
        (used, capacity)
    }
}
