//! Mass failure: more servers fail at once than fail independently, so a common cause such as a switch is
//! likely.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Failures within this time count as one event.
const WINDOW_MS: u64 = 60_000;
/// More than this percentage of the servers, and at least two, hold the queue.
const HOLD_ABOVE_PERCENT: usize = 20;

/// The mass failure that holds the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MassFailure {
    /// Servers that failed within 60 s and are still down.
    pub away: usize,
    /// Number of whole racks among them.
    pub racks: usize,
    /// Number of servers of the cluster.
    pub servers: usize,
}

impl fmt::Display for MassFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} servers failed within a minute ({} whole racks): no copies are made until they return; check switches \
             and power first, and lift the hold if they are lost for good",
            self.away, self.servers, self.racks
        )
    }
}

/// Failures that may be parts of one event, and that event.
#[derive(Clone, Debug)]
pub(super) struct ServerFailures {
    servers: usize,
    /// Current rack number of each server; a server without a known rack has a unique number.
    racks: BTreeMap<u32, u32>,
    /// Servers that are down, with the time of their failure.
    away: BTreeMap<u32, u64>,
    /// Servers whose failures hold the queue.
    held_by: BTreeSet<u32>,
}

impl ServerFailures {
    pub(super) fn new(servers: usize) -> ServerFailures {
        ServerFailures { servers, racks: BTreeMap::new(), away: BTreeMap::new(), held_by: BTreeSet::new() }
    }

    pub(super) fn set_racks(&mut self, racks: BTreeMap<u32, u32>) {
        self.servers = racks.len();
        self.racks = racks;
    }

    pub(super) fn failed(&mut self, server: u32, now_ms: u64) {
        self.away.entry(server).or_insert(now_ms);
        let burst: BTreeSet<u32> = self
            .away
            .iter()
            .filter(|(_, at_ms)| at_ms.abs_diff(now_ms) <= WINDOW_MS)
            .map(|(&server, _)| server)
            .collect();
        // A later failure within the window belongs to the mass failure too.
        if self.is_mass_failure(&burst) || burst.iter().any(|server| self.held_by.contains(server)) {
            self.held_by.extend(burst);
        }
    }

    pub(super) fn returned(&mut self, server: u32) {
        self.away.remove(&server);
        self.held_by.remove(&server);
        if !self.is_mass_failure(&self.held_by) {
            self.held_by.clear();
        }
    }

    pub(super) fn lift(&mut self) {
        self.held_by.clear();
    }

    pub(super) fn hold(&self) -> Option<MassFailure> {
        (!self.held_by.is_empty()).then(|| MassFailure {
            away: self.held_by.len(),
            racks: self.whole_racks(&self.held_by),
            servers: self.servers,
        })
    }

    fn is_mass_failure(&self, burst: &BTreeSet<u32>) -> bool {
        let many = burst.len() >= 2 && burst.len() * 100 > self.servers * HOLD_ABOVE_PERCENT;
        many || self.whole_racks(burst) > 1
    }

    /// Number of racks that failed with all their servers; a rack of one server counts as a server.
    fn whole_racks(&self, burst: &BTreeSet<u32>) -> usize {
        let mut of_rack: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for (server, rack) in &self.racks {
            let (servers, gone) = of_rack.entry(*rack).or_default();
            *servers += 1;
            *gone += usize::from(burst.contains(server));
        }
        let whole = of_rack.values().filter(|(servers, gone)| *servers > 1 && gone == servers);
        whole.count()
    }
}
