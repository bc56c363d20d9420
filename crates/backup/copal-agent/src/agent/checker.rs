//! Check of popular packs: another host opens each pack before any host refers to it (BAK-20).
//!
//! For each pack one host checks, by rank among those that did not write it; if it is slow, the next checks
//! too. A host that is alone checks its own packs. Between packs, sessions of dead hosts are ended (BAK-21).

use super::job::JobHost;
use crate::fleet::partition::rank;
use copal_backup::{CancelFlag, Error, LeaseWatch, peers::Writer, popular::UncheckedPack};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Longest interval between reads of the log, if no signal arrives.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time for which the first in rank checks alone.
const HEAD_START: Duration = Duration::from_secs(5);
/// A decision on a pack is final for this run.
const NOT_AGAIN: Duration = Duration::from_secs(86_400 * 365);
/// Interval between checks whether hosts with open sessions are alive.
const LEASES_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between reads of the list of members.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(20);

/// Checks packs until the host stops.
pub(crate) fn run(host: &JobHost) {
    let cancel = CancelFlag::from_shared(host.stop.clone());
    let mut seen: HashMap<u64, Instant> = HashMap::new();
    let mut members = RankedMembers::default();
    let mut leases = LeaseWatcher::new();
    while !host.ends() {
        let unchecked = match host.repository.unchecked_popular() {
            Ok(unchecked) => unchecked,
            Err(error) => {
                tracing::warn!(%error, "log of popular packs not readable, retried");
                Vec::new()
            }
        };
        seen.retain(|pack, _| unchecked.iter().any(|one| one.pack == *pack));
        if !unchecked.is_empty() {
            members.look(host);
        }
        for pack in unchecked {
            let first_seen = *seen.entry(pack.pack).or_insert_with(Instant::now);
            if first_seen > Instant::now() {
                continue;
            }
            let since = first_seen.elapsed();
            if !members.is_mine(host, pack, since) || host.ends() {
                continue;
            }
            match host.repository.check_popular(pack.pack, &cancel) {
                Ok(true) => {
                    tracing::debug!(pack = pack.pack, "popular pack checked");
                    // In repositories with signatures a host's check of its own packs does not count: another
                    // host checks them.
                    seen.insert(pack.pack, Instant::now() + NOT_AGAIN);
                }
                Ok(false) => {
                    tracing::warn!(
                        pack = format!("{:016x}", pack.pack),
                        "a popular pack of another host holds wrong chunks: that host has bad memory, a bad disk or bad intent; no new reference to the pack is made"
                    );
                    // The pack is checked again after a restart of the agent.
                    seen.insert(pack.pack, Instant::now() + NOT_AGAIN);
                }
                Err(Error::Cancelled { .. }) => return,
                Err(error) => tracing::warn!(%error, "popular pack not readable, retried"),
            }
        }
        leases.look(host);
        host.wait_for_packs(POLL_INTERVAL);
    }
}

/// Ends sessions whose holders have no heartbeat.
struct LeaseWatcher {
    watch: LeaseWatch,
    began: Instant,
    looked: Option<Instant>,
}

impl LeaseWatcher {
    fn new() -> LeaseWatcher {
        LeaseWatcher { watch: LeaseWatch::new(), began: Instant::now(), looked: None }
    }

    fn look(&mut self, host: &JobHost) {
        if self.looked.is_some_and(|looked| looked.elapsed() < LEASES_INTERVAL) {
            return;
        }
        self.looked = Some(Instant::now());
        let now = self.began.elapsed();
        match host.repository.watch_leases(&mut self.watch, now) {
            Ok(ended) => {
                for ended in ended {
                    tracing::warn!(
                        vm = ended.vm.name,
                        "host without heartbeat: its backup of this VM was ended"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "open sessions not readable, retried"),
        }
    }
}

/// The members that rank the checks.
#[derive(Default)]
struct RankedMembers {
    names: Vec<String>,
    looked: Option<Instant>,
}

impl RankedMembers {
    fn look(&mut self, host: &JobHost) {
        if self.looked.is_some_and(|looked| looked.elapsed() < MEMBERS_INTERVAL) {
            return;
        }
        self.looked = Some(Instant::now());
        match super::liveness::alive(&host.repository) {
            Ok(members) => self.names = members.into_iter().map(|member| member.name).collect(),
            Err(error) => tracing::warn!(%error, "list of members not readable, retried"),
        }
    }

    /// Whether this host must check a pack that was first seen this long ago.
    fn is_mine(&self, host: &JobHost, pack: UncheckedPack, since: Duration) -> bool {
        let own = host.name.as_str();
        let others = self.names.iter().any(|name| name != own);
        // A host may claim any name, but not another's key.
        let is_own = match pack.host {
            Some(writer) => host.repository.host_key() == Some(writer),
            None => Writer::of(own) == pack.writer,
        };
        if is_own {
            return !others;
        }
        let may = self
            .names
            .iter()
            .map(String::as_str)
            .filter(|name| Writer::of(name) != pack.writer || *name == own);
        let before = rank(may, own, pack.pack);
        since >= HEAD_START * before.min(12)
    }
}
