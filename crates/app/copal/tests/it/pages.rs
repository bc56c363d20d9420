//! Runs the commands of a page as printed: unedited, in one shell, in an empty directory.
//!
//! Pages name fixed ports and loopback addresses. Each run therefore gets its own network and process
//! namespace if this machine allows that (`unshare`); otherwise the runs take turns. All processes of a page
//! end with its shell.

use std::{
    fs::File,
    path::Path,
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

/// All `sh` blocks of a page in order, and those of `kinds`, which need other programs.
pub(crate) fn commands(page: &str, kinds: &[&str]) -> String {
    let mut script = String::new();
    let mut is_command = false;
    for line in page.lines() {
        match line {
            "```sh" => is_command = true,
            line if line.starts_with("```sh ") => is_command = kinds.contains(&&line["```sh ".len()..]),
            "```" => is_command = false,
            line if is_command => script.push_str(&format!("{line}\n")),
            _ => {}
        }
    }
    script
}

/// The `sh` blocks of a file of this repository.
pub(crate) fn commands_of(page: &str, kinds: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(page);
    let script = commands(&std::fs::read_to_string(path).unwrap(), kinds);
    assert!(script.lines().count() > 15, "{page} has lost its commands: {script}");
    script
}

/// The command that gives a shell its own network and process namespace.
const OWN_NETWORK: [&str; 7] =
    ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"];

fn have_own_network() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    *IS_THERE.get_or_init(|| {
        Command::new(OWN_NETWORK[0])
            .args(&OWN_NETWORK[1..])
            .args(["ip", "link", "set", "lo", "up"])
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|run| run.status.success())
    })
}

/// Runs `script` in the new, empty directory `scratch/here`, in its own network if this machine allows that.
/// A failed command ends it, and so does an unset variable. `path`: the search path.
pub(crate) fn run_as_printed(script: &str, scratch: &Path, path: &str) -> Output {
    match have_own_network() {
        true => {
            let mut command = Command::new(OWN_NETWORK[0]);
            let up = "ip link set lo up; exec bash -euo pipefail ../page.sh";
            command.args(&OWN_NETWORK[1..]).args(["bash", "-c", up]);
            run(command, script, scratch, path, &[])
        }
        false => run_in_this_network(script, scratch, path),
    }
}

/// Like [`run_as_printed`], in the network of this test, where such runs take turns.
pub(crate) fn run_in_this_network(script: &str, scratch: &Path, path: &str) -> Output {
    run_with_variables(script, scratch, path, &[])
}

/// Like [`run_in_this_network`], with further variables of the environment. They may hold secrets: nothing shows them.
pub(crate) fn run_with_variables(
    script: &str,
    scratch: &Path,
    path: &str,
    variables: &[(String, String)],
) -> Output {
    let turn = File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages.lock")).unwrap();
    turn.lock().unwrap();
    let mut command = Command::new("bash");
    let ending = "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT; set -euo pipefail; . ../page.sh";
    command.args(["-c", ending]);
    run(command, script, scratch, path, variables)
}

fn run(
    mut command: Command,
    script: &str,
    scratch: &Path,
    path: &str,
    variables: &[(String, String)],
) -> Output {
    let here = scratch.join("here");
    std::fs::create_dir(&here).unwrap();
    std::fs::write(scratch.join("page.sh"), script).unwrap();
    let output = command.current_dir(&here).env_clear().env("PATH", path).env("HOME", scratch.join("home"));
    let output = output.envs(variables.iter().cloned()).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}\n{script}", output.status);
    assert!(!stderr.contains("panicked"), "{stderr}");
    output
}
