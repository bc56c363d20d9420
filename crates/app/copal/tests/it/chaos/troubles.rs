//! Faults of a cluster under test, and their repair; each returns its description.

use super::{
    house::{House, SERVERS},
    network::Place,
};
use copal_testkit::Random;
use std::{
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Longest time for the cluster to become healthy between two faults that it cannot survive together.
const HEALED: &str = "150s";

/// Kinds of [`House::long_trouble`].
pub(super) const KINDS: u64 = 14;

fn moment(random: &mut Random, most_ms: u64) -> Duration {
    Duration::from_millis(random.below(most_ms))
}

fn some_server(random: &mut Random) -> Place {
    Place::Server(1 + random.index(SERVERS))
}

fn another(random: &mut Random, than: Place) -> Place {
    loop {
        let other = some_server(random);
        if other != than {
            return other;
        }
    }
}

impl House {
    /// Injects and repairs one of the faults of every run.
    pub(super) fn trouble(&mut self, random: &mut Random) -> String {
        match random.below(8) {
            0..=2 => {
                let (server, away) = (some_server(random), moment(random, 3000));
                self.kill(server);
                thread::park_timeout(away);
                self.again(server);
                format!("{server} killed for {away:?}")
            }
            3 => {
                let (master, away) = (self.some_master(random), moment(random, 1500));
                self.kill(master);
                thread::park_timeout(away);
                self.again(master);
                format!("{master} killed for {away:?}")
            }
            4 | 5 => {
                let (server, frozen) = (some_server(random), moment(random, 13_000));
                self.freeze(server, frozen);
                format!("{server} frozen for {frozen:?}")
            }
            6 => self.second_failure(random),
            _ => {
                let away = moment(random, 1000);
                (1..=SERVERS).for_each(|number| self.kill(Place::Server(number)));
                thread::park_timeout(away);
                (1..=SERVERS).for_each(|number| self.again(Place::Server(number)));
                format!("all servers killed for {away:?}")
            }
        }
    }

    /// Injects and repairs one of the longer faults.
    pub(super) fn long_trouble(&mut self, kind: u64, random: &mut Random) -> String {
        match kind {
            0..=3 => self.trouble(random),
            4 if self.masters > 1 => self.leaders_killed(),
            5 if self.masters > 1 => {
                let (leader, frozen) = (self.leader(), moment(random, 15_000));
                self.freeze(leader, frozen);
                format!("{leader}, which led, frozen for {frozen:?}")
            }
            6 => self.rolling_restart(random),
            7 => self.exchanged(random),
            8 => self.older_copy(random),
            9 => self.given_up(random),
            _ if self.network.can_cut() => self.cut_off(random),
            _ => self.second_failure(random),
        }
    }

    fn some_master(&self, random: &mut Random) -> Place {
        Place::Master(1 + random.index(self.masters))
    }

    fn freeze(&mut self, place: Place, frozen: Duration) {
        self.signal(place, "-STOP");
        thread::park_timeout(frozen);
        self.signal(place, "-CONT");
    }

    /// A server fails, and another one while the first resyncs, or before.
    fn second_failure(&mut self, random: &mut Random) -> String {
        let server = some_server(random);
        let other = another(random, server);
        let (first, second) = (moment(random, 1000), moment(random, 3000));
        self.kill(server);
        thread::park_timeout(first);
        let in_recovery = random.below(2) == 0;
        if in_recovery {
            self.again(server);
        }
        self.kill(other);
        thread::park_timeout(second);
        if !in_recovery {
            self.again(server);
        }
        thread::park_timeout(first);
        if self.is_away(other) {
            self.again(other);
        }
        format!("{server} killed, and {other} {}", if in_recovery { "when it was back" } else { "as well" })
    }

    /// The leader is killed, three times in a row.
    fn leaders_killed(&mut self) -> String {
        let mut killed = Vec::new();
        for _ in 0..3 {
            let leader = self.leader();
            self.kill(leader);
            // Another master leads before the next one is killed.
            self.leader();
            self.again(leader);
            killed.push(leader.to_string());
        }
        format!("{} killed, each when it led", killed.join(", "))
    }

    fn heal(&self) {
        self.good(&["status", "--wait", "healthy", "--timeout", HEALED]);
    }

    /// All processes are restarted one after the other, like for a new release.
    fn rolling_restart(&mut self, random: &mut Random) -> String {
        let waits = random.below(2) == 0;
        for place in self.places() {
            self.stop(place);
            self.again(place);
            if waits {
                self.heal();
            }
        }
        let how = if waits { "each when the last was whole" } else { "without a pause" };
        format!("everything started anew, {how}")
    }

    /// The disks of two servers are exchanged: their store files alone, which is refused, or with the files
    /// of their identity, which equals two moved servers.
    fn exchanged(&mut self, random: &mut Random) -> String {
        let server = some_server(random);
        let other = another(random, server);
        let (one, two) = (self.names[&server].clone(), self.names[&other].clone());
        self.heal();
        self.stop(server);
        self.stop(other);
        let is_whole = random.below(2) == 0;
        if is_whole {
            self.move_in(server, &two);
            self.move_in(other, &one);
        } else {
            let store = |house: &House, name: &str| house.dir(name).join("store.copal");
            exchange(&store(self, &one), &store(self, &two));
            for place in [server, other] {
                let ended = self.refused(place);
                assert_eq!(ended.status.code(), Some(21), "{}", ended.said);
                assert!(ended.said.contains("belongs to another server"), "{}", ended.said);
            }
            exchange(&store(self, &one), &store(self, &two));
            self.again(server);
            self.again(other);
        }
        let what = if is_whole { "directories" } else { "stores" };
        format!("{what} of {server} and {other} exchanged")
    }

    /// A server is started with an older copy of its directory, which lacks operations acknowledged since.
    fn older_copy(&mut self, random: &mut Random) -> String {
        let server = some_server(random);
        let name = self.names[&server].clone();
        let (dir, old, new) =
            (self.dir(&name), self.dir(&format!("{name}.old")), self.dir(&format!("{name}.new")));
        self.stop(server);
        copy(&dir, &old);
        self.again(server);
        self.heal();
        thread::park_timeout(moment(random, 4000));
        self.kill(server);
        std::fs::rename(&dir, &new).unwrap();
        std::fs::rename(&old, &dir).unwrap();
        let ended = self.refused(server);
        assert_eq!(ended.status.code(), Some(21), "{}", ended.said);
        assert!(ended.said.contains("older copy"), "{}", ended.said);
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::rename(&new, &dir).unwrap();
        self.again(server);
        format!("{server} started with an older copy of its disk")
    }

    /// A server is declared lost, and a new one replaces it.
    fn given_up(&mut self, random: &mut Random) -> String {
        let server = some_server(random);
        let name = self.names[&server].clone();
        // With another server down, its replicas might be the last ones.
        self.heal();
        self.kill(server);
        self.insist(&["node", "lost", &name]);
        let ended = self.refused(server);
        assert_eq!(ended.status.code(), Some(21), "{}", ended.said);
        std::fs::remove_dir_all(self.dir(&name)).unwrap();
        self.add_server(server);
        if random.below(2) == 0 {
            self.heal();
        }
        format!("{server} given up, and another in its place")
    }

    /// Links are cut, in one direction or both, or slowed down; sometimes with another fault meanwhile.
    fn cut_off(&mut self, random: &mut Random) -> String {
        let server = some_server(random);
        let masters: Vec<Place> = (1..=self.masters).map(Place::Master).collect();
        let servers: Vec<Place> = (1..=SERVERS).map(Place::Server).collect();
        let others = || servers.iter().copied().filter(|other| *other != server);
        let (what, pairs): (String, Vec<(Place, Place)>) = match random.below(8) {
            0 => return self.slow_down(random),
            1 | 2 => {
                let other = another(random, server);
                (format!("{server} and {other}"), vec![(server, other)])
            }
            3 => (
                format!("{server} and the masters"),
                masters.iter().map(|master| (server, *master)).collect(),
            ),
            4 => (
                format!("{server} and all others"),
                others().chain(masters.iter().copied()).map(|other| (server, other)).collect(),
            ),
            5 => (format!("{server} and the client"), vec![(server, Place::Client)]),
            6 if self.masters > 1 => {
                let leader = self.leader();
                (format!("{leader}, which led, and the database"), vec![(leader, Place::Database)])
            }
            _ => {
                let leader = self.leader();
                let pairs = servers.iter().map(|server| (leader, *server)).collect();
                (format!("{leader}, which led, and all servers"), pairs)
            }
        };
        let (there, back) = match random.below(4) {
            0 => (true, false),
            1 => (false, true),
            _ => (true, true),
        };
        let links: Vec<(Place, Place)> = pairs
            .iter()
            .flat_map(|(from, to)| {
                let there = there.then_some((*from, *to));
                there.into_iter().chain(back.then_some((*to, *from)))
            })
            .collect();
        links.iter().for_each(|(from, to)| self.network.cut(*from, *to));
        let begun = Instant::now();
        let length = moment(random, 16_000);
        let mut meanwhile = String::new();
        if random.below(4) == 0 {
            thread::park_timeout(moment(random, 4000));
            let other = another(random, server);
            self.kill(other);
            thread::park_timeout(moment(random, 3000));
            self.again(other);
            meanwhile = format!(", and {other} killed meanwhile");
        }
        thread::park_timeout(length.saturating_sub(begun.elapsed()));
        links.iter().for_each(|(from, to)| self.network.mend(*from, *to));
        let how = match (there, back) {
            (true, true) => "cut off from each other",
            (true, false) => "cut off in one direction",
            _ => "cut off in the other direction",
        };
        format!("{what} {how} for {length:?}{meanwhile}")
    }

    fn slow_down(&mut self, random: &mut Random) -> String {
        let (server, length) = (some_server(random), moment(random, 12_000));
        let is_late = self.network.can_delay() && random.below(2) == 0;
        self.network.slow(server, is_late);
        thread::park_timeout(length);
        self.network.quick(server);
        let how = if is_late { "late" } else { "slow" };
        format!("what goes to {server} was {how} for {length:?}")
    }
}

fn exchange(one: &Path, two: &Path) {
    let aside = one.with_extension("aside");
    std::fs::rename(one, &aside).unwrap();
    std::fs::rename(two, one).unwrap();
    std::fs::rename(aside, two).unwrap();
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-a", "--sparse=always"]).args([from, to]).status();
    assert!(copied.unwrap().success());
}
