//! Requests and bytes of commands on an object store, counted by the server.

use crate::elsewhere::{Bucket, bad, command, good, image};
use crate::harness::{House, Run};
use copal_testkit::LoggedRequest;
use std::os::unix::fs::PermissionsExt;

/// Requests of one command.
#[derive(Debug)]
struct Counts {
    lists: usize,
    gets: usize,
    puts: usize,
    others: usize,
    sent: usize,
    received: usize,
}

impl Counts {
    fn of(requests: &[LoggedRequest]) -> Counts {
        let count = |is_meant: &dyn Fn(&LoggedRequest) -> bool| {
            requests.iter().filter(|request| is_meant(request)).count()
        };
        let is_list = |request: &LoggedRequest| request.query.contains("list-type");
        let (lists, puts) = (count(&is_list), count(&|request| request.method == "PUT"));
        let gets = count(&|request| request.method == "GET" && !is_list(request));
        Counts {
            lists,
            gets,
            puts,
            others: requests.len() - lists - puts - gets,
            sent: requests.iter().map(|request| request.bytes_in).sum(),
            received: requests.iter().map(|request| request.bytes_out).sum(),
        }
    }

    fn all(&self) -> usize {
        self.lists + self.gets + self.puts + self.others
    }
}

fn counted(bucket: &Bucket, host: &House, words: &[&str]) -> Counts {
    bucket.server.take_requests();
    good(host, words);
    Counts::of(&bucket.server.take_requests())
}

/// Figures of the targets, at a 32nd of their size; figures that grow with the disk are compared with its packs.
#[test]
fn commands_keep_to_their_requests() {
    let bucket = Bucket::new();
    let host = bucket.host();
    good(&host, &["init"]);
    let bytes = 32 << 20;
    let disk = image(&host, "disk", 5, bytes);
    let first = counted(&bucket, &host, &["backup", "--vm", "web", &disk]);
    let packs = bytes / (7 << 20) + 2;
    assert!(first.sent <= bytes * 102 / 100 + (64 << 10), "{first:?}");
    assert!(first.puts <= packs + 12 && first.all() - first.puts <= 60, "{first:?}");
    good(&host, &["backup", "--vm", "web", &disk]);
    let again = counted(&bucket, &host, &["backup", "--vm", "web", &disk]);
    assert!(again.all() <= 40 && again.sent < 1 << 20, "{again:?}");
    let listed = counted(&bucket, &host, &["snapshots"]);
    assert!(listed.all() <= 10, "{listed:?}");
    let restored =
        counted(&bucket, &host, &["restore", "latest", "--vm", "web", "--target", &host.word("out")]);
    assert!(restored.received <= bytes * 105 / 100 && restored.gets * 2 <= 3 * (bytes >> 20), "{restored:?}");
    // Another host, and one that has lost its cache, asks for each pack at most twice.
    let cold = bucket.host();
    let rebuilt = counted(&bucket, &cold, &["backup", "--vm", "web", &disk]);
    assert!(rebuilt.gets <= packs * 22 / 10 + 30, "{rebuilt:?}");
    assert!(counted(&bucket, &cold, &["backup", "--vm", "web", &disk]).all() <= 40);
}

/// Where the cache is deleted, damaged, in use, or cannot be written, commands do their work all the same.
#[test]
fn a_cache_is_never_needed_and_never_believed() {
    let bucket = Bucket::new();
    let host = bucket.host();
    good(&host, &["init"]);
    let disk = image(&host, "disk", 6, 3 << 20);
    let cache = host.path("cache");
    let with = |words: &[&str]| {
        let words = [words, &["--cache", cache.to_str().unwrap()]].concat();
        let run = Run::of(command(&host, &words).output().unwrap());
        assert_eq!(run.code, Some(0), "{words:?}: {}", run.stderr);
        run
    };
    with(&["backup", "--vm", "web", &disk]);
    let domain = std::fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    assert_eq!(domain.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let files = || {
        let mut found = Vec::new();
        let mut left = vec![domain.clone()];
        while let Some(directory) = left.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                match entry.metadata().unwrap().is_dir() {
                    true => left.push(entry.path()),
                    false => found.push(entry.path()),
                }
            }
        }
        found.retain(|path| !path.ends_with("copal-cache"));
        found
    };
    // Each file, cut and overwritten.
    for file in files() {
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, vec![0x5a; bytes.len().min(70_000) / 2]).unwrap();
    }
    with(&["backup", "--vm", "web", &disk]);
    assert!(with(&["snapshots"]).stderr.is_empty());
    // Another process has the index.
    let index = domain.join("index/store.copal");
    let lock = std::fs::File::options().read(true).write(true).open(index).unwrap();
    lock.try_lock().unwrap();
    let beside = with(&["backup", "--vm", "web", &disk]);
    assert!(beside.stderr.contains("another copal uses the index"), "{}", beside.stderr);
    drop(lock);
    std::fs::remove_dir_all(&domain).unwrap();
    with(&["backup", "--vm", "web", &disk]);
    // A directory in which nothing can be created.
    let file = host.path("file");
    std::fs::write(&file, "x").unwrap();
    let words = ["backup", "--vm", "web", &disk, "--cache", file.to_str().unwrap()];
    let without = Run::of(command(&host, &words).output().unwrap());
    assert_eq!(without.code, Some(0), "{}", without.stderr);
    assert!(without.stderr.contains("give another --cache"), "{}", without.stderr);
    assert_eq!(std::fs::read(&file).unwrap(), b"x");
    let none = Run::of(command(&host, &["snapshots", "--cache", "none"]).output().unwrap());
    assert!(none.code == Some(0) && none.stderr.is_empty(), "{}", none.stderr);
    let listed = String::from_utf8(none.stdout).unwrap();
    assert_eq!(listed.matches("web").count(), 5, "{listed}");
    good(&host, &["restore", "latest", "--vm", "web", "--target", &host.word("out")]);
    assert!(std::fs::read(host.path("out")).unwrap() == std::fs::read(host.path("disk")).unwrap());
}

/// A host checks the store before it first writes, and remembers the result.
#[test]
fn a_store_that_ignores_conditions_is_refused_at_a_hosts_first_write() {
    let bucket = Bucket::new();
    let (host, other) = (bucket.host(), bucket.host());
    good(&host, &["init"]);
    let disk = image(&host, "disk", 7, 1 << 20);
    bucket.server.ignore_put_conditions(true);
    let refused = bad(&other, &["backup", "--vm", "web", &disk], 21);
    assert!(refused.contains("If-None-Match"), "{refused}");
    good(&other, &["snapshots"]);
    bucket.server.ignore_put_conditions(false);
    good(&other, &["backup", "--vm", "web", &disk]);
    bucket.server.take_requests();
    good(&other, &["backup", "--vm", "web", &disk]);
    assert_eq!(bucket.server.count(|request| request.key.contains("/p/")), 0, "it is remembered");
}

/// A copy of a bucket below another prefix is the same repository: a host that used one does not write to the other.
#[test]
fn a_copy_of_a_repository_below_another_prefix_takes_no_backup() {
    let bucket = Bucket::new();
    let host = bucket.host();
    good(&host, &["init"]);
    let disk = image(&host, "disk", 8, 1 << 20);
    good(&host, &["backup", "--vm", "web", &disk]);
    for (key, body) in bucket.server.objects("vms") {
        bucket.server.put_object("vms", &key.replacen("office/", "copy/", 1), body);
    }
    let address = format!("s3://vms/copy?endpoint={}&region=us-east-1", bucket.server.url());
    let refused = bad(&host, &["backup", "--vm", "web", &disk, "--repo", &address], 21);
    assert!(refused.contains("hold the same repository") && refused.contains("address.json"), "{refused}");
    let listed = good(&host, &["snapshots", "--repo", &address]);
    assert!(listed.contains("web"), "a reader may use the copy: {listed}");
    good(&host, &["backup", "--vm", "web", &disk]);
}
