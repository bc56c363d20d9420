//! The operator's page of a cluster, as printed.

use crate::{
    cluster::{free_ports, named_copal},
    operating::commands,
};
use std::{path::Path, process::Command};

/// What happens to machines between two commands, and what a test does for it.
const EVENTS: [(&str, &str); 3] = [
    ("# data1 is stopped, its machine reboots", "end TERM data1"),
    (
        "# the disk of data2 dies",
        "end KILL data2; rm -r $ROOT/srv/copal/data2",
    ),
    (
        "# the machine of the master is lost",
        "end KILL master; rm -r $ROOT/srv/copal/master",
    ),
];

#[test]
fn the_commands_of_the_operators_page_of_a_cluster_work_as_printed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/operating-a-cluster.md");
    let mut script = commands(&std::fs::read_to_string(page).unwrap(), false);
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (root, port) = (scratch.path().to_str().unwrap(), free_ports(5));
    for (event, done) in EVENTS {
        assert!(script.contains(event), "{event}");
        script = script.replace(event, done);
    }
    script = script
        .replace("/srv", &format!("{root}/srv"))
        .replace("$ROOT", "");
    script = script.replace(&format!("{root}{root}"), root);
    for machine in 1..=5 {
        for (printed, behind) in [(7400, 0), (7500, 100)] {
            let real = format!("127.0.0.1:{}", port + behind + machine - 1);
            script = script.replace(&format!("10.0.0.{machine}:{printed}"), &real);
        }
    }
    // The profile goes with the machine of the master, as a copy of it would not.
    script = script.replace(
        &format!("export COPAL_CLUSTER={root}/srv/copal/master/client.json"),
        &format!("cp -p {root}/srv/copal/master/client.json {root}; export COPAL_CLUSTER={root}/client.json"),
    );
    let script = format!(
        "set -euo pipefail\ncd {root}\nmkdir -p srv/copal\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n\
         end() {{ pids=$(pgrep -f -- \"--dir {root}/srv/copal/$2( |\\$)\"); kill -$1 $pids; \
         while kill -0 $pids 2>/dev/null; do sleep .05; done; }}\n{script}\necho ALL DONE\n"
    );
    // In a file: its words would else be those of a process that is looked for.
    let file = scratch.path().join("script");
    std::fs::write(&file, &script).unwrap();
    let run = Command::new("bash")
        .arg(&file)
        .env_clear()
        .env("PATH", named_copal(scratch.path()))
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(stdout.contains("ALL DONE"), "{stdout}\n{stderr}\n{script}");
    for line in stderr.lines() {
        assert!(!line.contains("panicked"), "{stderr}");
    }
}
