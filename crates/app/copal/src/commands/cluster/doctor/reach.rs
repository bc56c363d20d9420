//! Checks of reachability: masters with their clocks, data servers, and the health of the cluster.

use super::{DoctorFindings, status};
use crate::{failure::exit, human};
use copal_client::{
    ClientProfile, TlsIdentity,
    administration::{ClusterStatus, ServerStatus},
    name_of_master, name_of_server, probe,
};

/// Clock difference in milliseconds below which there is no warning, and above which operations fail.
const SKEW_MS: u64 = 2_000;
const MOST_SKEW_MS: u64 = 10_000;

/// Returns the offset of the cluster's clock from this machine's in ms; 0 if no master reports it.
pub(super) fn look(profile: &ClientProfile, identity: &TlsIdentity, findings: &mut DoctorFindings) -> i64 {
    let (mut answered, mut cluster_ahead_ms) = (0, 0);
    for address in &profile.masters {
        match probe(identity, address, name_of_master(), true) {
            Ok(probed) => {
                answered += 1;
                let took = probed.took.as_millis();
                findings.good("master", format!("{address} answers within {took} ms"));
                if let Some(ahead_ms) = probed.ahead_ms {
                    cluster_ahead_ms = ahead_ms;
                    clock(address, ahead_ms, findings);
                }
            }
            Err(error) => findings.bad(
                "master",
                format!("{error}; is it running, and does a firewall let this machine through?"),
            ),
        }
    }
    if answered == 0 {
        return 0;
    }
    match status(profile) {
        Ok(status) => cluster(identity, &status, findings),
        Err(failure) if failure.exit_code == exit::DENIED => findings.good(
            "cluster",
            format!(
                "a master answers this client; it lists the servers only for a profile with all rights ({})",
                failure.sentence
            ),
        ),
        Err(failure) => findings.bad("cluster", failure.sentence),
    }
    cluster_ahead_ms
}

fn clock(address: &str, ahead_ms: i64, findings: &mut DoctorFindings) {
    let skew_ms = ahead_ms.unsigned_abs();
    let seconds = ahead_ms as f64 / 1000.0;
    let sentence =
        format!("the clock of the cluster is {seconds:+.1} s from this machine's, according to {address}");
    if skew_ms <= SKEW_MS {
        findings.good("clock", sentence);
    } else if skew_ms <= MOST_SKEW_MS {
        findings.doubtful("clock", format!("{sentence}; synchronize both with a time server"));
    } else {
        findings.bad("clock", format!("{sentence}; synchronize this machine with a time server"));
    }
}

fn cluster(identity: &TlsIdentity, status: &ClusterStatus, findings: &mut DoctorFindings) {
    let sentence = status.sentence.as_str();
    match status.health.as_str() {
        "healthy" => findings.good("cluster", sentence),
        "incomplete" => findings.bad("cluster", format!("{sentence}; start the servers that are down")),
        _ => findings.doubtful("cluster", sentence),
    }
    let (version, own) = (&status.version, env!("CARGO_PKG_VERSION"));
    match version == own {
        true => findings.good("version", format!("the master and this program have version {own}")),
        false => findings.doubtful(
            "version",
            format!("the master has version {version}, this program {own}; bring all to one version"),
        ),
    }
    if status.master.clock_wrong {
        let seconds = status.master.clock_off_ms as f64 / 1000.0;
        findings.bad(
            "server clock",
            format!(
                "the clock of the master that leads is {seconds:+.1} s from the cluster's, and it goes by the cluster's; let it \
                 follow a time server"
            ),
        );
    }
    for server in &status.servers {
        data_server(identity, server, findings);
    }
}

fn data_server(identity: &TlsIdentity, server: &ServerStatus, findings: &mut DoctorFindings) {
    let ServerStatus { name, state, address, .. } = server;
    let off_s = server.clock_off_ms.unwrap_or_default() as f64 / 1000.0;
    match (server.clock_wrong, server.shut_out) {
        (true, true) => findings.bad(
            "server clock",
            format!(
                "the clock of {name} is {off_s:+.1} s from the cluster's: it takes no part in writes; let it follow a time server"
            ),
        ),
        (true, false) => findings.bad(
            "server clock",
            format!(
                "the clock of {name} is {off_s:+.1} s from the cluster's, and it goes by the cluster's; let it follow a time server"
            ),
        ),
        _ if server.clock_off_ms.is_some() => {
            findings.good("server clock", format!("the clock of {name} is {off_s:+.1} s from the cluster's"));
        }
        _ => {}
    }
    if server.host_full {
        findings.bad(
            "server",
            format!(
                "{name} ({address}) takes no operations, since its host has no space left; free some there, then start it again"
            ),
        );
        return;
    }
    match (state.as_str(), copal_server::unhex::<16>(&server.uuid)) {
        ("lost", _) => {}
        ("down", _) if server.shut_out => {}
        ("down", _) => findings.bad(
            "server",
            format!("{name} ({address}) is down; start it there with `copal data --dir DIR`, or `copal node lost {name}`"),
        ),
        (_, Some(uuid)) => match probe(identity, address, name_of_server(&uuid), false) {
            Ok(probed) => {
                let took = probed.took.as_millis();
                findings.good("server", format!("{name} ({address}) is {state} and answers within {took} ms"));
            }
            Err(error) => findings.bad(
                "server",
                format!("{name} is {state}, and this machine does not reach it: {error}; clients have to reach all servers"),
            ),
        },
        _ => findings.good("server", format!("{name} ({address}) is {state}")),
    }
    let (used, capacity) = (server.used_bytes, server.capacity_bytes);
    let percent = used.saturating_mul(100).checked_div(capacity).unwrap_or(0);
    let sentence = format!("{name} has {} of {} used", human::bytes(used), human::bytes(capacity));
    match percent {
        0..=84 => findings.good("room", sentence),
        85..=94 => findings.doubtful("room", format!("{sentence}; add a server, or delete")),
        _ => findings.bad("room", format!("{sentence}: it takes deletes only; add a server, or delete")),
    }
}
