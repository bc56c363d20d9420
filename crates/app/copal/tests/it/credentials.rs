//! Credentials of object stores: sources, rights, failures in the middle of a command, and secrets that nothing shows.

use crate::{
    elsewhere::{Bucket, SECRET, bad, command, good, image},
    harness::{House, PASSWORD, Run, Running},
};
use copal_testkit::{KeyRights, NetworkFault};
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

const TOKEN: &str = "a-session-token-that-nobody-prints";

/// `copal` on a host with one try for each request, and without credentials in its environment.
fn bare(host: &House, words: &[&str]) -> Command {
    let mut command = host.command(words);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("HOME", host.path("home")).args(["--retry-for", "0s"]);
    command
}

/// The same, with credentials.
fn quick(host: &House, words: &[&str]) -> Command {
    let mut command = bare(host, words);
    command.env("AWS_ACCESS_KEY_ID", "ak").env("AWS_SECRET_ACCESS_KEY", SECRET);
    command
}

fn write_keys(file: &Path, profile: &str, id: &str, mode: u32) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let text = format!(
        "[{profile}]\naws_access_key_id = {id}\naws_secret_access_key = {SECRET}\naws_session_token = {TOKEN}\n"
    );
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

/// A server that counts connections and answers none.
fn count_connections() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Relaxed);
            drop(stream);
        }
    });
    (format!("http://{address}"), count)
}

#[test]
fn credentials_come_from_a_file_a_profile_or_the_environment() {
    let bucket = Bucket::new();
    let host = bucket.host();
    good(&host, &["init"]);
    bucket.server.allow("of-file", KeyRights::ALL);
    let file = host.path("keys");
    let run = |command: &mut Command| Run::of(command.output().unwrap());
    let with_file = |more: &[&str]| {
        let file = host.word("keys");
        let words: Vec<&str> =
            ["--credentials", &file, "snapshots"].into_iter().chain(more.iter().copied()).collect();
        bare(&host, &words)
    };
    write_keys(&file, "default", "of-file", 0o600);
    assert_eq!(run(&mut with_file(&[])).code, Some(0));
    write_keys(&file, "default", "of-file", 0o644);
    let open = run(&mut with_file(&[]));
    assert!(open.code == Some(12) && open.sentence().contains("chmod 600"), "{open:?}");
    write_keys(&file, "ci", "of-file", 0o600);
    let no_profile = run(&mut with_file(&[]));
    assert!(no_profile.code == Some(12) && no_profile.sentence().contains("[default]"), "{no_profile:?}");
    assert_eq!(run(with_file(&[]).env("AWS_PROFILE", "ci")).code, Some(0));
    // The file counts, and not the environment.
    write_keys(&file, "default", "unknown", 0o600);
    assert_eq!(
        run(with_file(&[]).env("AWS_ACCESS_KEY_ID", "of-file").env("AWS_SECRET_ACCESS_KEY", SECRET)).code,
        Some(12)
    );
    // The files of the provider's tools.
    assert_eq!(run(&mut bare(&host, &["snapshots"])).code, Some(12));
    write_keys(&host.path("home/.aws/credentials"), "ci", "of-file", 0o600);
    assert_eq!(run(&mut bare(&host, &["snapshots"])).code, Some(12));
    assert_eq!(run(bare(&host, &["snapshots"]).env("AWS_PROFILE", "ci")).code, Some(0));
    let local = House::plain();
    let ignored = local.run(["--credentials", &host.word("keys"), "snapshots"]);
    assert!(ignored.code == Some(2) && ignored.sentence().contains("object store"), "{ignored:?}");
}

/// The metadata service of the machine is asked only with `imds=yes`. Requests to it would go through the proxy.
#[test]
fn nothing_asks_the_metadata_service_unless_told_to() {
    let bucket = Bucket::new();
    let (proxy, asked) = count_connections();
    for (text, is_asked) in [
        (bucket.url().display().to_string(), false),
        ("az://account/box/p".to_owned(), false),
        ("gs://box/p".to_owned(), false),
        (format!("{}&imds=yes", bucket.url().display()), true),
    ] {
        let host = House::elsewhere(Path::new(&text));
        let mut command = bare(&host, &["snapshots"]);
        command.env("HTTP_PROXY", &proxy).env("HTTPS_PROXY", &proxy).env("NO_PROXY", "127.0.0.1");
        for name in ["http_proxy", "https_proxy", "no_proxy", "AZURE_STORAGE_ACCOUNT_KEY"] {
            command.env_remove(name);
        }
        asked.store(0, Relaxed);
        let run = Run::of(command.output().unwrap());
        assert!(run.stderr.contains("no credentials found") || is_asked, "{text}: {run:?}");
        assert_eq!(asked.load(Relaxed) > 0, is_asked, "{text}: {run:?}");
        assert_ne!(run.code, Some(0), "{text}");
    }
    // Without NO_PROXY each request goes through the proxy.
    let host = bucket.host();
    asked.store(0, Relaxed);
    let mut command = quick(&host, &["snapshots"]);
    let run =
        command.env("HTTP_PROXY", &proxy).env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
    assert_eq!(run.status.code(), Some(42));
    assert!(asked.load(Relaxed) > 0);
}

/// A failure in the middle of a command has the exit code of its cause: credentials that were revoked, a bucket that was
/// removed, an object in an archive, a store that does not answer.
#[test]
fn a_failure_in_the_middle_has_the_exit_code_of_its_cause() {
    let bucket = Bucket::new();
    let host = bucket.host();
    good(&host, &["init"]);
    let disk = image(&host, "disk", 5, 3 << 20);
    good(&host, &["backup", "--vm", "web", &disk]);
    good(&host, &["backup", "--vm", "web", &disk]);
    let (out, other) = (host.word("out"), image(&host, "other", 6, 2 << 20));
    let commands: [&[&str]; 9] = [
        &["snapshots"],
        &["ls", "latest", "--vm", "web"],
        &["stats"],
        &["check", "--read-data"],
        &["restore", "latest", "--vm", "web", "--target", &out],
        &["backup", "--vm", "mail", &other],
        &["forget", "--vm", "web", "--keep-last", "1"],
        &["delete"],
        &["vm", "rm", "web", "--force"],
    ];
    for words in commands {
        for (status, error, code, part) in [
            (403, "InvalidAccessKeyId", 12, "check the credentials"),
            (404, "NoSuchBucket", 10, "there is no bucket"),
            (403, "InvalidObjectState", 3, "in an archive tier"),
            (503, "SlowDown", 42, "busy"),
        ] {
            for served in [2, 5] {
                let left = AtomicUsize::new(served);
                let refusal = NetworkFault::Refuse { status, code: error.to_owned() };
                bucket.server.set_faults(move |_| {
                    match left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                        Ok(_) => NetworkFault::None,
                        Err(_) => refusal.clone(),
                    }
                });
                let run = Run::of(quick(&host, words).output().unwrap());
                bucket.server.clear_faults();
                assert_eq!(run.code, Some(code), "{words:?} {error} after {served}: {run:?}");
                let told = run.stderr.lines().filter(|line| line.starts_with("copal: ")).count();
                assert!(run.stderr.contains(part) && told == 1, "{words:?} {error}: {}", run.stderr);
                let _ = fs::remove_file(host.path("out"));
            }
        }
    }
    good(&host, &["check", "--read-data"]);
}

/// Credentials that may neither delete nor overwrite: deletions say no in one sentence before they change anything, and all
/// else works without a warning.
#[test]
fn append_only_credentials_change_nothing_that_is_there() {
    let bucket = Bucket::new();
    let host = bucket.host();
    good(&host, &["init"]);
    let disk = image(&host, "disk", 7, 2 << 20);
    good(&host, &["backup", "--vm", "web", &disk]);
    bucket.server.allow("ak", KeyRights { delete: false, overwrite: false, ..KeyRights::ALL });
    let backed = Run::of(command(&host, &["backup", "--vm", "web", &disk]).output().unwrap());
    assert_eq!(backed.code, Some(0), "{backed:?}");
    let before = bucket.server.objects("vms");
    for words in [
        &["forget", "--vm", "web", "--keep-last", "1"][..],
        &["delete"],
        &["prune", "--keep-last", "1"],
        &["vm", "rm", "web", "--force"],
        &["pds", "prune"],
    ] {
        let refused = bad(&host, words, 21);
        assert!(refused.contains("may not delete") && refused.lines().count() == 1, "{words:?}: {refused}");
        assert!(bucket.server.objects("vms") == before, "{words:?} changed something");
    }
    for words in [
        &["forget", "--vm", "web", "--keep-last", "1", "--dry-run"][..],
        &["snapshots"],
        &["check", "--read-data"],
        &["restore", "latest", "--vm", "web", "--target", &host.word("out")],
        &["verify", "latest", "--vm", "web"],
    ] {
        let run = Run::of(command(&host, words).output().unwrap());
        assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
    }
    // The right ends in the middle of a deletion: one sentence names the object that stays.
    bucket.server.allow("ak", KeyRights::ALL);
    good(&host, &["forget", "--vm", "web", "--keep-last", "1"]);
    let probes = AtomicUsize::new(1);
    bucket.server.set_faults(move |request| {
        let is_probe = || probes.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        match request.method == "DELETE" && !is_probe() {
            true => NetworkFault::Refuse { status: 403, code: "AccessDenied".to_owned() },
            false => NetworkFault::None,
        }
    });
    let refused = bad(&host, &["prune"], 21);
    bucket.server.clear_faults();
    assert!(refused.contains("stays in vms") && refused.lines().count() == 1, "{refused}");
    good(&host, &["prune"]);
    good(&host, &["check", "--read-data"]);
}

/// A host with a key of the role *backup* and credentials that can only add: its backups and those of its agent work
/// without a warning, and it removes nothing.
#[test]
fn a_host_that_can_only_add_backs_up() {
    let bucket = Bucket::new();
    let host = House::at(&bucket.url());
    good(&host, &["init"]);
    let key = host.word("key");
    good(&host, &["key", "add", "--role", "backup", "--out", &key]);
    let disk = image(&host, "disk", 9, 2 << 20);
    good(&host, &["backup", "--vm", "web", &disk]);
    bucket.server.allow("ak", KeyRights { delete: false, overwrite: false, ..KeyRights::ALL });
    let by_key = |words: &[&str]| {
        let mut command = command(&host, words);
        command.env_remove("COPAL_PASSWORD_FILE").args(["--key", &key]);
        command
    };
    for words in [
        &["backup", "--vm", "web", &disk][..],
        &["backup", "--vm", "web", &disk],
        &["restore", "latest", "--vm", "web", "--target", &host.word("out")],
        &["check", "--read-data"],
    ] {
        let run = Run::of(by_key(words).output().unwrap());
        assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
    }
    let before = bucket.server.objects("vms");
    for words in
        [&["forget", "--vm", "web", "--keep-last", "1"][..], &["delete"], &["vm", "rm", "web", "--force"]]
    {
        let run = Run::of(by_key(words).output().unwrap());
        assert!(run.code == Some(21) && run.sentence().contains("may not delete"), "{words:?}: {run:?}");
    }
    assert!(bucket.server.objects("vms") == before, "a refused command changed something");
    let plan = format!(r#"{{"v":1,"vms":[{{"vm":"mail","disks":{{"sda":"{disk}"}}}}]}}"#);
    fs::write(host.path("plan"), plan).unwrap();
    let (state, plan) = (host.word("state"), host.word("plan"));
    let mut agent =
        Running::of(by_key(&["agent", "--name", "h1", "--state", &state, "--plan", &plan, "--json"]));
    agent.wait_for("ready");
    let job = Run::of(by_key(&["job", "run", "--all", "--wait"]).output().unwrap());
    assert_eq!(job.code, Some(0), "{job:?}");
    agent.signal(rustix::process::Signal::TERM);
    assert_eq!(agent.end().code, Some(0));
    bucket.server.allow("ak", KeyRights::ALL);
    good(&host, &["forget", "--vm", "web", "--keep-last", "1"]);
    good(&host, &["prune"]);
    good(&host, &["check", "--read-data"]);
}

/// All files below a directory that hold one of the words.
fn holding(directory: &Path, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path, words));
        } else if let Ok(bytes) = fs::read(&path) {
            let has = |word: &&&str| bytes.windows(word.len()).any(|part| part == word.as_bytes());
            found.extend(words.iter().find(has).map(|word| format!("{} in {}", word, path.display())));
        }
    }
    found
}

/// Secret key, session token and password reach no command line, output, log, state or cache.
#[test]
fn secrets_are_shown_nowhere() {
    let bucket = Bucket::new();
    // With a password, which lies outside of the directory that is searched.
    let host = House::at(&bucket.url());
    let secrets = [SECRET, TOKEN, PASSWORD];
    let told = |mut command: Command| {
        command.env("AWS_SESSION_TOKEN", TOKEN).env("COPAL_LOG", "trace");
        command.env("HOME", host.path("home")).env("XDG_CACHE_HOME", host.path("cache"));
        command
    };
    let run = |words: &[&str], code: i32| {
        for form in [&[][..], &["--json"]] {
            let mut command = told(quick(&host, words));
            let output = command.args(form).output().unwrap();
            let text = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            let shown = secrets.iter().find(|secret| text.contains(**secret));
            assert!(shown.is_none(), "{words:?} shows {shown:?}");
            assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        }
    };
    let disk = image(&host, "disk", 8, 2 << 20);
    run(&["store", "probe"], 0);
    good(&host, &["init"]);
    run(&["backup", "--vm", "web", &disk], 0);
    run(&["snapshots"], 0);
    run(&["stats"], 0);
    run(&["check", "--read-data"], 0);
    run(&["verify", "latest", "--vm", "web"], 0);
    for (status, error, code) in [
        (403, "InvalidAccessKeyId", 12),
        (403, "SignatureDoesNotMatch", 12),
        (400, "ExpiredToken", 12),
        (403, "AccessDenied", 21),
        (500, "InternalError", 42),
        (301, "PermanentRedirect", 10),
    ] {
        bucket.server.set_faults(move |_| NetworkFault::Refuse { status, code: error.to_owned() });
        run(&["snapshots"], code);
        run(&["backup", "--vm", "web", &disk], code);
    }
    bucket.server.clear_faults();
    let plan = format!(r#"{{"v":1,"vms":[{{"vm":"mail","disks":{{"sda":"{disk}"}}}}]}}"#);
    fs::write(host.path("plan"), plan).unwrap();
    let (state, plan) = (host.word("state"), host.word("plan"));
    let words = ["agent", "--name", "h1", "--state", &state, "--plan", &plan, "--json"];
    let mut agent = Running::of(told(quick(&host, &words)));
    agent.wait_for("ready");
    let shown = fs::read(format!("/proc/{}/cmdline", agent.child.id())).unwrap();
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(!secrets.iter().any(|secret| shown.contains(secret)), "{shown}");
    run(&["job", "run", "--all", "--wait"], 0);
    agent.signal(rustix::process::Signal::TERM);
    let ended = agent.end();
    let text = format!("{}{}", String::from_utf8_lossy(&ended.stdout), ended.stderr);
    assert!(!secrets.iter().any(|secret| text.contains(secret)), "the agent's log shows a secret");
    fs::remove_file(host.path("password")).unwrap();
    assert_eq!(holding(host.path("plan").parent().unwrap(), &secrets), [] as [String; 0]);
}
