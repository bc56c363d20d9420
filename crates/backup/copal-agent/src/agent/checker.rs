//! The second pair of eyes: popular packs that other hosts wrote are opened here before anybody counts on
//! them (BAK-20).
//!
//! One host does it for each pack, by rank among those that did not write it; if that one is slow, the next
//! does it too. A host that is alone opens its own. Between packs, sessions of hosts that have died are ended
//! (BAK-21).

use super::job::JobHost;
use crate::partition::rank;
use copal_backup::{CancelFlag, Error, LeaseWatch, peers::Writer, popular::UncheckedPack};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How often the log is looked at when nobody says that there is something new.
const LOOK: Duration = Duration::from_millis(500);
/// How long the first in rank is left to itself.
const HEAD_START: Duration = Duration::from_secs(5);
/// What was decided about a pack is not decided again by this run.
const NOT_AGAIN: Duration = Duration::from_secs(86_400 * 365);
/// How often one looks whether hosts that hold VMs are alive.
const LEASES_LOOK: Duration = Duration::from_secs(60);
/// How often one looks who else there is.
const MEMBERS_LOOK: Duration = Duration::from_secs(20);

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
                tracing::warn!(%error, "the log of popular packs cannot be read now");
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
                    tracing::debug!(pack = pack.pack, "opened and found right");
                    // What this host says of its own packs counts for nobody where hosts sign: another one
                    // looks.
                    seen.insert(pack.pack, Instant::now() + NOT_AGAIN);
                }
                Ok(false) => {
                    tracing::warn!(
                        pack = format!("{:016x}", pack.pack),
                        "a popular pack of another host does not open to what it should hold: that host has bad memory, a bad \
                         disk or bad intent; nobody refers to the pack any more"
                    );
                    // It is looked at again when the agent starts anew.
                    seen.insert(pack.pack, Instant::now() + NOT_AGAIN);
                }
                Err(Error::Cancelled { .. }) => return,
                Err(error) => tracing::warn!(%error, "a popular pack cannot be opened now"),
            }
        }
        leases.look(host);
        host.wait_for_packs(LOOK);
    }
}

/// Ends sessions whose holders are silent.
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
        if self.looked.is_some_and(|looked| looked.elapsed() < LEASES_LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        let now = self.began.elapsed();
        match host.repository.watch_leases(&mut self.watch, now) {
            Ok(ended) => {
                for ended in ended {
                    tracing::warn!(
                        vm = ended.vm.name,
                        "a host that was backing this VM up is silent: its backup was ended"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "who holds VMs cannot be read now"),
        }
    }
}

/// Who else may check.
#[derive(Default)]
struct RankedMembers {
    names: Vec<String>,
    looked: Option<Instant>,
}

impl RankedMembers {
    fn look(&mut self, host: &JobHost) {
        if self.looked.is_some_and(|looked| looked.elapsed() < MEMBERS_LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        match super::liveness::alive(&host.repository) {
            Ok(members) => self.names = members.into_iter().map(|member| member.name).collect(),
            Err(error) => tracing::warn!(%error, "who else there is cannot be read now"),
        }
    }

    /// Whether it is this host's to check a pack that was first seen so long ago.
    fn is_mine(&self, host: &JobHost, pack: UncheckedPack, since: Duration) -> bool {
        let own = host.name.as_str();
        let others = self.names.iter().any(|name| name != own);
        // A name is what any host may say; its key is not.
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
