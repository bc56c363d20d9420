//! Commands on a cluster.

mod child;
mod client;
mod data;
mod database;
mod disk;
mod doctor;
mod force_accept;
mod fs;
mod fs_run;
mod group;
mod master;
mod meta;
mod node;
mod rebalance;
mod serve;
mod status;
mod tokens;

pub(super) use client::run as client;
pub(super) use data::run as data;
pub(super) use disk::run as disk;
pub(super) use doctor::run as doctor;
pub(super) use fs::run as fs;
pub(super) use group::run as group;
pub(super) use master::run as master;
pub(super) use meta::run as meta;
pub(super) use node::run as node;
pub(super) use rebalance::run as rebalance;
pub(super) use serve::run as serve;
pub(super) use status::{events, status};

use super::CommandContext;
use crate::failure::{Failure, exit};
use copal_node::DirectoryLock;
use copal_server::StartError;
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs},
    path::Path,
};

/// Locks the directory of a process.
fn take(directory: &Path) -> crate::failure::Outcome<DirectoryLock> {
    DirectoryLock::take(directory).map_err(Failure::from)
}

/// The part of the ready line that names the monitoring address.
fn monitored(http: Option<&str>) -> String {
    http.map_or_else(String::new, |http| format!(", for monitors at http://{http}/metrics"))
}

/// Prints a reply of the master: its JSON, or its text.
fn answer(
    context: &CommandContext<'_>,
    reply: &impl serde::Serialize,
    text: impl FnOnce() -> String,
) -> crate::failure::Outcome<()> {
    context.output.answer(crate::cluster::as_json(reply)?, text);
    Ok(())
}

/// Zone and rack of a server as one word; a dash if neither is known.
fn site_as_text(zone: &str, rack: &str) -> String {
    let words: Vec<&str> = [zone, rack].into_iter().filter(|word| !word.is_empty()).collect();
    match words.is_empty() {
        true => "-".to_owned(),
        false => words.join("/"),
    }
}

fn start_failure(error: impl std::fmt::Display) -> Failure {
    Failure::new(exit::FAILURE, "start", error.to_string())
}

/// Refuses an address that no other machine can reach: unspecified, multicast or broadcast.
pub(super) fn check_advertised(address: &str) -> crate::failure::Outcome<()> {
    check_address(address)?;
    // A name that this machine cannot resolve may be known to others.
    let resolved = address.to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
    let is_of_none = |at: &SocketAddr| {
        let ip = at.ip().to_canonical();
        ip.is_unspecified() || ip.is_multicast() || ip == Ipv4Addr::BROADCAST
    };
    match resolved.iter().any(is_of_none) {
        false => Ok(()),
        true => Err(Failure::usage(format!(
            "no other machine can reach {address}; give --advertise with an address for others"
        ))),
    }
}

/// Refuses every address that `check_advertised` refuses, and port 0: the system draws another port at each
/// start.
fn check_fixed_address(address: &str) -> crate::failure::Outcome<()> {
    check_advertised(address)?;
    match address.ends_with(":0") {
        false => Ok(()),
        true => Err(Failure::usage(format!(
            "{address} cannot be advertised: port 0 changes at each start; give a fixed port"
        ))),
    }
}

/// Checks that a new process can listen at an address, before others learn it.
fn check_listens(address: &str) -> crate::failure::Outcome<()> {
    check_address(address)?;
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(source) => {
            let address = address.to_owned();
            Err(start_failure(StartError::Listen { address, source }))
        }
    }
}

/// Checks an address of the form HOST:PORT.
fn check_address(address: &str) -> crate::failure::Outcome<()> {
    let port = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    match port {
        Some((host, _)) if !host.is_empty() => Ok(()),
        _ => Err(Failure::usage(format!("{address} is no address; give HOST:PORT"))),
    }
}
