//! Protection against other users: files are readable by their owner alone, names show no misleading
//! characters, and a repository without encryption does not pass for an encrypted one.

use crate::{
    disks::{Disk, MIB, assert_restored},
    harness::{House, PASSWORD, Run, id},
};
use std::os::unix::fs::MetadataExt;

/// Runs under a umask that gives others most rights.
fn open_handed(house: &House, words: &[&str]) -> Run {
    let copal = house.command(words);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "umask 000 && exec \"$@\"", "sh"]).arg(copal.get_program()).args(copal.get_args());
    for (name, value) in copal.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let run = Run::of(command.output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    run
}

/// Symptom: every local user could read restored disks, list the repository, and follow the look-ups of a
/// backup.
/// Cause: files and directories had the mode of the umask. Fix: 0600 and 0700 under any umask.
#[test]
fn created_files_are_private_to_their_owner() {
    let house = House::empty();
    open_handed(&house, &["init"]);
    Disk::create(&house.path("disk.raw"), MIB, 180);
    let (image, out, gets) = (house.word("disk.raw"), house.word("out.raw"), house.word("gets"));
    open_handed(&house, &["--record-gets", &gets, "backup", "--vm", "web", &image]);
    open_handed(&house, &["restore", "latest", "--target", &out]);
    let mode = |path: std::path::PathBuf| path.metadata().unwrap().mode() & 0o777;
    assert_eq!(mode(house.repository()), 0o700);
    assert_eq!(mode(house.store()), 0o600);
    assert_eq!(mode(house.path("out.raw")), 0o600);
    assert_eq!(mode(house.path("gets")), 0o600);
}

/// Symptom: a repository that was exchanged for one without encryption was silently used by a user with a
/// password: there was no prompt, and the next backup was readable.
/// Cause: a repository without encryption was opened as such, unless a password was configured.
/// Fix: it is refused without --insecure-no-password.
#[test]
fn a_repository_in_clear_needs_the_explicit_option() {
    let house = House::plain();
    let disk = Disk::create(&house.path("disk.raw"), MIB, 181);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let image = house.word("disk.raw");
    for words in [&["snapshots"][..], &["backup", "--vm", "web", &image]] {
        // Without the harness' option: with the password in the environment, in a file, and not given yet.
        for configured in [Some("COPAL_PASSWORD"), Some("COPAL_PASSWORD_FILE"), None] {
            let mut command = house.command::<&str>([]);
            let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
            let kept = arguments.iter().filter(|word| *word != "--insecure-no-password");
            let mut bare = std::process::Command::new(command.get_program());
            bare.args(kept).args(words).env("COPAL_REPOSITORY", house.repository());
            for name in ["COPAL_PASSWORD", "COPAL_PASSWORD_FILE"] {
                bare.env_remove(name);
            }
            match configured {
                Some("COPAL_PASSWORD") => bare.env("COPAL_PASSWORD", PASSWORD),
                Some(name) => bare.env(name, house.path("password")),
                None => &mut bare,
            };
            command = bare;
            let run = Run::of(command.output().unwrap());
            assert_eq!(run.code, Some(12), "{configured:?}: {run:?}");
            let sentence = run.sentence();
            assert!(sentence.contains("not encrypted"), "{sentence}");
            assert!(sentence.contains("--insecure-no-password"), "{sentence}");
        }
    }
    assert_eq!(house.snapshots(), std::slice::from_ref(&snapshot));
    assert_restored(&house.restore(&snapshot, "out"), &disk.bytes);
}

/// Symptom: a VM, a disk, a tag or a description could contain marks that reverse the direction of writing;
/// tags and descriptions also line breaks and terminal control sequences.
/// Cause: only names were checked, and only for control characters. Fix: all of them are checked, for both.
#[test]
fn deceptive_words_are_refused() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), MIB, 182);
    let image = house.word("disk.raw");
    let disk = format!("s\u{202e}da={image}");
    for words in [
        &["--vm", "web\u{202e}bd", &image][..],
        &["--vm", "web\u{1b}[2J", &image],
        &["--vm", "web", "--disk", &disk],
        &["--vm", "web", "--tag", "a\nb", &image],
        &["--vm", "web", "--description", "a\u{2066}b", &image],
    ] {
        let run = house.run([&["backup"], words].concat());
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(run.sentence().contains("control characters"), "{run:?}");
        assert!(run.stderr.trim_end().chars().all(|c| !copal_backup::is_deceptive(c)), "{run:?}");
    }
    assert!(house.snapshots().is_empty());
}
