//! `copal master`.

use super::{Context, check_address, child, start_failure, take};
use crate::{
    arguments::Master,
    failure::{Failure, Outcome, exit},
};
use copal_client::Profile;
use copal_master::{Master as Cluster, MasterError, MasterOptions, Pool, SqliteStore};
use copal_server::{Authority, CLIENT_NAME, MasterHome, MasterProcess};
use serde_json::json;
use std::{path::Path, time::Duration};

/// Between two looks at what ends the process.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(context: &Context<'_>, words: &Master) -> Outcome<()> {
    if words.child.end_with_parent {
        child::end_with_parent()?;
    }
    let _lock = take(&words.dir)?;
    let mut home = match words.new {
        true => make(words)?,
        false => find(words)?,
    };
    if let Some(http) = &words.monitored.http {
        home.http.clone_from(http);
        home.write(&words.dir).map_err(start_failure)?;
    }
    let database = MasterHome::database(&words.dir);
    let meta = SqliteStore::open(&database).map_err(start_failure)?;
    let options = MasterOptions {
        permanent_after_ms: words.times.permanent_after.as_millis() as u64,
        ..MasterOptions::default()
    };
    let master = Cluster::open(Box::new(meta), options).map_err(of_master)?;
    let process = MasterProcess::start(master, home.authority(), &home.listen, &home.advertise);
    let process = process.map_err(start_failure)?;
    let http = process.answer_monitor(&home.http).map_err(start_failure)?;
    let profile = words.dir.join("client.json");
    context.output.message(
        "ready",
        json!({ "name": "master", "pid": std::process::id(), "address": process.address(), "http": http,
            "profile": profile }),
    );
    let monitored = super::monitored(http.as_deref());
    context.output.line(&format!(
        "ready: the master listens at {}{monitored}",
        process.address()
    ));
    context.wait_for_end(LOOK);
    process.stop();
    Ok(())
}

/// Makes a cluster: its authority, its database, and a profile for its clients.
fn make(words: &Master) -> Outcome<MasterHome> {
    let listen = words
        .listen
        .as_deref()
        .ok_or_else(|| Failure::usage("where is the new master to listen? give --listen HOST:PORT"))?;
    let advertise = words.advertise.as_deref().unwrap_or(listen);
    check_address(listen)?;
    check_address(advertise)?;
    if ["0.0.0.0:", "[::]:"].iter().any(|any| advertise.starts_with(any)) {
        return Err(Failure::usage(format!(
            "nobody reaches {advertise}; give --advertise with the address that others are to use"
        )));
    }
    if MasterHome::read(&words.dir).is_ok() {
        return Err(taken(&words.dir));
    }
    let mut uuid = [0; 16];
    let drawn = copal_volume::random_incarnation().and_then(|a| Ok((a, copal_volume::random_incarnation()?)));
    let (high, low) = drawn.map_err(start_failure)?;
    uuid[..8].copy_from_slice(&high.to_be_bytes());
    uuid[8..].copy_from_slice(&low.to_be_bytes());
    let mut meta = SqliteStore::open(&MasterHome::database(&words.dir)).map_err(start_failure)?;
    let pool = Pool {
        replicas: words.replicas,
        min_ack: words.replicas.min(2),
        groups: words.groups,
    };
    Cluster::found(&mut meta, uuid, pool).map_err(of_master)?;
    let authority = Authority::new(&copal_server::hex(&uuid)).map_err(start_failure)?;
    let client = authority.identity(CLIENT_NAME).map_err(start_failure)?;
    let masters = vec![advertise.to_owned()];
    let profile = Profile::new(uuid, masters, client.authority, client.certificate, client.key);
    profile
        .write(&words.dir.join("client.json"))
        .map_err(start_failure)?;
    let home = MasterHome::new(listen, advertise, &authority);
    // Last: without it nothing of a half made cluster counts.
    home.write(&words.dir).map_err(start_failure)?;
    Ok(home)
}

fn taken(directory: &Path) -> Failure {
    Failure::new(
        exit::DENIED,
        "exists",
        format!(
            "{} has a master already; start it without --new",
            directory.display()
        ),
    )
}

fn find(words: &Master) -> Outcome<MasterHome> {
    let read = MasterHome::read(&words.dir);
    let mut home = read.map_err(|error| match error {
        copal_server::HomeError::Missing { .. } => Failure::new(
            exit::NO_REPOSITORY,
            "no_master",
            format!(
                "there is no master in {}; make one with --new",
                words.dir.display()
            ),
        ),
        error => start_failure(error),
    })?;
    if let Some(listen) = &words.listen {
        check_address(listen)?;
        home.listen.clone_from(listen);
    }
    Ok(home)
}

fn of_master(error: MasterError) -> Failure {
    match error {
        MasterError::Denied(reason) => Failure::new(exit::DENIED, "denied", reason),
        other => start_failure(other),
    }
}
