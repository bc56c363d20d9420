//! `copal master`.

use super::{
    CommandContext, check_address, check_fixed_address, check_listens, child,
    database::{MasterDatabase, check_url},
    start_failure, take, tokens,
};
use crate::{
    arguments::MasterArgs,
    failure::{Failure, Outcome, exit},
};
use copal_client::ClientProfile;
use copal_master::{Master as Cluster, MasterError, MasterOptions, PoolConfig};
use copal_server::{
    CLIENT_NAME, CertificateAuthority, CertificateValidity, MasterHome, MasterProcess, StartError,
};
use serde_json::json;
use std::{path::Path, time::Duration};

/// Longest search of a joining master for the leader.
const TO_JOIN: Duration = Duration::from_secs(30);
/// Poll interval of the end of the process.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(context: &CommandContext<'_>, words: &MasterArgs) -> Outcome<()> {
    if let Some(parent) = words.child.end_with_parent {
        child::end_with_parent(parent)?;
    }
    let _lock = take(&words.dir)?;
    let mut home = match (words.new, &words.join) {
        (true, _) => make(words)?,
        (false, Some(token)) => join(words, token)?,
        (false, None) => find(words)?,
    };
    if keep(words, &mut home) {
        home.write(&words.dir).map_err(start_failure)?;
    }
    renew_profile(words, &home);
    let options = options(&home, words);
    let process = MasterProcess::start(
        MasterDatabase::of(&home, &words.dir).opener(),
        options,
        home.authority(),
        &home.listen,
        &home.advertise,
    )
    .map_err(|error| match error {
        StartError::Master(error) => of_master(error),
        error => start_failure(error),
    })?;
    let http = process.answer_monitor(&home.http).map_err(start_failure)?;
    if let Some(reason) = process.waits_for_database() {
        context.output.message(
            "waiting",
            json!({
                "name": "master", "pid": std::process::id(), "address": process.address(), "http": http,
                "reason": reason,
            }),
        );
        context.output.line(&format!(
            "waiting: {reason}; the master at {} retries, and leads or stands by once the database answers",
            process.address()
        ));
    }
    while process.waits_for_database().is_some() {
        if context.is_ended() {
            process.stop();
            return Ok(());
        }
        context.pause(POLL_INTERVAL);
    }
    let profile = words.dir.join("client.json");
    context.output.message(
        "ready",
        json!({
            "name": "master", "pid": std::process::id(), "address": process.address(), "http": http,
            "profile": profile.display().to_string(),
            "leads": process.leads(),
        }),
    );
    let stands_by = if process.leads() { "" } else { ", and stands by" };
    let monitored = super::monitored(http.as_deref());
    context.output.line(&format!("ready: the master listens at {}{stands_by}{monitored}", process.address()));
    context.wait_for_end(POLL_INTERVAL);
    process.stop();
    Ok(())
}

/// Takes over the settings that are saved for later starts; returns whether any was given.
fn keep(words: &MasterArgs, home: &mut MasterHome) -> bool {
    if let Some(http) = &words.monitored.http {
        home.http.clone_from(http);
    }
    if let Some(after) = words.times.permanent_after {
        home.permanent_after_ms = Some(after.as_millis() as u64);
    }
    home.copies_at_once = words.copies_at_once.or(home.copies_at_once);
    let is_timed = words.times.permanent_after.is_some() || words.copies_at_once.is_some();
    is_timed || words.monitored.http.is_some()
}

fn options(home: &MasterHome, words: &MasterArgs) -> MasterOptions {
    let fallback = MasterOptions::default();
    MasterOptions {
        permanent_after_ms: home.permanent_after_ms.unwrap_or(fallback.permanent_after_ms),
        copies_at_once: home.copies_at_once.map(usize::from),
        // The database stores it for all masters.
        first_servers: words.first_servers.map(usize::from),
        after_restore: words.after_restore,
        ..fallback
    }
}

/// The address at which a new master listens, and the one that others use.
fn addresses(words: &MasterArgs) -> Outcome<(&str, &str)> {
    let listen = words
        .listen
        .as_deref()
        .ok_or_else(|| Failure::usage("a new master needs an address: give --listen HOST:PORT"))?;
    let advertise = words.advertise.as_deref().unwrap_or(listen);
    check_fixed_address(advertise)?;
    if MasterHome::read(&words.dir).is_ok() {
        return Err(taken(&words.dir));
    }
    check_listens(listen)?;
    Ok((listen, advertise))
}

/// The configuration of a new master, with its database.
fn home_of(
    words: &MasterArgs,
    (listen, advertise): (&str, &str),
    authority: &CertificateAuthority,
) -> Outcome<MasterHome> {
    let mut home = MasterHome::new(listen, advertise, authority);
    if let Some(url) = &words.meta {
        check_url(url)?;
        home.meta = Some(url.clone());
        let file = words.meta_password_file.as_ref();
        home.meta_password_file = file.map(std::path::absolute).transpose().map_err(start_failure)?;
    }
    Ok(home)
}

/// Creates a cluster: its authority, its database, and a profile for its clients.
fn make(words: &MasterArgs) -> Outcome<MasterHome> {
    let addresses = addresses(words)?;
    let mut uuid = [0; 16];
    let drawn = copal_volume::random_incarnation().and_then(|a| Ok((a, copal_volume::random_incarnation()?)));
    let (high, low) = drawn.map_err(start_failure)?;
    uuid[..8].copy_from_slice(&high.to_be_bytes());
    uuid[8..].copy_from_slice(&low.to_be_bytes());
    let authority = CertificateAuthority::new(&copal_server::hex(&uuid)).map_err(start_failure)?;
    let home = home_of(words, addresses, &authority)?;
    let opened = MasterDatabase::of(&home, &words.dir).open();
    let advice = match words.meta {
        Some(_) => "; start the database, or correct --meta, and try again",
        None => "",
    };
    let mut meta =
        opened.map_err(|error| start_failure(format!("no cluster was created: {error}{advice}")))?;
    let pool = PoolConfig { replicas: words.replicas, min_ack: words.replicas.min(2), groups: words.groups };
    Cluster::create_cluster(meta.as_mut(), uuid, pool).map_err(of_master)?;
    write_profile(words, uuid, vec![addresses.1.to_owned()], &authority)?;
    // Written last: without this file a partly created cluster does not count.
    home.write(&words.dir).map_err(start_failure)?;
    Ok(home)
}

fn write_profile(
    words: &MasterArgs,
    uuid: [u8; 16],
    masters: Vec<String>,
    authority: &CertificateAuthority,
) -> Outcome<()> {
    let client = authority.identity(CLIENT_NAME).map_err(start_failure)?;
    let profile = ClientProfile::new(uuid, masters, client.authority, client.certificate, client.key);
    profile.write(&words.dir.join("client.json")).map_err(start_failure)
}

/// Renews the certificate and key of the profile beside a master after half of their lifetime; the master
/// holds the authority's key.
fn renew_profile(words: &MasterArgs, home: &MasterHome) {
    let path = words.dir.join("client.json");
    // If the profile was moved away, nothing is written.
    let Ok(mut profile) = ClientProfile::read(&path) else {
        return;
    };
    let now_ms = crate::human::now_ms();
    let is_due =
        CertificateValidity::of_pem(&profile.certificate).is_ok_and(|validity| validity.is_half_over(now_ms));
    if !is_due {
        return;
    }
    match home.authority().identity(CLIENT_NAME) {
        Ok(client) => {
            (profile.certificate, profile.key) = (client.certificate, client.key);
            if let Err(error) = profile.write(&path) {
                tracing::warn!(%error, "profile beside this master not renewed");
            }
        }
        Err(error) => tracing::warn!(%error, "profile beside this master not renewed"),
    }
}

/// Becomes a further master of the token's cluster.
fn join(words: &MasterArgs, token: &str) -> Outcome<MasterHome> {
    let addresses = addresses(words)?;
    let token = tokens::read(token)?;
    // Checked before the token is used.
    if let Some(url) = &words.meta {
        check_url(url)?;
    }
    let joined = MasterProcess::join(&token, addresses.1, TO_JOIN)
        .map_err(|error| Failure::new(exit::DENIED, "denied", error.to_string()))?;
    let home = home_of(words, addresses, &joined.authority)?;
    write_profile(words, joined.cluster, joined.masters, &joined.authority)?;
    home.write(&words.dir).map_err(start_failure)?;
    Ok(home)
}

fn taken(directory: &Path) -> Failure {
    Failure::new(
        exit::DENIED,
        "exists",
        format!("{} has a master already; start it without --new", directory.display()),
    )
}

fn find(words: &MasterArgs) -> Outcome<MasterHome> {
    let read = MasterHome::read(&words.dir);
    let mut home = read.map_err(|error| match error {
        copal_server::HomeError::Missing { .. } => Failure::new(
            exit::NO_REPOSITORY,
            "no_master",
            format!("there is no master in {}; create one with --new", words.dir.display()),
        ),
        error => start_failure(error),
    })?;
    if let Some(listen) = &words.listen {
        check_address(listen)?;
        home.listen.clone_from(listen);
    }
    if let Some(url) = &words.meta {
        check_url(url)?;
        home.meta = Some(url.clone());
        home.meta_password_file.clone_from(&words.meta_password_file);
    }
    Ok(home)
}

fn of_master(error: MasterError) -> Failure {
    match error {
        MasterError::StaleTables(_) => Failure::new(exit::DENIED, "older", error.to_string()),
        MasterError::Denied(reason) => Failure::new(exit::DENIED, "denied", reason),
        other => start_failure(other),
    }
}
