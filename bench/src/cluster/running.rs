//! A cluster of processes of the release binary, which suites start, kill and query.
//!
//! Not here: clusters with throttled disks, which run inside the suite (`hosted`).

use anyhow::{Context, Result, bail};
use copal_client::{
    ClientProfile, ClusterStore,
    administration::{AdminRequest, ClusterStatus, requests},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Time limit of a process to become ready.
const TO_START: Duration = Duration::from_secs(60);
/// Time limit of a request to the master.
const TO_ANSWER: Duration = Duration::from_secs(30);
/// Interval of polls.
const LOOK: Duration = Duration::from_millis(50);

/// Shape of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) servers: usize,
    pub(crate) groups: u32,
    pub(crate) replicas: u8,
    /// Additional arguments of `copal master`.
    pub(crate) master: Vec<String>,
    /// Additional arguments of `copal data`.
    pub(crate) data: Vec<String>,
    /// Processors of the data servers, as `taskset` takes them; `None`: all.
    pub(crate) processors: Option<String>,
}

impl Setup {
    /// That many servers, with 64 groups of three replicas each, as `copal serve --dev` makes them.
    pub(crate) fn of(servers: usize) -> Setup {
        Setup { servers, groups: 64, replicas: 3, master: Vec::new(), data: Vec::new(), processors: None }
    }
}

/// A running process that is ready.
pub(crate) struct Process {
    child: Child,
    /// Its HTTP address for metrics.
    http: String,
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its metrics: numbers by name with labels, such as `copal_calls_total{method="Put"}`.
    pub(crate) fn metrics(&self) -> Result<BTreeMap<String, f64>> {
        let mut stream = TcpStream::connect(&self.http).context("reaching the monitor's port")?;
        stream.set_read_timeout(Some(TO_ANSWER))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let lines = text.lines().filter(|line| line.starts_with("copal_"));
        Ok(lines
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect())
    }

    /// Its processor time, in seconds.
    pub(crate) fn processor_seconds(&self) -> Result<f64> {
        processor_seconds_of(self.pid())
    }

    pub(crate) fn kill(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes of the cluster; the drop ends all of them.
pub(crate) struct Running {
    binary: PathBuf,
    directory: PathBuf,
    setup: Setup,
    master: Process,
    servers: Vec<Option<Process>>,
    store: ClusterStore,
}

impl Drop for Running {
    fn drop(&mut self) {
        for server in self.servers.iter_mut().flatten() {
            server.kill();
        }
        self.master.kill();
    }
}

impl Running {
    /// Starts a new cluster in a directory that does not exist yet, and waits until all its groups are in
    /// sync.
    pub(crate) fn start(binary: &Path, directory: &Path, setup: &Setup) -> Result<Running> {
        fs::create_dir_all(directory)?;
        let own = directory.join("master");
        let (listen, groups, replicas, servers) = (
            free_address()?,
            setup.groups.to_string(),
            setup.replicas.to_string(),
            setup.servers.to_string(),
        );
        let mut words = vec!["master", "--dir", text(&own)?, "--new", "--listen", &listen];
        words.extend([
            "--groups",
            &groups,
            "--replicas",
            &replicas,
            "--first-servers",
            &servers,
            "--http",
            "127.0.0.1:0",
        ]);
        words.extend(setup.master.iter().map(String::as_str));
        let master = begin(binary, &directory.join("master.log"), &words, None)?;
        let profile = ClientProfile::read(&own.join("client.json"))?;
        let store = ClusterStore::connect(&profile, TO_START)?;
        let mut running = Running {
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            setup: setup.clone(),
            master,
            servers: Vec::new(),
            store,
        };
        for _ in 0..setup.servers {
            running.add_server()?;
        }
        running.wait_healthy(TO_START)?;
        Ok(running)
    }

    /// Adds another server; returns its number.
    pub(crate) fn add_server(&mut self) -> Result<usize> {
        let at = self.servers.len();
        let token = self.administer(&requests::DrawToken { master: false })?.token;
        let (own, name, listen) = (self.directory_of(at), format!("data{at}"), free_address()?);
        let mut words = vec!["data", "--dir", text(&own)?, "--name", &name, "--listen", &listen];
        words.extend(["--join", "-", "--http", "127.0.0.1:0"]);
        words.extend(self.setup.data.iter().map(String::as_str));
        let server = begin_command(self.server_command(), &self.log_of(at), &words, Some(&token))?;
        self.servers.push(Some(server));
        Ok(at)
    }

    /// The binary, on the processors of the data servers.
    fn server_command(&self) -> Command {
        let Some(processors) = &self.setup.processors else { return Command::new(&self.binary) };
        let mut command = Command::new("taskset");
        command.args(["-c", processors]).arg(&self.binary);
        command
    }

    /// Directory of a server.
    pub(crate) fn directory_of(&self, at: usize) -> PathBuf {
        self.directory.join(format!("data{at}"))
    }

    fn log_of(&self, at: usize) -> PathBuf {
        self.directory.join(format!("data{at}.log"))
    }

    /// Kills a server.
    pub(crate) fn kill(&mut self, at: usize) -> Result<()> {
        let mut server = self.servers[at].take().context("it runs")?;
        server.kill();
        Ok(())
    }

    /// Restarts a killed server.
    pub(crate) fn start_again(&mut self, at: usize) -> Result<()> {
        let own = self.directory_of(at);
        let mut words = vec!["data", "--dir", text(&own)?];
        words.extend(self.setup.data.iter().map(String::as_str));
        self.servers[at] = Some(begin_command(self.server_command(), &self.log_of(at), &words, None)?);
        Ok(())
    }

    pub(crate) fn master(&self) -> &Process {
        &self.master
    }

    /// A running server.
    pub(crate) fn server(&self, at: usize) -> Result<&Process> {
        self.servers[at].as_ref().context("it runs")
    }

    /// A client with all rights.
    pub(crate) fn store(&self) -> &ClusterStore {
        &self.store
    }

    /// Profile with all rights, for further clients.
    pub(crate) fn profile(&self) -> Result<ClientProfile> {
        Ok(ClientProfile::read(&self.directory.join("master/client.json"))?)
    }

    /// Sends an operator's request to the master.
    pub(crate) fn administer<R: AdminRequest>(&self, request: &R) -> Result<R::Reply> {
        Ok(self.store.wait(self.store.cluster().administer(request, TO_ANSWER))?)
    }

    pub(crate) fn status(&self) -> Result<ClusterStatus> {
        self.administer(&requests::ShowStatus {})
    }

    /// Waits until every group has all its replicas; returns the time.
    pub(crate) fn wait_healthy(&self, limit: Duration) -> Result<Duration> {
        self.wait_until(limit, |status| status.health == "healthy")
    }

    /// Waits until the status fulfils a condition; returns the time.
    pub(crate) fn wait_until(
        &self,
        limit: Duration,
        mut is_so: impl FnMut(&ClusterStatus) -> bool,
    ) -> Result<Duration> {
        let begun = Instant::now();
        loop {
            let status = self.status()?;
            if is_so(&status) {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > limit {
                bail!("after {} s: {}", limit.as_secs(), status.sentence);
            }
            thread::sleep(LOOK);
        }
    }
}

/// Processor time of a process, in seconds.
pub(crate) fn processor_seconds_of(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in brackets, may hold spaces.
    let (_, numbers) = stat.rsplit_once(')').context("a line of /proc")?;
    let mut ticks = numbers.split_whitespace().skip(11).take(2);
    let mut next = || ticks.next().and_then(|word| word.parse::<f64>().ok());
    let (user, system) = (next().context("ticks")?, next().context("ticks")?);
    Ok((user + system) / rustix::param::clock_ticks_per_second() as f64)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path of text")
}

/// A loopback address without a listener.
pub(crate) fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Starts a process, and waits until it reports that it is ready; its log goes to a file.
pub(crate) fn begin(binary: &Path, log: &Path, words: &[&str], input: Option<&str>) -> Result<Process> {
    begin_command(Command::new(binary), log, words, input)
}

/// Like [`begin`], with a command that ends in the binary.
fn begin_command(mut command: Command, log: &Path, words: &[&str], input: Option<&str>) -> Result<Process> {
    let log = fs::OpenOptions::new().create(true).append(true).open(log)?;
    command
        .args(words)
        .args(["--json", "--end-with-parent", &std::process::id().to_string()])
        .args(["--allow-cow", "--allow-volatile"])
        .env_remove("COPAL_CLUSTER")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut child = command.spawn().context("starting copal")?;
    if let Some(mut pipe) = child.stdin.take() {
        // The loop below notices a process that ends at once.
        let _ = pipe.write_all(input.unwrap_or_default().as_bytes());
    }
    let (tell, told) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Empties the pipe after the receiver is gone.
                let _ = tell.send(line);
            }
        });
    }
    let mut process = Process { child, http: String::new() };
    let end = Instant::now() + TO_START;
    let why = loop {
        let Ok(line) = told.recv_timeout(end.saturating_duration_since(Instant::now())) else {
            break "it did not become ready in time".to_owned();
        };
        let line: Value = serde_json::from_str(&line).unwrap_or_default();
        match line["message_type"].as_str() {
            Some("ready") => {
                line["http"].as_str().unwrap_or_default().clone_into(&mut process.http);
                return Ok(process);
            }
            Some("exit_error") => break line["message"].to_string(),
            _ => {}
        }
    };
    process.kill();
    bail!("`copal {}` did not start: {why}", words[0])
}
