//! The examples of every `--help` of the cluster, run as printed against one.
//!
//! Only places and addresses are replaced. Commands that serve are ended once they are ready.

use crate::{
    cluster::{Served, free_ports, named_copal},
    examples::{commands, help, is_of_cluster, lines_below},
    harness::House,
    recovery::wait_for,
};
use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::Duration,
};

/// Commands that serve until they are ended.
const SERVING: [&str; 3] = ["copal master", "copal data", "copal serve"];
/// The last example, since it removes the server.
const LOSING: &str = "copal node lost";
/// Data servers of the cluster, beside those of examples.
const SERVERS: u16 = 4;

struct Scene {
    cluster: Served,
    root: String,
    /// Holds a password file.
    password: House,
}

impl Scene {
    fn new() -> Scene {
        let cluster = Served::with_servers(SERVERS, &["--first-servers", "3"]);
        let here = cluster.scratch.path().join("here");
        std::fs::create_dir(&here).unwrap();
        let root = cluster.scratch.path().to_str().unwrap().to_owned();
        let password = House::empty();
        Scene { cluster, root, password }
    }

    /// Creates the volume `mail` with the file `m1`, which the examples expect, and removes others of their
    /// names.
    fn prepare(&self, line: &str) {
        for volume in ["mail/archive", "letters", "mail"] {
            self.cluster.run(&["fs", "rmdir", volume, "--with-files"]);
        }
        if line.contains("--path vms") {
            self.cluster.run(&["fs", "mkdir", "vms"]);
        }
        let makes_it = line.contains("fs mkdir mail") && !line.contains("mail/");
        if !makes_it {
            self.cluster.good(&["fs", "mkdir", "mail"]);
            if !line.contains("fs put mail m1") && !line.contains("fs rmdir") {
                self.cluster.good(&["fs", "put", "mail", "m1", "/etc/hostname"]);
            }
        }
    }

    /// The command that a user would have typed here.
    fn real(&self, line: &str) -> String {
        let line = line.replace("/srv/copal/", &format!("{}/srv/", self.root));
        let line = line.replace("/tmp/c", &format!("{}/other", self.root));
        let line = line.replace("--dir D ", &format!("--dir {}/srv/d ", self.root));
        let line = line.replace("127.0.0.1:7400/", &format!("127.0.0.1:{}/", self.cluster.port));
        // The first four servers exist.
        let line = line.replace("--name data1", "--name data9").replace("--name data4", "--name data8");
        // This server has joined, and holds no group.
        let mut line = line
            .replace("node rm data2", "node rm data9")
            .replace("serve --dev", &format!("serve --dev --port {}", free_ports(5)));
        if line.contains("0.0.0.0:7401") {
            let port = free_ports(1);
            line = line.replace("0.0.0.0:7401", &format!("0.0.0.0:{port}"));
            line = line.replace("10.0.0.2:7401", &format!("127.0.0.1:{port}"));
        }
        for address in ["10.0.0.1:7400", "10.0.0.2:7401", "HOST:7404"] {
            if line.contains(address) {
                line = line.replace(address, &format!("127.0.0.1:{}", free_ports(1)));
            }
        }
        line
    }

    fn bash(&self, line: &str) -> Command {
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("set -uo pipefail\n{line}")])
            .current_dir(self.cluster.scratch.path().join("here"))
            .env_clear()
            .env("PATH", named_copal(self.cluster.scratch.path(), ""))
            .env("COPAL_PASSWORD_FILE", self.password.path("password"))
            .env("COPAL_CLUSTER", self.cluster.scratch.path().join("c/client.json"))
            .stdin(Stdio::null());
        bash
    }

    /// Starts a server, ends it once it is ready, and waits until the cluster counts it as down.
    ///
    /// Symptom: now and then a plan to rebalance could not be applied. Cause: it was made while the data
    /// server of an earlier example still counted as up. Fix: wait.
    fn serve(&self, line: &str) {
        let mut bash = self.bash(line);
        let mut process = bash.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let is_ready = lines.any(|said| said.is_ok_and(|said| said.contains("ready")));
        let group = format!("-{}", process.id());
        Command::new("kill").args(["-TERM", "--", &group]).status().unwrap();
        let rest = lines.count();
        process.wait().unwrap();
        assert!(is_ready, "{line}: not ready, {rest} lines more");
        if line.starts_with("copal data") {
            wait_for(&self.cluster, Duration::from_secs(60), |status| {
                let servers = status["servers"].as_array().unwrap();
                let up = servers.iter().filter(|server| server["state"] == "up");
                up.count() == usize::from(SERVERS)
            });
        }
    }
}

/// Symptom: the examples of the cluster's commands were run against a repository, and a help whose line was
/// broken looked like a command.
/// Cause: the test of examples knew repositories only. Fix: this one, against three servers.
#[test]
fn every_example_of_the_cluster_works_as_printed() {
    let house = House::empty();
    let scene = Scene::new();
    let mut examples = Vec::new();
    for path in commands(&house) {
        let lines = lines_below(&help(&house, &path), &["Examples:", "Example:"]);
        examples.extend(lines.into_iter().filter(|line| is_of_cluster(&path, line)));
    }
    assert!(examples.len() > 20, "{examples:?}");
    examples.sort_by_key(|line| line.contains(LOSING));
    for line in examples {
        if line.starts_with("export ") {
            continue;
        }
        assert!(
            line.contains("copal ") || line.starts_with("cp "),
            "an example is broken by its width: {line}"
        );
        if SERVING.iter().any(|serving| line.starts_with(serving)) {
            scene.serve(&scene.real(&line));
            continue;
        }
        if line.contains(LOSING) {
            scene.cluster.signal("data3", "-KILL");
            scene.cluster.good(&["status", "--wait", "degraded"]);
        } else {
            scene.prepare(&line);
        }
        let output = scene.bash(&scene.real(&line)).output().unwrap();
        // A server that an example above has started is down again, which is a finding.
        let finds = line.contains("copal doctor") && output.status.code() == Some(20);
        // Nothing can be accepted where all replicas are in sync.
        let is_whole = line.contains("force-accept") && output.status.code() == Some(21);
        assert!(output.status.success() || finds || is_whole, "{line}: {output:?}");
    }
}
