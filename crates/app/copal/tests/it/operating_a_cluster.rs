//! The operator's page of a cluster, as printed: with one master on a file, and with three over a MariaDB.

use crate::{
    cluster::{free_ports, named_copal},
    operating::commands,
};
use copal_testkit::MariaDb;
use std::{path::Path, process::Command};

/// What happens to machines between two commands, and what a test does for it.
const EVENTS: [(&str, &str); 4] = [
    ("# data1 is stopped, its machine reboots", "end TERM data1"),
    (
        "# data2 is stopped, its machine goes",
        "end TERM data2; rm -r $ROOT/srv/copal/data2",
    ),
    (
        "# the disk of data3 dies",
        "end KILL data3; rm -r $ROOT/srv/copal/data3",
    ),
    (
        "# the machine of the master is lost",
        "end KILL master; rm -r $ROOT/srv/copal/master",
    ),
];
/// `copal doctor` where nothing but the room may be bad: that is the machine's the tests run on.
const DOCTOR: &str = r#"
doctor() {
    local said
    said=$(copal doctor "$@") || said=$(grep -vE '^bad +free |"check":"free"' <<< "$said")
    ! grep -E '^bad |"state":"bad"' <<< "$said" || return 1
    echo "$said"
}
"#;
/// What only a master on a file of its own needs.
const OF_A_FILE: [&str; 3] = ["copal meta ", "/master.json ", "--dir /srv/copal/new "];

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/operating-a-cluster.md");
    commands(&std::fs::read_to_string(page).unwrap(), &[])
}

/// The same commands where three masters share a database.
fn with_three_masters(script: &str, database: &str) -> String {
    let is_for_all = |line: &&str| !OF_A_FILE.iter().any(|words| line.contains(words));
    let lines: Vec<&str> = script.lines().filter(is_for_all).collect();
    let script = lines.join("\n");
    let first = "copal master --dir /srv/copal/master --listen 10.0.0.1:7400";
    assert!(script.contains(first), "{script}");
    let shared = format!("--meta {database} --meta-password-file /srv/pw");
    let script = script.replace(first, &format!("{first} {shared}"));
    let profile = "export COPAL_CLUSTER=/srv/copal/master/client.json";
    let mut more = format!("{profile}\n");
    for (number, machine) in [(2, 6), (3, 7)] {
        more += &format!(
            "copal master --dir /srv/copal/master{number} --listen 10.0.0.{machine}:7400 {shared} --join \"$(copal node token \
             --master)\" &\nuntil [ -s /srv/copal/master{number}/master.json ]; do sleep .1; done\n"
        );
    }
    more += "export COPAL_CLUSTER=/srv/copal/master3/client.json";
    script.replace(profile, &more)
}

fn run(scratch: &Path, mut script: String) {
    let (root, port) = (scratch.to_str().unwrap(), free_ports(7));
    for (event, done) in EVENTS {
        assert!(script.contains(event), "{event}");
        script = script.replace(event, done);
    }
    script = script
        .replace("/srv", &format!("{root}/srv"))
        .replace("/tmp/plan", &format!("{root}/plan"))
        .replace("$ROOT", "")
        .replace("copal doctor", "doctor");
    script = script.replace(&format!("{root}{root}"), root);
    for machine in 1..=7 {
        for (printed, behind) in [(7400, 0), (7500, 100)] {
            let real = format!("127.0.0.1:{}", port + behind + machine - 1);
            script = script.replace(&format!("10.0.0.{machine}:{printed}"), &real);
        }
    }
    // The profile goes with the machine of the master, as a copy of it would not.
    for name in ["master", "master3"] {
        script = script.replace(
            &format!("export COPAL_CLUSTER={root}/srv/copal/{name}/client.json"),
            &format!(
                "cp -p {root}/srv/copal/{name}/client.json {root}; export COPAL_CLUSTER={root}/client.json"
            ),
        );
    }
    let script = format!(
        "set -euo pipefail\ncd {root}\nmkdir -p srv/copal\necho secret > srv/pw\n\
         trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n\
         end() {{ pids=$(pgrep -f -- \"--dir {root}/srv/copal/$2( |\\$)\"); kill -$1 $pids; \
         while kill -0 $pids 2>/dev/null; do sleep .05; done; }}\n{DOCTOR}{script}\necho ALL DONE\n"
    );
    // In a file: its words would else be those of a process that is looked for.
    let file = scratch.join("script");
    std::fs::write(&file, &script).unwrap();
    let run = Command::new("bash")
        .arg(&file)
        .env_clear()
        .env("PATH", named_copal(scratch))
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

#[test]
fn the_commands_of_the_operators_page_of_a_cluster_work_as_printed() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    run(scratch.path(), page());
}

#[test]
fn the_commands_of_the_operators_page_of_a_cluster_work_with_three_masters() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = scratch.path().join("maria");
    std::fs::create_dir(&place).unwrap();
    let maria = MariaDb::start(&place, 32).unwrap();
    let database = format!("mysql://copal@127.0.0.1:{}/copal", maria.port());
    run(scratch.path(), with_three_masters(&page(), &database));
}
