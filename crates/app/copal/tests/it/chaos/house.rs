//! The processes of a cluster under test: one master on its own file, or three over a MariaDB, and data
//! servers.

use super::network::{Network, Place};
use crate::cluster::{free_ports, named_copal};
use copal_testkit::{MariaDb, MariaDbAt};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(super) const SERVERS: usize = 4;
/// Longest time for a process to start or end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process of the cluster, which may be stopped.
pub(super) struct Process {
    words: Vec<String>,
    child: Option<Child>,
}

/// The end of a process that was to be refused.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) said: String,
}

pub(super) struct House {
    pub(super) scratch: tempfile::TempDir,
    pub(super) network: Network,
    pub(super) masters: usize,
    path: String,
    processes: BTreeMap<Place, Process>,
    /// Name of the server at each place, and of its directory.
    pub(super) names: BTreeMap<Place, String>,
    drawn: usize,
    _database: Option<MariaDb>,
}

impl House {
    /// Starts the cluster. `in_spaces`: each process in its own namespace.
    pub(super) fn start(masters: usize, in_spaces: bool) -> House {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let servers = (1..=SERVERS).map(Place::Server);
        let network = match in_spaces {
            false => Network::Loopback(free_ports((3 + SERVERS) as u16)),
            true => {
                let places = [Place::Client, Place::Database].into_iter();
                let places = places.chain((1..=masters).map(Place::Master)).chain(servers);
                Network::of_spaces(&places.collect::<Vec<_>>())
            }
        };
        let database = (masters > 1).then(|| start_database(&network, scratch.path()));
        let mut house = House {
            path: named_copal(scratch.path(), ""),
            processes: BTreeMap::new(),
            names: BTreeMap::new(),
            drawn: 0,
            scratch,
            network,
            masters,
            _database: None,
        };
        let url = database.as_ref().map(|(_, url)| url.clone());
        for number in 1..=masters {
            house.add_master(number, url.as_deref());
        }
        house._database = database.map(|(server, _)| server);
        for number in 1..=SERVERS {
            house.add_server(Place::Server(number));
        }
        house.good(&["status", "--wait", "healthy"]);
        house
    }

    fn add_master(&mut self, number: usize, database: Option<&str>) {
        let place = Place::Master(number);
        let address = self.network.address(place);
        let mut more = words(&["--listen", &address]);
        match number {
            1 => more.extend(words(&["--new", "--groups", "16"])),
            _ => {
                let token = self.good(&["node", "token", "--master"]);
                more.extend(words(&["--join", token.trim()]));
            }
        }
        if let Some(url) = database {
            let password = self.scratch.path().join("pw");
            std::fs::write(&password, "secret\n").unwrap();
            more.extend(words(&["--meta", url, "--meta-password-file", password.to_str().unwrap()]));
        }
        self.first(place, "master", &format!("master{number}"), &more);
    }

    /// Lets a new server join at a free place.
    pub(super) fn add_server(&mut self, place: Place) {
        self.drawn += 1;
        let name = format!("data{}", self.drawn);
        let token = self.good(&["node", "token"]).trim().to_owned();
        let address = self.network.address(place);
        let more = words(&["--name", &name, "--listen", &address, "--join", &token]);
        self.first(place, "data", &name, &more);
    }

    fn first(&mut self, place: Place, verb: &str, name: &str, more: &[String]) {
        let dir = self.dir(name);
        let typed = words(&[verb, "--dir", dir.to_str().unwrap()]);
        self.names.insert(place, name.to_owned());
        let all: Vec<String> = typed.iter().chain(more).cloned().collect();
        let child = Some(self.spawn(place, &all));
        self.processes.insert(place, Process { words: typed, child });
    }

    /// The directory of a process.
    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn profile(&self) -> PathBuf {
        // The profile of the last master names all of them.
        let known = (1..=self.masters).rev().map(|number| format!("master{number}"));
        let mut written = known.map(|name| self.dir(&name).join("client.json"));
        written.find(|path| path.exists()).unwrap_or_else(|| self.dir("master1/client.json"))
    }

    /// `copal` at a place.
    pub(super) fn copal_at(&self, place: Place, words: &[&str]) -> Command {
        let mut command = self.network.command(place, self.scratch.path().join("bin/copal"));
        let log = std::env::var("COPAL_LOG").unwrap_or_else(|_| "warn".to_owned());
        command
            .args(words)
            .env_clear()
            .env("PATH", &self.path)
            .env("COPAL_CLUSTER", self.profile())
            .env("COPAL_LOG", log)
            .stdin(Stdio::null());
        command
    }

    pub(super) fn copal(&self, words: &[&str]) -> Command {
        self.copal_at(Place::Client, words)
    }

    pub(super) fn good(&self, words: &[&str]) -> String {
        let run = self.copal(words).output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{words:?}: {stdout}{stderr}\n{}", self.logs());
        stdout.into_owned()
    }

    /// Repeats a command until it succeeds.
    pub(super) fn insist(&self, words: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let run = self.copal(words).output().unwrap();
            if run.status.success() {
                return String::from_utf8_lossy(&run.stdout).into_owned();
            }
            assert!(Instant::now() < end, "{words:?}: {run:?}\n{}", self.logs());
            thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// The leading master.
    pub(super) fn leader(&self) -> Place {
        let told: Value = serde_json::from_str(&self.insist(&["status", "--json"])).unwrap();
        let address = told["master"]["address"].as_str().unwrap();
        let mut masters = (1..=self.masters).map(Place::Master);
        masters.find(|place| self.network.address(*place) == address).unwrap()
    }

    /// Standard error of all processes.
    pub(super) fn logs(&self) -> String {
        let log = |place: &Place| {
            let text = std::fs::read(self.log(*place)).unwrap_or_default();
            format!("== {place}\n{}", String::from_utf8_lossy(&text))
        };
        self.processes.keys().map(log).collect()
    }

    pub(super) fn log(&self, place: Place) -> PathBuf {
        let place = place.to_string().replace(' ', "");
        self.scratch.path().join(format!("log-{place}"))
    }

    /// The places of all processes.
    pub(super) fn places(&self) -> Vec<Place> {
        self.processes.keys().copied().collect()
    }

    fn begin(&self, place: Place, typed: &[String]) -> (Child, Option<String>) {
        let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
        let mut options = std::fs::File::options();
        let log = options.create(true).append(true).open(self.log(place)).unwrap();
        let mut command = self.copal_at(place, &typed);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().map(Result::unwrap);
        (child, first)
    }

    /// Starts a process, and waits until it is ready.
    fn spawn(&self, place: Place, typed: &[String]) -> Child {
        let (child, first) = self.begin(place, typed);
        assert!(first.is_some_and(|line| line.starts_with("ready")), "{typed:?}: {}", self.logs());
        child
    }

    pub(super) fn again(&mut self, place: Place) {
        let typed = self.processes[&place].words.clone();
        let child = self.spawn(place, &typed);
        self.process(place).child = Some(child);
    }

    /// Starts a server at the place of another; from then on it is reached at the address of that place.
    pub(super) fn move_in(&mut self, place: Place, name: &str) {
        let dir = self.dir(name);
        let typed = words(&["data", "--dir", dir.to_str().unwrap()]);
        let address = self.network.address(place);
        let all: Vec<String> = typed.iter().cloned().chain(words(&["--listen", &address])).collect();
        let child = Some(self.spawn(place, &all));
        self.names.insert(place, name.to_owned());
        self.processes.insert(place, Process { words: typed, child });
    }

    /// Starts a server that must be refused, and waits for its end.
    pub(super) fn refused(&mut self, place: Place) -> Ended {
        let typed = self.processes[&place].words.clone();
        let before = std::fs::read(self.log(place)).unwrap_or_default().len();
        let (mut child, _) = self.begin(place, &typed);
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= end {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{place} was let in with a disk that is not its own\n{}", self.logs());
            }
            thread::park_timeout(Duration::from_millis(50));
        };
        let log = std::fs::read(self.log(place)).unwrap();
        Ended { status, said: String::from_utf8_lossy(&log[before..]).into_owned() }
    }

    fn process(&mut self, place: Place) -> &mut Process {
        self.processes.get_mut(&place).unwrap()
    }

    pub(super) fn is_away(&self, place: Place) -> bool {
        self.processes[&place].child.is_none()
    }

    pub(super) fn kill(&mut self, place: Place) {
        if let Some(mut child) = self.process(place).child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Ends a process like an administrator.
    pub(super) fn stop(&mut self, place: Place) {
        self.signal(place, "-TERM");
        let Some(mut child) = self.process(place).child.take() else {
            return;
        };
        let end = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() >= end {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{place} does not end when it is told to\n{}", self.logs());
            }
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    pub(super) fn signal(&mut self, place: Place, signal: &str) {
        let Some(child) = &self.process(place).child else {
            return;
        };
        let pid = child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for House {
    fn drop(&mut self) {
        for place in self.places() {
            self.kill(place);
        }
    }
}

fn start_database(network: &Network, scratch: &Path) -> (MariaDb, String) {
    let directory = scratch.join("maria");
    std::fs::create_dir(&directory).unwrap();
    let (server, host) = match network.database() {
        None => (MariaDb::start(&directory, 32), "127.0.0.1".to_owned()),
        Some(address) => {
            let at = MariaDbAt { through: &network.prefix(Place::Database), address: &address, port: 3306 };
            (MariaDb::start_at(&directory, 32, at), address)
        }
    };
    let server = server.unwrap();
    let url = format!("mysql://copal@{host}:{}/copal", server.port());
    (server, url)
}

pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
