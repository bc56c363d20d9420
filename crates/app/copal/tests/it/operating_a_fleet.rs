//! The operator's page of a fleet, as printed.

use crate::{
    cluster::{free_ports, named_copal},
    disks::MIB,
    operating::commands,
};
use copal_testkit::Random;
use std::{path::Path, process::Command};

#[test]
fn the_commands_of_the_operators_page_of_a_fleet_work_as_printed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/operating-a-fleet.md");
    let script = commands(&std::fs::read_to_string(page).unwrap(), &[]);
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (root, port) = (scratch.path().to_str().unwrap(), free_ports(4));
    for place in ["srv", "etc/copal", "images", "restore"] {
        std::fs::create_dir_all(scratch.path().join(place)).unwrap();
    }
    std::fs::write(scratch.path().join("etc/copal/password"), "correct horse\n").unwrap();
    for (number, name) in ["web1", "web2", "web3", "db"].iter().enumerate() {
        let mut bytes = vec![0; 4 * MIB as usize];
        Random::new(1).fill(&mut bytes[..2 << 20]);
        Random::new(10 + number as u64).fill(&mut bytes[3 << 20..]);
        std::fs::write(scratch.path().join(format!("images/{name}.raw")), bytes).unwrap();
    }
    let script = ["/srv", "/etc/copal", "/images", "/restore"]
        .iter()
        .fold(script, |script, place| {
            script.replace(place, &format!("{root}{place}"))
        })
        .replace("--port 7400", &format!("--port {port}"))
        .replace("127.0.0.1:7400", &format!("127.0.0.1:{port}"));
    let script = format!(
        "set -euo pipefail\ncd {root}\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n{script}\necho ALL DONE\n"
    );
    let run = Command::new("bash")
        .args(["-c", &script])
        .env_clear()
        .env("PATH", named_copal(scratch.path()))
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(stdout.contains("ALL DONE"), "{stdout}\n{stderr}\n{script}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    for part in [
        "\"complete\":true,\"unresolved\":0",
        "no backup is under way",
        "removed VM web3",
        "no damage found",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}
