//! `copal nbd`: disks of a snapshot as exports of an NBD server.

use super::{EndReason, OpenExport, deleted};
use crate::{
    arguments::NbdArgs,
    commands::{CommandContext, close},
    failure::{Failure, Outcome},
    output::write_out,
    repository::OpenRepository,
};
use copal_backup::{
    Snapshot,
    serve::{Shown, serve},
};
use copal_export::{NbdError, OtherSnapshots, Overlay, OverlayError, Server, ServerAddress, SnapshotExports};
use copal_node::Access;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use std::collections::HashMap;

pub(crate) fn run(context: &CommandContext<'_>, words: &NbdArgs) -> Outcome<()> {
    context.memory()?;
    let address = address(words)?;
    let opened = context.open(Access::Read)?;
    let chosen = choose(&opened, words);
    let (snapshot, others) = match chosen {
        Ok(chosen) => chosen,
        Err(failure) => return close(opened, Err(failure)),
    };
    let export = OpenExport::open(context, opened, "nbd", Shown::Snapshot(snapshot.id))?;
    let served = serve_until_ended(context, words, &export, &snapshot, others, &address);
    let closed = export.close(context);
    served?;
    closed
}

fn address(words: &NbdArgs) -> Outcome<ServerAddress> {
    if let Some(socket) = &words.socket {
        return Ok(ServerAddress::Unix(socket.clone()));
    }
    let listen = words.listen.as_deref().unwrap_or_default();
    let named = listen.rsplit_once(':').and_then(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some((host, port.parse().ok()?))
    });
    match named {
        Some((host, port)) if !host.is_empty() => Ok(ServerAddress::Tcp(host.to_owned(), port)),
        _ => Err(Failure::usage(format!(
            "--listen {listen} is not an address; give host:port, such as 127.0.0.1:10809"
        ))),
    }
}

/// The requested snapshot, and the others of its VM.
fn choose(opened: &OpenRepository, words: &NbdArgs) -> Outcome<(Snapshot, Vec<Snapshot>)> {
    let repository = opened.repository();
    let snapshot = repository.resolve(&words.which.snapshot, words.which.vm.as_deref())?;
    let names: Vec<&str> = snapshot.disks.iter().map(|disk| disk.name.as_str()).collect();
    match &words.disk {
        Some(name) if !names.contains(&name.as_str()) => {
            return Err(Failure::plain(
                "not_found",
                format!("snapshot {} has no disk {name}; it has {}", snapshot.id.short(), names.join(", ")),
            ));
        }
        None if words.cow.is_some() && names.len() > 1 => {
            return Err(Failure::usage(format!(
                "an overlay is for one disk; choose with --disk: {}",
                names.join(", ")
            )));
        }
        _ => {}
    }
    let mut others = repository.snapshots(Some(&snapshot.vm.uuid.to_string()))?;
    others.retain(|other| other.id != snapshot.id && other.damage.is_none());
    Ok((snapshot, others))
}

fn serve_until_ended(
    context: &CommandContext<'_>,
    words: &NbdArgs,
    export: &OpenExport,
    snapshot: &Snapshot,
    others: Vec<Snapshot>,
    address: &ServerAddress,
) -> Outcome<()> {
    let lender = export.lender();
    let mut disks = serve(&lender, &export.cache, snapshot.id)?;
    if let Some(name) = &words.disk {
        disks.retain(|disk| disk.name() == name);
    }
    let mut overlays = HashMap::new();
    if let (Some(file), [disk]) = (&words.cow, &disks[..]) {
        let overlay = Overlay::open(file, snapshot.id.0, disk.name(), disk.size_bytes());
        overlays.insert(disk.name().to_owned(), overlay.map_err(of_overlay)?);
    }
    let sizes: Vec<(String, u64)> =
        disks.iter().map(|disk| (disk.name().to_owned(), disk.size_bytes())).collect();
    let ids = others.iter().map(|other| other.id).collect();
    let others = OtherSnapshots::new(&lender, &export.cache, ids);
    let exports = SnapshotExports::new(disks, overlays, &others, export.close_flag());
    let server = Server::bind(address).map_err(of_nbd)?;
    print_ready(context, &server, &sizes)?;
    warn_of_open_address(context, address);
    let end = Mutex::new(None);
    let ran = server.run(&exports, || {
        let mut end = end.lock();
        *end = export.end(context);
        end.is_some()
    });
    let flushed = exports.flush();
    ran.map_err(of_nbd)?;
    match end.into_inner() {
        Some(EndReason::Deleted) => Err(deleted(&format!("snapshot {}", snapshot.id.short()))),
        _ if flushed.is_err() => Err(Failure::plain(
            "overlay",
            "the last writes of clients could not be made durable; check the disk of the --cow file",
        )),
        _ => Ok(()),
    }
}

/// A disk that is served.
#[derive(Serialize)]
struct ExportFields<'a> {
    name: &'a str,
    uri: String,
    size_bytes: u64,
}

/// One line, with an address for each disk.
fn print_ready(context: &CommandContext<'_>, server: &Server, disks: &[(String, u64)]) -> Outcome<()> {
    let mut exports = Vec::new();
    for (name, size_bytes) in disks {
        let uri = server.uri(name).map_err(of_nbd)?.to_string();
        exports.push(ExportFields { name, uri, size_bytes: *size_bytes });
    }
    if context.output.is_json() {
        let uri = exports.first().map(|export| export.uri.as_str());
        let fields = json!({ "command": "nbd", "uri": uri, "exports": exports });
        context.output.message("ready", fields);
    } else {
        let uris: Vec<&str> = exports.iter().map(|export| export.uri.as_str()).collect();
        write_out(&format!("ready {}\n", uris.join(" ")));
    }
    Ok(())
}

fn warn_of_open_address(context: &CommandContext<'_>, address: &ServerAddress) {
    let is_loopback =
        |host: &str| host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    if let ServerAddress::Tcp(host, _) = address
        && !is_loopback(host)
    {
        context
            .output
            .notice(&format!("every client that reaches {host} can read these disks: NBD has no password"));
    }
}

fn of_nbd(error: NbdError) -> Failure {
    Failure::plain("nbd", error.to_string())
}

fn of_overlay(error: OverlayError) -> Failure {
    Failure::plain("overlay", error.to_string())
}
