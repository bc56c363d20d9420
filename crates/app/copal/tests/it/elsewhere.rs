//! Repositories in an object store: a server of the testkit, in this process.

use crate::harness::{House, Run};
use copal_testkit::{KeyRights, NetworkFault, ObjectServer};
use std::{path::PathBuf, process::Command};

pub(crate) const SECRET: &str = "a-secret-that-nobody-prints";

/// A bucket, and hosts that keep one repository in it.
pub(crate) struct Bucket {
    pub(crate) server: ObjectServer,
}

impl Bucket {
    pub(crate) fn new() -> Bucket {
        let server = ObjectServer::start();
        server.create_bucket("vms");
        Bucket { server }
    }

    pub(crate) fn url(&self) -> PathBuf {
        format!("s3://vms/office?endpoint={}&region=us-east-1", self.server.url()).into()
    }

    /// Scratch space of a host of the repository.
    pub(crate) fn host(&self) -> House {
        House::elsewhere(&self.url())
    }
}

/// `copal` on a host, with credentials.
pub(crate) fn command(host: &House, words: &[&str]) -> Command {
    let mut command = host.command(words);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("AWS_ACCESS_KEY_ID", "ak").env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.env("XDG_CACHE_HOME", host.path("xdg"));
    command.args(["--retry-for", "20s"]);
    command
}

fn run(host: &House, words: &[&str]) -> Run {
    let run = Run::of(command(host, words).output().unwrap());
    let printed = format!("{}{}", String::from_utf8_lossy(&run.stdout), run.stderr);
    assert!(!printed.contains(SECRET), "{words:?} prints the secret: {printed}");
    run
}

pub(crate) fn good(host: &House, words: &[&str]) -> String {
    let run = run(host, words);
    assert_eq!(run.code, Some(0), "{words:?}: {}", run.stderr);
    String::from_utf8(run.stdout).unwrap()
}

pub(crate) fn bad(host: &House, words: &[&str], code: i32) -> String {
    let run = run(host, words);
    assert_eq!(run.code, Some(code), "{words:?}: {}{}", String::from_utf8_lossy(&run.stdout), run.stderr);
    run.stderr
}

/// An image of `bytes` random bytes.
pub(crate) fn image(host: &House, name: &str, seed: u64, bytes: usize) -> String {
    std::fs::write(host.path(name), copal_testkit::Random::new(seed).bytes(bytes)).unwrap();
    host.word(name)
}

#[test]
fn a_repository_lives_in_an_object_store() {
    let bucket = Bucket::new();
    let (one, two) = (bucket.host(), bucket.host());
    assert!(good(&one, &["store", "probe"]).contains("s3:if-none-match"));
    let solo = bad(&one, &["init", "--layout", "solo"], 2);
    assert!(solo.contains("gives no host a lease"), "{solo}");
    assert_eq!(bucket.server.objects("vms").len(), 0);
    good(&one, &["init"]);
    let disk = image(&one, "disk", 1, 20 << 20);
    good(&one, &["backup", "--vm", "web", &disk]);
    bucket.server.take_requests();
    good(&one, &["backup", "--vm", "web", &disk]);
    let again = bucket.server.take_requests();
    let sent: usize = again.iter().map(|request| request.bytes_in).sum();
    assert!(sent < 1 << 20, "a backup without changes sent {sent} bytes");
    let other = image(&two, "other", 2, 3 << 20);
    good(&two, &["backup", "--vm", "mail", &other]);
    for host in [&one, &two] {
        let listed = good(host, &["snapshots"]);
        assert!(listed.contains("web") && listed.contains("mail"), "{listed}");
        assert!(good(host, &["stats"]).contains("in an object store (s3://vms/office)"));
        let checked = run(host, &["check", "--read-data"]);
        assert!(checked.code == Some(0) && !checked.stderr.contains("cluster"), "{}", checked.stderr);
    }
    good(&two, &["restore", "latest", "--vm", "web", "--target", &two.word("out")]);
    assert!(std::fs::read(two.path("out")).unwrap() == std::fs::read(one.path("disk")).unwrap());
    good(&one, &["verify", "latest", "--vm", "mail"]);
    let listed = good(&one, &["snapshots", "--vm", "mail", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(listed.lines().last().unwrap()).unwrap();
    good(&one, &["forget", listed["snapshots"][0]["id"].as_str().unwrap()]);
    good(&one, &["delete"]);
    good(&two, &["prune", "--keep-last", "1"]);
    good(&one, &["check", "--read-data"]);
    good(&one, &["restore", "latest", "--vm", "web", "--target", &one.word("out")]);
    assert!(std::fs::read(one.path("out")).unwrap() == std::fs::read(one.path("disk")).unwrap());
    let largest = bucket.server.objects("vms").iter().map(|(_, body)| body.len()).max().unwrap();
    assert!(largest <= 8 << 20, "a pack is one request: {largest} bytes");
    assert_eq!(bucket.server.open_uploads("vms"), 0);
}

/// Every fifth answer to a PUT is lost, and others are late or refused: no backup is lost and nothing is damaged.
#[test]
fn a_bad_network_loses_no_backup() {
    let bucket = Bucket::new();
    let host = bucket.host();
    good(&host, &["init"]);
    bucket.server.set_faults(|request| match (request.method.as_str(), request.number % 10) {
        ("PUT", 0 | 5) => NetworkFault::LoseAnswer,
        ("PUT", 3) => NetworkFault::Twice,
        ("GET", 7) => NetworkFault::CutAnswer(100),
        (_, 9) => NetworkFault::Refuse { status: 503, code: "SlowDown".to_owned() },
        _ => NetworkFault::None,
    });
    let disk = image(&host, "disk", 3, 12 << 20);
    good(&host, &["backup", "--vm", "web", &disk]);
    good(&host, &["backup", "--vm", "web", &disk]);
    good(&host, &["forget", "--vm", "web", "--keep-last", "1"]);
    good(&host, &["delete"]);
    // A host that checks the store first.
    let other = bucket.host();
    good(&other, &["backup", "--vm", "web", &disk]);
    bucket.server.clear_faults();
    good(&host, &["check", "--read-data"]);
    good(&host, &["restore", "latest", "--vm", "web", "--target", &host.word("out")]);
    assert!(std::fs::read(host.path("out")).unwrap() == std::fs::read(host.path("disk")).unwrap());
}

#[test]
fn failures_have_their_exit_codes_and_tell_what_to_do() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let at = |url: String| House::elsewhere(&PathBuf::from(url));
    let endpoint = format!("endpoint={}&region=us-east-1", bucket.server.url());
    for (url, code, part) in [
        (format!("s3://missing/p?{endpoint}"), 10, "there is no bucket `missing`"),
        ("s3://vms/p?endpoint=http://127.0.0.1:1&region=x&".to_owned(), 42, "refuses the connection"),
        (format!("s3://ak:{SECRET}@vms/p?{endpoint}"), 2, "holds credentials"),
        ("s3://vms/p?endpoint=http://10.0.0.1:1".to_owned(), 2, "not encrypted"),
        ("s3://vms?region=x".to_owned(), 2, "no prefix"),
        ("b2://vms/p".to_owned(), 2, "names no repository"),
    ] {
        for words in [&["store", "probe", "--retry-for", "0s"][..], &["snapshots", "--retry-for", "0s"]] {
            let run = Run::of(host_command(&at(url.clone()), words));
            assert_eq!(run.code, Some(code), "{url} {words:?}: {}", run.stderr);
            assert!(run.stderr.contains(part) && !run.stderr.contains(SECRET), "{url}: {}", run.stderr);
        }
    }
    let none = bad(&host, &["snapshots"], 10);
    assert!(none.contains("repository"), "{none}");
    let local = House::elsewhere(&host.path("directory"));
    bad(&local, &["store", "probe"], 2);
    for words in
        [&["--store-limit", "1G", "snapshots"][..], &["init", "--size", "1G"], &["init", "--backend", "log"]]
    {
        bad(&host, words, 2);
    }
    bucket.server.ignore_put_conditions(true);
    let ignored = bad(&host, &["init"], 21);
    assert!(ignored.contains("If-None-Match"), "{ignored}");
    bucket.server.ignore_put_conditions(false);
    bucket.server.allow("someone-else", KeyRights::ALL);
    let refused = bad(&host, &["init"], 12);
    assert!(refused.contains("does not know this access key"), "{refused}");
    assert_eq!(bucket.server.objects("vms").len(), 0, "nothing was left");
}

fn host_command(host: &House, words: &[&str]) -> std::process::Output {
    let mut command = host.command(words);
    command.env("AWS_ACCESS_KEY_ID", "ak").env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.env("XDG_CACHE_HOME", host.path("xdg"));
    command.output().unwrap()
}

/// A host that may only create and read backs up and restores; its forgets and deletes are refused in one sentence.
#[test]
fn credentials_without_deletes_back_up_and_restore() {
    let bucket = Bucket::new();
    let host = bucket.host();
    good(&host, &["init"]);
    bucket.server.allow("ak", KeyRights { delete: false, overwrite: false, ..KeyRights::ALL });
    let disk = image(&host, "disk", 4, 2 << 20);
    good(&host, &["backup", "--vm", "web", &disk]);
    good(&host, &["backup", "--vm", "web", &disk]);
    let probe = good(&host, &["store", "probe"]);
    assert!(probe.contains("may delete            not permitted"), "{probe}");
    assert!(probe.contains("old versions    no"), "{probe}");
    bucket.server.name_versions(true);
    let probe = good(&host, &["store", "probe"]);
    assert!(probe.contains("until a lifecycle rule of the bucket removes old versions"), "{probe}");
    assert!(good(&host, &["store", "probe", "--json"]).contains("\"keeps_versions\":true"));
    good(&host, &["restore", "latest", "--vm", "web", "--target", &host.word("out")]);
    assert!(std::fs::read(host.path("out")).unwrap() == std::fs::read(host.path("disk")).unwrap());
}
