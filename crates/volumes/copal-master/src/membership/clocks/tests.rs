use crate::{
    Master, ServerHeartbeat, ServerState,
    tests::{beat, joiner, master},
};

const HOUR: i64 = 3_600_000;
const NOW: u64 = 1_700_000_000_000;
const YEAR: i64 = 365 * 24 * HOUR;

/// Three servers that hold all groups, and the distance of each server's clock from the ruler.
struct House {
    master: Master,
    /// Time by the ruler.
    ruler_ms: u64,
    leader_ms: i64,
    servers: Vec<(u8, i64)>,
    /// Servers that were restarted and may lack operations.
    recovering: Vec<u8>,
}

impl House {
    fn new() -> House {
        let master = master();
        for number in 1..=3 {
            master.join(&joiner(number), NOW).unwrap();
        }
        let mut house = House {
            master,
            ruler_ms: NOW,
            leader_ms: 0,
            servers: vec![(1, 0), (2, 0), (3, 0)],
            recovering: Vec::new(),
        };
        house.pass(2);
        house
    }

    fn now_ms(&self) -> u64 {
        self.ruler_ms.saturating_add_signed(self.master.reference_ahead_ms())
    }

    /// Lets seconds pass; each server sends a heartbeat in each.
    fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.ruler_ms += 1000;
            self.master.judge_clocks(self.leader_ms, self.now_ms()).unwrap();
            for &(number, ahead_ms) in &self.servers {
                let is_in_sync = !self.recovering.contains(&number);
                let beat = ServerHeartbeat {
                    clock_ahead_ms: Some(ahead_ms),
                    is_in_sync,
                    ..beat(number, if is_in_sync { 1 } else { 2 })
                };
                self.master.heartbeat(beat, self.now_ms()).unwrap();
            }
            self.master.tick(self.now_ms()).unwrap();
        }
    }

    fn state(&self, number: u32) -> ServerState {
        self.master.map().server(number).unwrap().state
    }

    fn events(&self) -> String {
        let events = self.master.events(0, 100).unwrap();
        events.into_iter().map(|event| event.text + "\n").collect()
    }
}

/// Symptom: a data server whose clock was ahead stopped all writes of its groups, and `status` said healthy.
/// Cause: no process compared clocks.
/// Fix: the median of all clocks is the reference. A server with a wrong clock is reported, and shut out of
/// writes while its groups can work without it.
#[test]
fn a_server_with_a_wrong_clock_is_shut_out_until_it_is_right() {
    for wrong_ms in [6_000, -90_000, -HOUR, HOUR, YEAR] {
        let mut house = House::new();
        house.servers[1].1 = wrong_ms;
        house.pass(1);
        assert!(house.master.clock_verdict(2).is_wrong, "reported at once");
        house.pass(4);
        assert_eq!(house.state(2), ServerState::Failed);
        assert_eq!((house.state(1), house.state(3)), (ServerState::Normal, ServerState::Normal));
        assert_eq!(house.master.reference_ahead_ms(), 0);
        let status = house.master.status(house.now_ms());
        assert!(status.sentence.contains("the clock of data2"), "{}", status.sentence);
        assert_ne!(status.health, "healthy");
        assert!(status.servers[1].shut_out);
        house.servers[1].1 = 0;
        house.pass(2);
        assert_eq!(house.state(2), ServerState::Normal);
        assert!(house.events().contains("the clock of data2 is right again"), "{}", house.events());
    }
}

#[test]
fn a_server_that_its_groups_need_is_let_in_with_any_clock() {
    let mut house = House::new();
    house.servers[1].1 = HOUR;
    house.pass(5);
    assert_eq!(house.state(2), ServerState::Failed);
    house.servers.remove(0);
    house.pass(12);
    assert_eq!(house.state(1), ServerState::Failed, "it was silent");
    assert_ne!(house.state(2), ServerState::Failed);
    let verdict = house.master.clock_verdict(2);
    assert!(verdict.is_wrong && !verdict.is_shut_out);
}

/// A server with a wrong clock is the only one in sync, so the others have to copy first.
#[test]
fn the_only_in_sync_server_is_not_shut_out() {
    let mut house = House::new();
    house.recovering = vec![1, 3];
    house.pass(1);
    assert_eq!(house.state(1), ServerState::Recovering);
    house.servers[1].1 = HOUR;
    house.pass(5);
    assert_ne!(house.state(2), ServerState::Failed);
}

/// Seals from the future are ignored only in the next view (VOL-43), so the groups of a server that holds some
/// get a new view from time to time.
#[test]
fn groups_of_a_server_that_keeps_seals_from_the_future_get_a_newer_view() {
    let mut house = House::new();
    let epoch = |house: &House| house.master.map().views_since(0).map(|view| view.epoch).max().unwrap();
    house.pass(3);
    let before = epoch(&house);
    house.pass(3);
    assert_eq!(epoch(&house), before, "nothing has changed");
    let sealed = |house: &House| {
        let beat = ServerHeartbeat { clock_ahead_ms: Some(0), has_future_seals: true, ..beat(1, 1) };
        house.master.heartbeat(beat, house.now_ms()).unwrap();
    };
    sealed(&house);
    let next = epoch(&house);
    assert!(next > before);
    sealed(&house);
    assert_eq!(epoch(&house), next, "not with every heartbeat");
    house.pass(20);
    sealed(&house);
    assert!(epoch(&house) > next);
}

/// An old measurement of a server's clock is ignored. A leader without recent measurements does not return to
/// its own clock.
#[test]
fn a_recent_clock_counts_and_the_reference_stays_without_recent_clocks() {
    let mut house = House::new();
    for server in &mut house.servers {
        server.1 = HOUR;
    }
    house.leader_ms = HOUR;
    house.pass(2);
    assert_eq!(house.master.reference_ahead_ms(), HOUR);
    assert!(house.master.has_server_clock());
    house.leader_ms = 0;
    house.servers.clear();
    house.pass(15);
    assert_eq!(house.master.reference_ahead_ms(), HOUR, "no other clock is measured");
    // The clock of one returned server overrules the old measurements of all three.
    house.servers = vec![(1, 0)];
    house.pass(2);
    assert_eq!(house.master.reference_ahead_ms(), 0);
}

/// Symptom: after the master was started on a machine whose clock was an hour ahead, no put succeeded.
/// Cause: its clock was the cluster's.
/// Fix: the cluster uses the median, and the status reports the wrong clock.
#[test]
fn a_leader_with_a_wrong_clock_uses_the_servers_clocks_and_no_server_fails() {
    for wrong_ms in [-HOUR, 90_000, YEAR] {
        let mut house = House::new();
        let lease = house.master.take_lease("a", "holder", house.now_ms()).unwrap();
        house.leader_ms = wrong_ms;
        house.pass(5);
        assert_eq!(house.master.reference_ahead_ms(), 0);
        for number in 1..=3 {
            assert_eq!(house.state(number), ServerState::Normal);
        }
        assert!(house.events().contains("the master that leads"), "{}", house.events());
        let ends = house.master.lease_ends("a", lease.number, house.now_ms());
        assert!(ends.is_some_and(|ends_ms| ends_ms - house.now_ms() <= 25_000));
    }
}

/// When all clocks of a site are set, the reference follows, and times in the master's memory move with it.
#[test]
fn when_all_clocks_are_set_anew_nothing_fails_and_leases_last_as_long_as_before() {
    for step_ms in [-HOUR, HOUR, YEAR] {
        let mut house = House::new();
        let lease = house.master.take_lease("a", "holder", house.now_ms()).unwrap();
        for server in &mut house.servers {
            server.1 = step_ms;
        }
        house.leader_ms = step_ms;
        house.pass(4);
        assert_eq!(house.master.reference_ahead_ms(), step_ms);
        // No server counts as silent because the clocks were set.
        let fell_silent = house.events().contains("taken for failed");
        assert!(!fell_silent, "{}", house.events());
        for number in 1..=3 {
            assert_eq!(house.state(number), ServerState::Normal);
        }
        let ends = house.master.lease_ends("a", lease.number, house.now_ms());
        assert!(ends.is_some_and(|ends_ms| (20_000..=26_000).contains(&(ends_ms - house.now_ms()))));
        house.servers.remove(0);
        house.pass(11);
        assert_eq!(house.state(1), ServerState::Failed, "a silent server still fails");
    }
}

#[test]
fn a_term_knows_the_reference_before_its_first_answer() {
    let house = House::new();
    let clocks = [(1, -HOUR), (2, -HOUR), (3, -HOUR)];
    assert!(house.master.record_clocks(&clocks, 0, house.now_ms()).unwrap());
    assert_eq!(house.master.reference_ahead_ms(), -HOUR);
}
