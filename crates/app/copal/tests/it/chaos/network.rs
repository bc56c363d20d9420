//! Addresses of the processes of a cluster under test: ports of one loopback, or a network namespace for
//! each. Links of a namespace can be cut in one direction or slowed down.
//!
//! With namespaces this process is the router between them: a rule drops the packets from one place to
//! another, which both ends notice only as silence.

use std::{
    fmt,
    path::Path,
    process::{Command, Stdio},
};

/// Place of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Client,
    Database,
    Master(usize),
    Server(usize),
}

impl Place {
    /// The third part of its address.
    fn number(self) -> usize {
        match self {
            Place::Client => 1,
            Place::Database => 2,
            Place::Master(number) => 10 + number,
            Place::Server(number) => 20 + number,
        }
    }

    fn space(self) -> String {
        format!("p{}", self.number())
    }

    fn link(self) -> String {
        format!("v{}", self.number())
    }

    fn host(self) -> String {
        format!("10.77.{}.2", self.number())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Client => write!(f, "the client"),
            Place::Database => write!(f, "the database"),
            Place::Master(number) => write!(f, "master {number}"),
            Place::Server(number) => write!(f, "server {number}"),
        }
    }
}

/// Network of the cluster.
pub(super) enum Network {
    /// All on one loopback, at ports from this one on: no link can be cut.
    Loopback(u16),
    /// A namespace for each place.
    Spaces {
        /// Whether the kernel can delay packets.
        can_delay: bool,
    },
}

impl Network {
    /// Creates a namespace for each place; this process already has its own, and may be its root.
    pub(super) fn of_spaces(places: &[Place]) -> Network {
        std::fs::create_dir_all("/run/netns").unwrap();
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        ip("link set lo up");
        for place in places {
            let (space, link, number) = (place.space(), place.link(), place.number());
            ip(&format!("netns add {space}"));
            ip(&format!("link add {link} type veth peer name eth0 netns {space}"));
            ip(&format!("addr add 10.77.{number}.1/24 dev {link}"));
            ip(&format!("link set {link} up"));
            ip(&format!("-n {space} addr add {}/24 dev eth0", place.host()));
            ip(&format!("-n {space} link set lo up"));
            ip(&format!("-n {space} link set eth0 up"));
            ip(&format!("-n {space} route add default via 10.77.{number}.1"));
        }
        let can_delay = tc("qdisc add dev lo root netem delay 1ms");
        let _ = tc("qdisc del dev lo root");
        Network::Spaces { can_delay }
    }

    pub(super) fn can_cut(&self) -> bool {
        matches!(self, Network::Spaces { .. })
    }

    pub(super) fn can_delay(&self) -> bool {
        matches!(self, Network::Spaces { can_delay: true })
    }

    /// Listening address of a process at a place.
    pub(super) fn address(&self, place: Place) -> String {
        match self {
            Network::Spaces { .. } => format!("{}:7400", place.host()),
            Network::Loopback(port) => {
                let behind = match place {
                    Place::Master(number) => number - 1,
                    Place::Server(number) => 2 + number,
                    Place::Client | Place::Database => unreachable!("they have no port of these"),
                };
                format!("127.0.0.1:{}", usize::from(*port) + behind)
            }
        }
    }

    /// Listening address of the database; `None`: on loopback, at a free port.
    pub(super) fn database(&self) -> Option<String> {
        self.can_cut().then(|| Place::Database.host())
    }

    /// Prefix of a command that runs at a place.
    pub(super) fn prefix(&self, place: Place) -> Vec<String> {
        match self {
            Network::Loopback(_) => Vec::new(),
            Network::Spaces { .. } => {
                vec!["nsenter".to_owned(), format!("--net=/run/netns/{}", place.space())]
            }
        }
    }

    /// A command that runs at a place.
    pub(super) fn command(&self, place: Place, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref().as_os_str();
        match self.prefix(place).split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        }
    }

    /// Drops all packets from one place to the other.
    pub(super) fn cut(&self, from: Place, to: Place) {
        self.rule("add", from, to);
    }

    pub(super) fn mend(&self, from: Place, to: Place) {
        self.rule("del", from, to);
    }

    fn rule(&self, verb: &str, from: Place, to: Place) {
        assert!(self.can_cut(), "nothing can be cut on one loopback");
        let (from, to) = (from.host(), to.host());
        ip(&format!("rule {verb} from {from} to {to} blackhole"));
    }

    /// Slows down the packets to a place: a few megabits per second, or a delay.
    pub(super) fn slow(&self, place: Place, late: bool) {
        let link = place.link();
        let how = match late {
            true => "netem delay 80ms 60ms",
            false => "tbf rate 4mbit burst 32kb latency 300ms",
        };
        assert!(tc(&format!("qdisc replace dev {link} root {how}")), "{how}");
    }

    pub(super) fn quick(&self, place: Place) {
        assert!(tc(&format!("qdisc del dev {} root", place.link())));
    }
}

fn ip(words: &str) {
    let run = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(run.status.success(), "ip {words}: {run:?}");
}

fn tc(words: &str) -> bool {
    let mut tc = Command::new("tc");
    tc.args(words.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
    tc.status().is_ok_and(|status| status.success())
}
