//! The cluster of the README, as printed, and faults of a cluster.

use crate::pages::{commands_of, run_as_printed, run_in_this_network};
use copal_testkit::MariaDb;
use serde_json::Value;
use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

/// Consecutive free ports that no other test of this process gets, together with those 200 above, for
/// monitoring.
pub(crate) fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const EACH: u16 = 8;
    assert!(count <= EACH);
    loop {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        // Twelve clusters per hundred ports, their monitoring ports two hundred above.
        let place = ((std::process::id() % 360) as u16 + turn) % 360;
        let first = 20_000 + place / 12 * 400 + place % 12 * EACH;
        let is_free =
            |at| [0, 200].iter().all(|behind| TcpListener::bind(("127.0.0.1", first + at + behind)).is_ok());
        if (0..count).all(is_free) {
            return first;
        }
    }
}

/// A search path on which `copal` is the binary under test, on any file system. `serve`: further arguments
/// for `copal serve`. `copal doctor` ignores the free space, which is that of the test machine.
pub(crate) fn named_copal(scratch: &Path, serve: &str) -> String {
    let bin = scratch.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let script = bin.join("copal");
    let words = format!(
        r#"#!/bin/sh
copal="{copal} --allow-cow --allow-volatile"
case "$1" in
serve) exec $copal "$@" {serve} ;;
doctor)
    said=$($copal "$@")
    code=$?
    echo "$said"
    bad=$(echo "$said" | grep -E '^bad |"state":"bad"' | grep -vE '^bad +free |"check":"free"')
    if [ $code = 20 ] && [ -z "$bad" ]; then exit 0; fi
    exit $code
    ;;
*) exec $copal "$@" ;;
esac
"#,
        copal = env!("CARGO_BIN_EXE_copal")
    );
    std::fs::write(&script, words).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", bin.display())
}

#[test]
fn the_cluster_of_the_readme_works_as_printed() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = named_copal(scratch.path(), "");
    let run = run_as_printed(&commands_of("README.md", &[]), scratch.path(), &path);
    assert_is_restored(scratch.path(), &run);
}

#[test]
fn the_cluster_of_the_readme_works_with_three_masters() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = scratch.path().join("maria");
    std::fs::create_dir(&place).unwrap();
    let maria = MariaDb::start(&place, 32).unwrap();
    let password = scratch.path().join("pw");
    std::fs::write(&password, "secret\n").unwrap();
    let masters = format!(
        "--masters 3 --meta mysql://copal@127.0.0.1:{}/copal --meta-password-file {}",
        maria.port(),
        password.display()
    );
    // The database answers in the network of this test.
    let path = named_copal(scratch.path(), &masters);
    let run = run_in_this_network(&commands_of("README.md", &[]), scratch.path(), &path);
    assert_is_restored(scratch.path(), &run);
}

/// The block of the README has restored the same data that it backed up.
fn assert_is_restored(scratch: &Path, run: &Output) {
    let (here, stderr) = (scratch.join("here"), String::from_utf8_lossy(&run.stderr));
    assert_eq!(std::fs::read(here.join("disk.raw")).unwrap(), std::fs::read(here.join("out.raw")).unwrap());
    assert!(!stderr.contains("ERROR"), "{stderr}");
}

/// A cluster that is served while a test runs.
pub(crate) struct Served {
    pub(crate) scratch: tempfile::TempDir,
    serve: Child,
    pub(crate) ready: Value,
    pub(crate) port: u16,
}

impl Served {
    pub(crate) fn start(more: &[&str]) -> Served {
        Served::with_servers(3, more)
    }

    /// Three servers that log with this `filter`, for [`Served::log`].
    pub(crate) fn with_log(filter: &str) -> Served {
        Served::with(3, &[], Some(filter))
    }

    /// Logs of the processes.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("log")).unwrap()
    }

    pub(crate) fn with_servers(servers: u16, more: &[&str]) -> Served {
        Served::with(servers, more, None)
    }

    fn with(servers: u16, more: &[&str], log: Option<&str>) -> Served {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let port = free_ports(servers + 2);
        let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
        if let Some(filter) = log {
            command.env("COPAL_LOG", filter);
        }
        let stderr = match log {
            Some(_) => std::fs::File::create(scratch.path().join("log")).unwrap().into(),
            None => Stdio::piped(),
        };
        let mut serve = command
            .args([
                "serve",
                "--dev",
                "--allow-cow",
                "--allow-volatile",
                "--json",
                "--servers",
                &servers.to_string(),
            ])
            .args(["--port", &port.to_string()])
            .args(more)
            .arg("--dir")
            .arg(scratch.path().join("c"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(serve.stdout.take().unwrap()).lines();
        let ready = loop {
            let Some(Ok(line)) = lines.next() else {
                let mut stderr = String::new();
                if let Some(mut pipe) = serve.stderr.take() {
                    pipe.read_to_string(&mut stderr).unwrap();
                }
                panic!("the cluster did not start: {stderr}");
            };
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["message_type"] == "ready" {
                break line;
            }
        };
        std::thread::spawn(move || lines.count());
        let served = Served { scratch, serve, ready, port };
        served.good(&["status", "--wait", "healthy"]);
        served
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
        command
            .args(["--allow-cow", "--allow-volatile"])
            .args(words)
            .current_dir(self.scratch.path())
            .env_clear()
            .env("COPAL_CLUSTER", self.scratch.path().join("c/client.json"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    pub(crate) fn good(&self, words: &[&str]) -> String {
        let run = self.run(words);
        let stderr = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{words:?}: {stderr}");
        String::from_utf8(run.stdout).unwrap()
    }

    /// The exit code and the sentence of a command that fails.
    #[track_caller]
    pub(crate) fn bad(&self, code: i32, words: &[&str]) -> String {
        let run = self.run(words);
        let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(code), "{words:?}: {stderr}");
        stderr
    }

    fn pid_of(&self, name: &str) -> i32 {
        let processes = self.ready["processes"].as_array().unwrap();
        let process = processes.iter().find(|process| process["name"] == name).unwrap();
        process["pid"].as_i64().unwrap() as i32
    }

    pub(crate) fn signal(&self, name: &str, signal: &str) {
        let pid = self.pid_of(name).to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// The reply of a command, as JSON.
    pub(crate) fn reply(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = ["--json"].into_iter().chain(words.iter().copied()).collect();
        let said = self.good(&words);
        serde_json::from_str(said.lines().last().unwrap()).unwrap()
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.scratch.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // SIGTERM ends all of them; five seconds suffice.
        let pid = self.serve.id().to_string();
        let _ = Command::new("kill").arg(&pid).status();
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && matches!(self.serve.try_wait(), Ok(None)) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let _ = self.serve.kill();
        let _ = self.serve.wait();
    }
}

#[test]
fn each_failure_has_its_exit_code_and_advice() {
    let cluster = Served::start(&[]);
    let one = cluster.file("one", b"one");
    cluster.good(&["fs", "mkdir", "mail"]);
    cluster.good(&["fs", "put", "mail", "m1", &one]);
    let taken = cluster.bad(41, &["--json", "fs", "put", "mail", "m1", &one]);
    assert!(taken.contains("taken by file"), "{taken}");
    assert!(cluster.bad(41, &["fs", "mkdir", "mail"]).contains("choose another name"));
    assert!(cluster.bad(40, &["fs", "get", "mail", "none", "-"]).contains("copal fs ls"));
    assert!(cluster.bad(40, &["fs", "ls", "none"]).contains("copal fs mkdir none"));
    assert!(cluster.bad(41, &["fs", "rmdir", "mail"]).contains("not empty"));
    // Quota: puts are refused, deletes still work.
    cluster.good(&["fs", "mkdir", "small", "--quota", "1K"]);
    let large = cluster.file("large", &[7; 900]);
    cluster.good(&["fs", "put", "small", "a", &large]);
    assert!(cluster.bad(44, &["fs", "put", "small", "b", &large]).contains("quota"));
    cluster.good(&["fs", "rm", "small", "a"]);
    cluster.good(&["fs", "put", "small", "b", &large]);
    // Profiles.
    let no_profile = cluster.command(&["fs", "ls"]).env_remove("COPAL_CLUSTER").output().unwrap();
    assert_eq!(no_profile.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&no_profile.stderr).contains("--cluster FILE"));
    let broken = cluster.file("broken.json", b"{");
    assert!(cluster.bad(2, &["--cluster", &broken, "fs", "ls"]).contains("no profile"));
    // A second process on a directory.
    let dir = cluster.scratch.path().join("c/data1");
    let second = cluster.bad(11, &["data", "--dir", dir.to_str().unwrap()]);
    assert!(second.contains("data --dir") && second.contains("process"), "{second}");
    let master = cluster.scratch.path().join("c/master");
    cluster.bad(11, &["master", "--dir", master.to_str().unwrap()]);
    // Options that only a store of this machine has.
    let pw = cluster.file("pw", b"secret\n");
    let repo = format!("copal://127.0.0.1:{}/vms", cluster.port);
    let on_repo = |more: &[&str]| {
        let common = ["--repo", &repo, "--password-file", &pw].map(str::to_owned);
        common.into_iter().chain(more.iter().map(|word| (*word).to_owned())).collect::<Vec<String>>()
    };
    let call = |code: i32, more: &[&str]| {
        let words = on_repo(more);
        cluster.bad(code, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    call(10, &["snapshots"]);
    call(2, &["init", "--size", "1G"]);
    call(2, &["init", "--backend", "hostfs"]);
    cluster.good(&on_repo(&["init"]).iter().map(String::as_str).collect::<Vec<_>>());
    call(2, &["stats", "--store-limit", "1G"]);
    call(2, &["check", "--coverage"]);
    // A profile of another cluster.
    let other = Served::start(&[]);
    let mut foreign: Value =
        serde_json::from_str(&std::fs::read_to_string(other.scratch.path().join("c/client.json")).unwrap())
            .unwrap();
    foreign["masters"] = serde_json::json!([format!("127.0.0.1:{}", cluster.port)]);
    let foreign = cluster.file("foreign.json", foreign.to_string().as_bytes());
    cluster.bad(21, &["--cluster", &foreign, "fs", "ls"]);
}

#[test]
fn with_too_few_members_nothing_appears_and_a_frozen_member_is_worked_around() {
    let cluster = Served::start(&[]);
    let one = cluster.file("one", b"one");
    cluster.good(&["fs", "mkdir", "mail"]);
    // A frozen server accepts connections and does not answer; after ten seconds it counts as failed, and the
    // put continues.
    cluster.signal("data1", "-STOP");
    cluster.good(&["fs", "put", "mail", "m1", &one]);
    cluster.signal("data1", "-CONT");
    cluster.good(&["status", "--wait", "healthy"]);
    cluster.good(&["group", "verify", "--all", "--deep"]);
    for name in ["data1", "data2"] {
        cluster.signal(name, "-KILL");
    }
    // With one replica nothing is accepted. The first put may meet a dying server: then the outcome is
    // unknown, and reported as such.
    let first = cluster.run(&["fs", "put", "mail", "m2", &one, "--deadline", "3s"]);
    assert!(matches!(first.status.code(), Some(42 | 43)), "{first:?}");
    let degraded = cluster.bad(42, &["fs", "put", "mail", "m3", &one, "--deadline", "3s"]);
    assert!(degraded.contains("1 of the 2 copies needed"), "{degraded}");
    assert_eq!(cluster.good(&["fs", "get", "mail", "m1", "-"]), "one");
    let data1 = cluster.scratch.path().join("c/data1");
    let mut back = cluster
        .command(&["data", "--dir", data1.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    cluster.good(&["status", "--wait", "degraded"]);
    cluster.good(&["fs", "put", "mail", "m4", &one]);
    cluster.bad(40, &["fs", "stat", "mail", "m3"]);
    let pid = back.id().to_string();
    Command::new("kill").arg(&pid).status().unwrap();
    let begun = Instant::now();
    assert!(back.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(60), "it ends when it is told to");
}

/// Symptom: after a start with --dir alone, a master declared servers lost after 30 minutes and a data server
/// took 96 MB, regardless of earlier options. Cause: these were not saved. Fix: they are saved, like all
/// options of a first start.
#[test]
fn a_start_reuses_the_options_of_the_last_one() {
    let cluster = Served::with_servers(3, &["--permanent-after", "3h", "--memory", "120M"]);
    let dir = |name: &str| cluster.scratch.path().join("c").join(name);
    let again = |words: &[&str], name: &str| {
        let mut process = cluster
            .command(words)
            .args(["--dir", dir(name).to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line}");
        process
    };
    cluster.signal("master", "-KILL");
    cluster.signal("data2", "-KILL");
    let mut master = again(&["master"], "master");
    let status = cluster.good(&["status", "--wait", "degraded"]);
    assert!(status.contains("in 180 min") || status.contains("in 179 min"), "{status}");
    // It uses the setting in its directory, which is too little for any process.
    let home = dir("data2").join("server.json");
    let said = std::fs::read_to_string(&home).unwrap();
    let less = said.replace("\"memory_bytes\": 120000000", "\"memory_bytes\": 120000");
    assert_ne!(said, less);
    std::fs::write(&home, less).unwrap();
    let refused = cluster.bad(2, &["data", "--dir", dir("data2").to_str().unwrap()]);
    assert!(refused.contains("memory"), "{refused}");
    // A start with other options saves these.
    let mut data2 = again(&["data", "--memory", "110M"], "data2");
    assert!(std::fs::read_to_string(&home).unwrap().contains("110000000"));
    cluster.good(&["status", "--wait", "healthy"]);
    for process in [&mut data2, &mut master] {
        Command::new("kill").arg(process.id().to_string()).status().unwrap();
        process.wait().unwrap();
    }
}

/// Symptom: after a first start that could not create its store, the cluster listed the server as down, and
/// the token was used up. A refused disk or too small a limit sufficed, and so did an address that it could
/// not listen at. Cause: the server joined first. Fix: it creates the store first, and checks that it can
/// listen.
#[test]
fn a_first_start_that_cannot_make_its_store_joins_nothing() {
    let cluster = Served::start(&[]);
    let token = cluster.good(&["node", "token"]);
    let dir = cluster.scratch.path().join("late");
    let start = |limit, listen: &str| {
        let mut command = cluster.command(&["data", "--name", "late", "--listen", listen]);
        command.args(["--limit", limit, "--join", token.trim(), "--dir"]).arg(&dir);
        command
    };
    // The same holds for a taken or invalid address.
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    for (limit, listen) in [("1MiB", "127.0.0.1:0"), ("128MiB", &taken), ("128MiB", "*:28101")] {
        let refused = start(limit, listen).output().unwrap();
        assert!(!refused.status.success(), "{listen}: {refused:?}");
        assert!(!cluster.good(&["node", "ls"]).contains("late"), "{listen}: {refused:?}");
    }
    drop(held);
    for advertise in ["127.0.0.1:0", "224.0.0.1:7500", "0.0.0.0:7500"] {
        let refused = start("128MiB", "127.0.0.1:0").args(["--advertise", advertise]).output();
        assert_eq!(refused.unwrap().status.code(), Some(2), "{advertise}");
    }
    // Its token is still valid.
    let mut process = start("128MiB", "127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready: late"), "{line}");
    assert!(cluster.good(&["node", "ls"]).contains("late"));
    let _ = process.kill();
    process.wait().unwrap();
}

/// Symptom: the first start of a master without its database ended with an error of the database library
/// alone.
#[test]
fn no_cluster_is_made_without_its_database_and_the_error_has_advice() {
    let scratch = tempfile::tempdir().unwrap();
    let start = |listen: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
        command
            .args(["--allow-cow", "--allow-volatile", "master", "--new", "--listen", listen])
            .args(["--meta", "mysql://copal@127.0.0.1:1/copal", "--dir"])
            .arg(scratch.path().join("master"));
        let run = command.stdin(Stdio::null()).output().unwrap();
        (run.status.code(), String::from_utf8(run.stderr).unwrap())
    };
    let (code, said) = start("127.0.0.1:0");
    assert_eq!(code, Some(2), "others cannot be told of a drawn port: {said}");
    let (code, said) = start(&format!("127.0.0.1:{}", free_ports(1)));
    assert_eq!(code, Some(1), "{said}");
    for part in ["no cluster was created", "start the database", "127.0.0.1:1"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("DriverError"), "{said}");
}

/// Symptom: a master in a directory whose name is not UTF-8 panicked once it was ready, and `copal serve
/// --dev` created a directory of another name. Cause: paths were converted to text.
#[test]
fn directories_of_a_cluster_need_not_be_utf8() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join(OsStr::from_bytes(b"x\xff\xfey"));
    let port = free_ports(2).to_string();
    let mut served = Command::new(env!("CARGO_BIN_EXE_copal"))
        .args(["--allow-cow", "--allow-volatile", "serve", "--dev", "--servers", "1", "--port", &port])
        .arg("--dir")
        .arg(&directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(served.stdout.take().unwrap()).lines();
    let ready = lines.map_while(Result::ok).find(|line| line.starts_with("ready: "));
    let _ = served.kill();
    let said = served.wait_with_output().unwrap();
    assert!(ready.is_some(), "{}", String::from_utf8_lossy(&said.stderr));
    let made: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().flatten().collect();
    assert_eq!(made.len(), 1, "{made:?}");
    assert!(directory.join("client.json").exists());
}

#[test]
fn operations_as_lines_of_json_are_answered_as_they_end() {
    let cluster = Served::start(&[]);
    let mut run = cluster
        .command(&["fs", "run", "--parallel", "8"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = run.stdin.take().unwrap();
    let mut output = BufReader::new(run.stdout.take().unwrap()).lines();
    let mut answer = |line: &str| -> Value {
        writeln!(input, "{line}").unwrap();
        serde_json::from_str(&output.next().unwrap().unwrap()).unwrap()
    };
    assert_eq!(answer(r#"{"id":1,"op":"mkdir","volume":"mail"}"#)["ok"], true);
    let put = answer(r#"{"id":2,"op":"put","volume":"mail","name":"m","body_b64":"aGVsbG8="}"#);
    assert_eq!((&put["ok"], &put["size"], &put["id"]), (&true.into(), &5.into(), &2.into()), "{put}");
    assert!(put["end_ns"].as_u64() > put["start_ns"].as_u64());
    let got = answer(r#"{"id":3,"op":"get","volume":"mail","name":"m","body":true,"consistency":"strict"}"#);
    assert_eq!((&got["body_b64"], &got["fid"]), (&"aGVsbG8=".into(), &put["fid"]), "{got}");
    let again = answer(r#"{"id":4,"op":"put","volume":"mail","name":"m","body_b64":""}"#);
    assert_eq!(
        (&again["ok"], &again["error"], &again["fid"]),
        (&false.into(), &"exists".into(), &put["fid"])
    );
    let list = answer(r#"{"id":5,"op":"list","volume":"mail"}"#);
    assert_eq!(list["files"][0]["name"], "m");
    let settled = answer(&format!(r#"{{"id":6,"op":"settle","volume":"mail","fid":{}}}"#, put["fid"]));
    assert_eq!(settled["outcome"], "committed", "{settled}");
    assert_eq!(answer(r#"{"id":7,"op":"delete","volume":"mail","name":"m"}"#)["ok"], true);
    assert_eq!(answer(r#"{"id":8,"op":"stat","volume":"mail","name":"m"}"#)["error"], "not_found");
    assert_eq!(answer(r#"{"id":9,"op":"nonsense"}"#)["error"], "invalid");
    assert_eq!(answer("no json")["error"], "invalid");
    assert_eq!(answer(r#"{"id":10,"op":"rmdir","volume":"mail"}"#)["ok"], true);
    drop(input);
    assert!(run.wait().unwrap().success());
}

#[test]
fn garbage_and_silent_connections_are_closed_without_effect_on_others() {
    let cluster = Served::start(&[]);
    let address = format!("127.0.0.1:{}", cluster.port + 1);
    let mut silent = TcpStream::connect(&address).unwrap();
    let mut garbage = TcpStream::connect(&address).unwrap();
    garbage.write_all(&[0xFF; 70_000]).unwrap_or(());
    let mut rest = Vec::new();
    // The server closes the connection, perhaps with an alert.
    let _ = garbage.read_to_end(&mut rest);
    cluster.good(&["fs", "mkdir", "mail"]);
    silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "closed within ten seconds");
    let one = cluster.file("one", b"one");
    cluster.good(&["fs", "put", "mail", "m", &one]);
}

#[test]
fn an_emptied_directory_is_no_server_and_an_older_copy_is_not_let_in() {
    let cluster = Served::start(&[]);
    let dir = cluster.scratch.path().join("c/data2");
    let copy = cluster.scratch.path().join("copy");
    let copied = Command::new("cp").arg("-a").arg(&dir).arg(&copy).status().unwrap();
    assert!(copied.success());
    let again = |dir: &Path| {
        let mut process = cluster
            .command(&["data", "--dir", dir.to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        process
    };
    cluster.signal("data2", "-KILL");
    // Two boots more than in the copy.
    for _ in 0..2 {
        let process = again(&dir);
        cluster.good(&["status", "--wait", "healthy"]);
        Command::new("kill").arg(process.id().to_string()).status().unwrap();
        let ended = process.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{}: {stderr}", ended.status);
    }
    let older = again(&copy).wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&older.stderr);
    assert_eq!(older.status.code(), Some(21), "{stderr}");
    assert!(stderr.contains("older copy"), "{stderr}");
    assert!(cluster.good(&["events"]).contains("older copy"));
    std::fs::remove_file(dir.join("store.copal")).unwrap();
    let emptied = cluster.bad(21, &["data", "--dir", dir.to_str().unwrap()]);
    assert!(emptied.contains("copal node lost"), "{emptied}");
}

/// Symptom: a `fs get` that failed half way left a file that looked complete. Cause: it was written in place,
/// and left there. Fix: an incomplete file is removed.
#[test]
fn a_get_that_fails_half_way_leaves_no_part() {
    let cluster = Served::start(&[]);
    cluster.good(&["fs", "mkdir", "mail"]);
    let large = cluster.file("large", &vec![7; 128 << 20]);
    cluster.good(&["fs", "put", "mail", "large", &large]);
    let target = cluster.scratch.path().join("target");
    let mut get = cluster
        .command(&["fs", "get", "mail", "large", target.to_str().unwrap(), "--deadline", "2s"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while std::fs::metadata(&target).map_or(0, |target| target.len()) == 0 {
        assert!(Instant::now() < end && get.try_wait().unwrap().is_none(), "it ended too soon");
        std::thread::park_timeout(Duration::from_millis(1));
    }
    for name in ["data1", "data2", "data3"] {
        cluster.signal(name, "-STOP");
    }
    let ended = get.wait().unwrap();
    for name in ["data1", "data2", "data3"] {
        cluster.signal(name, "-CONT");
    }
    assert!(!ended.success());
    assert!(!target.exists());
}
