//! Suites of measurements, run from `bench/`, a workspace of its own.
//!
//! Not here: the suites themselves (`bench/src`), so that nothing they need enters the main lock file.

use anyhow::{Context, Result, bail};
use std::{
    path::{Path, PathBuf},
    process::Command,
};
use xtask::dataset::{self, parameters::Parameters};

/// One suite by its name.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    package: Package,
}

/// Binary of the workspace that holds a suite. The key-value engines that Copal is compared with are C++ code
/// that builds for half an hour; no other suite should wait for them.
#[derive(Clone, Copy)]
enum Package {
    Bench,
    /// The binary of `Bench`, which builds that of `Kv` with RocksDB alone.
    Cores,
    Kv,
    /// The binary of `Kv` with LevelDB alone, which Debian ships as a library.
    LevelDb,
}

const fn suite(name: &'static str, about: &'static str, package: Package) -> Suite {
    Suite { name, about, package }
}

/// All suites; `docs/papers.md` may name only these.
pub(crate) const SUITES: [Suite; 64] = [
    suite(
        BACKUP_PEERS,
        "repository size, CPU, memory, restore beside restic, rustic and borg",
        Package::Bench,
    ),
    suite(
        REMOTE_S3,
        "requests, bytes and time over an object store, near and distant, beside restic",
        Package::Bench,
    ),
    suite(
        "backup-memory",
        "peak memory of backup, restore, forget and prune, with a 100 GB sparse image too",
        Package::Bench,
    ),
    suite(
        "backup-scale",
        "processor time and reads of small commands among 2,000 VMs, and 500 snapshots",
        Package::Bench,
    ),
    suite(
        SCALE_CORES,
        "backups, the engine and data servers on 1 to 16 cores, beside restic and RocksDB",
        Package::Cores,
    ),
    suite(
        "dedup-table1",
        "memory, local I/O, storage and network of a day's backup, simulated, by scheme",
        Package::Bench,
    ),
    suite("dedup-table2", "job span and time of a VM, simulated, by scheme", Package::Bench),
    suite("dedup-figure4", "job span and time of a VM by the number of rounds, simulated", Package::Bench),
    suite("dedup-stragglers", "delay that slow hosts cause to the others, simulated", Package::Bench),
    suite("dedup-table3", "time and memory of deletion, simulated, by method", Package::Bench),
    suite("dedup-100k", "100,000 VMs on 4,000 hosts, simulated", Package::Bench),
    suite("dedup-table4", "storage that leaks when snapshots are deleted by summary vectors", Package::Bench),
    suite(
        DEDUP_FLEET,
        "savings of agents on three hosts, as a share of an exact index's savings",
        Package::Bench,
    ),
    suite(NBD_SERVE, "reads of a snapshot that `copal nbd` serves, beside a restore", Package::Bench),
    suite("beanfs-fig2", "sizes of mails as drawn, beside the paper's", Package::Bench),
    suite(
        "beanfs-meta",
        "bytes and look-ups of fifty million volumes in the master's database",
        Package::Bench,
    ),
    suite("beanfs-fig7", "lost volumes, simulated, beside the paper's formula", Package::Bench),
    suite("beanfs-fig9", "time until a returned server is in sync, by the data it missed", Package::Bench),
    suite(
        "beanfs-rereplicate",
        "re-replication of a lost server, beside the speed of the disks",
        Package::Bench,
    ),
    suite("beanfs-fig11", "re-replication by number of parallel copies", Package::Bench),
    suite("beanfs-priority", "last replicas are copied first after the loss of two servers", Package::Bench),
    suite("beanfs-fig8bc", "creates by servers and by clients, with throttled disks", Package::Bench),
    suite("beanfs-fig10", "creates while two servers fail for a while", Package::Bench),
    suite("beanfs-email", "creates, reads and deletes of mails, durable on three copies", Package::Bench),
    suite(FILE_SIZES, "writes and reads by file size, beside HDFS and Garage", Package::Bench),
    suite(
        "beanfs-failover",
        "time without a leader after a loss of the leader of three masters",
        Package::Bench,
    ),
    suite("volume-list", "a list of a volume with a million files", Package::Bench),
    suite("volume-memory", "resident memory of a data server for each file", Package::Bench),
    suite("volume-restart", "restart time of a data server with millions of files", Package::Bench),
    suite("volume-powercut", "losses of simulated clusters under power cuts", Package::Bench),
    suite("rpc-gate", "processor time of a 4 KiB put over frames, beside tonic", Package::Bench),
    suite("object-commands", "device commands per durable append and per commit", Package::Bench),
    suite("object-commit", "processor time of one operation by streams and objects", Package::Bench),
    suite(
        "emulate",
        "a model of a disk behind an NBD socket, at its own speed, for any program",
        Package::Bench,
    ),
    suite("object-foreign", "`dd` on models of disks at their own speed, as block devices", Package::Bench),
    suite("disk-replay", "block traces of programs, replayed on a model of a disk", Package::Bench),
    suite(
        "object-ageing",
        "durable operations on an aged disk that turns, `log` beside `cow`",
        Package::Bench,
    ),
    suite(
        "object-crossover",
        "`log` beside `cow`, by the cost of a seek and by how full the store is",
        Package::Bench,
    ),
    suite(
        "object-reads",
        "disk commands of restore, backup, check and prune on models of disks, beside restic",
        Package::Bench,
    ),
    suite("object-open", "reads of an opening, and their time on the model of a hard disk", Package::Bench),
    suite(
        "object-powercut",
        "power cuts of a recorded run of the binary: acknowledged backups lost",
        Package::Bench,
    ),
    suite("draconis-fig1", "writes by their size, on disks and models", Package::Bench),
    suite("draconis-fig2", "random writes, rewrites and appends, on disks and models", Package::Bench),
    suite("draconis-fig3", "writes by the number on their way, on disks and models", Package::Bench),
    suite(
        "draconis-fig4",
        "deferred writes by key space, beside LevelDB; makes figures 5 and 6 too",
        Package::LevelDb,
    ),
    suite("draconis-fig5", "tables written from memory by key space, beside LevelDB", Package::LevelDb),
    suite("draconis-fig6", "compactions of deferred writes by key space, beside LevelDB", Package::LevelDb),
    suite("draconis-fig7", "durable writes beside LevelDB; makes figure 8 too", Package::LevelDb),
    suite("draconis-fig8", "compactions of durable writes, beside LevelDB", Package::LevelDb),
    suite(
        "object-scrub",
        "times of operations beside a scrub of the same store, and its pace",
        Package::Bench,
    ),
    suite("draconis-fig9", "durable append against append + fdatasync on journaled ext4", Package::Bench),
    suite("kv-filters", "filters alone: build, probe, bits per key, false positives", Package::Bench),
    suite(
        "elasticbf-table1",
        "reads per Get by filter and rule, beside LevelDB, RocksDB and fjall",
        Package::Kv,
    ),
    suite("elasticbf-fig5", "Gets per second under memory caps, beside the same engines", Package::Kv),
    suite("elasticbf-fig6", "Gets per second by filter bits per key", Package::Kv),
    suite("elasticbf-fig7", "time to load with fixed and with elastic filters", Package::Kv),
    suite("kv-memory", "memory that grows with the data, and runs under memory caps", Package::Kv),
    suite("kv-sync", "durable writes by threads", Package::Kv),
    suite("kv-ycsb", "YCSB A to F", Package::Kv),
    suite("kv-scan", "range scans", Package::Kv),
    suite("kv-purge", "deleting everything below a prefix", Package::Kv),
    suite("kv-deletes", "deleting key by key: bytes written, space given back, scans", Package::Kv),
    suite("kv-values", "large values straight into their object, or through the log", Package::Bench),
    suite("kv-load", "random load and overwrite: speed, amplification, waits", Package::Kv),
];

/// Suite that compares Copal with backup programs, on the data set.
const BACKUP_PEERS: &str = "backup-peers";

/// Suite on a growing number of cores.
const REMOTE_S3: &str = "remote-s3";
const SCALE_CORES: &str = "scale-cores";

/// Suites on images of more VMs, one day of each.
const DEDUP_FLEET: &str = "dedup-fleet";
const NBD_SERVE: &str = "nbd-serve";
const OF_A_FLEET: [&str; 4] = ["DIR=.cache/dataset-fleet", "VMS=9", "DAYS=1", "SIZE=768M"];

/// Suite that compares Copal with other stores on several servers.
const FILE_SIZES: &str = "beanfs-fig8a";

/// Builds `bench/` in release mode and runs the suite; without a name, lists the suites. With `prepare`,
/// first installs the missing programs and data of the suite.
pub(crate) fn run(root: &Path, suite: Option<&str>, prepare: bool, arguments: &[String]) -> Result<()> {
    let Some(name) = suite else {
        for suite in &SUITES {
            println!("{:18} {}", suite.name, suite.about);
        }
        return Ok(());
    };
    let Some(suite) = SUITES.iter().find(|suite| suite.name == name) else {
        bail!("there is no suite `{name}`; `cargo xtask bench` lists them");
    };
    if prepare {
        self::prepare(root, suite)?;
    }
    let missing = match suite.package {
        Package::Kv => missing_for_engines(Path::new("/")),
        Package::LevelDb => missing_header(Path::new("/")).into_iter().collect(),
        Package::Cores if builds_rocksdb(arguments) => {
            let mut missing = missing_for_engines(Path::new("/"));
            missing.retain(|name| *name != LEVELDB_HEADER);
            missing
        }
        Package::Bench | Package::Cores => Vec::new(),
    };
    if !missing.is_empty() {
        bail!(
            "this machine has no {}, which the build of the compared engines needs; `make bench SUITE={name}` \
             installs it and runs the suite",
            missing.join(", no ")
        );
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--release", "--manifest-path", "bench/Cargo.toml"]);
    match suite.package {
        Package::Bench => cargo.args(["--package", "copal-bench"]),
        Package::Cores => fast_rocksdb(&mut cargo).args(["--package", "copal-bench"]),
        Package::Kv => fast_rocksdb(&mut cargo).args(["--package", "copal-bench-kv", "--features", "peers"]),
        Package::LevelDb => cargo.args(["--package", "copal-bench-kv", "--features", "leveldb"]),
    };
    let status =
        cargo.args(["--", name]).args(arguments).current_dir(root).status().context("running cargo")?;
    if !status.success() {
        bail!("the suite `{name}` failed ({status})");
    }
    Ok(())
}

/// Whether the suite on cores builds RocksDB.
fn builds_rocksdb(arguments: &[String]) -> bool {
    !arguments.iter().any(|word| word == "--without-rocksdb" || word.starts_with("--binaries"))
}

/// RocksDB chooses its checksums and filter probes at compile time: enables its fastest ones.
fn fast_rocksdb(cargo: &mut Command) -> &mut Command {
    if std::env::var_os("CXXFLAGS").is_none() && has_avx2() {
        cargo.env("CXXFLAGS", "-march=x86-64-v3 -mpclmul");
    }
    cargo
}

/// Installs the programs that `suite` is compared with, and builds its data set if it has one.
fn prepare(root: &Path, suite: &Suite) -> Result<()> {
    match suite.package {
        Package::Kv | Package::LevelDb => script(root, &["install-peers.sh", "kv"]),
        Package::Cores => {
            script(root, &["install-peers.sh", "kv"])?;
            script(root, &["install-peers.sh", "restic"])
        }
        Package::Bench if suite.name == BACKUP_PEERS => {
            script(root, &["install-peers.sh"])?;
            images(root, &[])
        }
        Package::Bench if [DEDUP_FLEET, NBD_SERVE].contains(&suite.name) => images(root, &OF_A_FLEET),
        Package::Bench if suite.name == FILE_SIZES => script(root, &["install-peers.sh", "cluster"]),
        Package::Bench if suite.name == REMOTE_S3 => {
            script(root, &["install-clients.sh", "minio"])?;
            script(root, &["install-peers.sh", "restic"])
        }
        Package::Bench => Ok(()),
    }
}

/// Builds the data set unless it exists.
fn images(root: &Path, words: &[&str]) -> Result<()> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let parameters = Parameters::parse(&words)?;
    let directory = root.join(&parameters.directory);
    if directory.join("oracle.json").exists() {
        return Ok(());
    }
    script(root, &["install-deps.sh", "dataset"])?;
    dataset::build(&Parameters { directory, ..parameters })
}

fn script(root: &Path, words: &[&str]) -> Result<()> {
    let (name, arguments) = words.split_first().context("a script has a name")?;
    let path = root.join("scripts").join(name);
    let status = Command::new("bash")
        .arg(&path)
        .args(arguments)
        .status()
        .with_context(|| format!("running {}", path.display()))?;
    if !status.success() {
        bail!("scripts/{name} failed ({status}); its messages above name the missing package");
    }
    Ok(())
}

/// Requirements of building LevelDB, RocksDB and fjall that are missing in the file system below `root`.
fn missing_for_engines(root: &Path) -> Vec<&'static str> {
    let has_command = |name: &str| {
        let directories = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&directories).any(|directory| {
            let below: PathBuf = directory.components().skip(1).collect();
            root.join(below).join(name).exists()
        })
    };
    // bindgen searches `LIBCLANG_PATH` first, then the directories of Debian and other distributions.
    let has_libclang = std::env::var_os("LIBCLANG_PATH").is_some()
        || ["usr/lib", "usr/lib64", "usr/local/lib"]
            .into_iter()
            .any(|directory| holds_libclang(&root.join(directory), 3));
    let mut missing: Vec<_> = missing_header(root).into_iter().collect();
    if !has_command("g++") && !has_command("c++") {
        missing.push("C++ compiler");
    }
    if !has_libclang {
        missing.push("libclang");
    }
    missing
}

/// Debian's libleveldb-dev, if it is missing.
fn missing_header(root: &Path) -> Option<&'static str> {
    (!root.join("usr/include/leveldb/c.h").exists()).then_some(LEVELDB_HEADER)
}

const LEVELDB_HEADER: &str = "leveldb/c.h";

/// Whether `libclang` itself lies at most `depth` directories below `directory` (Debian: `llvm-14/lib`).
fn holds_libclang(directory: &Path, depth: u32) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Skips libclang-cpp.so, a different library.
        let version = name.strip_prefix("libclang-").and_then(|rest| rest.chars().next());
        let is_library =
            name.starts_with("libclang.so") || version.is_some_and(|digit| digit.is_ascii_digit());
        // Symbolic links are not followed: the tree may hold cycles.
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        (is_library && !is_directory)
            || (depth > 1 && is_directory && holds_libclang(&entry.path(), depth - 1))
    })
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    // Every processor with these three has the other instructions of x86-64-v3 too.
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("fma")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Symptom: on a fresh machine every `kv-*` suite and `elasticbf-table1` panicked after ten minutes of
    /// building, in a build script that missed libclang. Cause: nothing checked the build requirements of the
    /// compared engines. Fix: the suite names the missing requirements and the command that installs them.
    #[test]
    fn missing_build_requirements_are_named_before_the_build() {
        let root = tempfile::tempdir().unwrap();
        let mut missing = missing_for_engines(root.path());
        // The machine of the test may set `LIBCLANG_PATH`.
        missing.retain(|name| *name != "libclang");
        assert_eq!(missing, ["leveldb/c.h", "C++ compiler"]);

        let make = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        // Debian's clang-format installs libclang-cpp, which bindgen cannot use.
        make("usr/lib/llvm-14/lib/libclang-cpp.so.14");
        assert!(!holds_libclang(&root.path().join("usr/lib"), 3));
        make("usr/include/leveldb/c.h");
        make("usr/lib/llvm-14/lib/libclang-14.so.1");
        let directory = std::env::split_paths(&std::env::var_os("PATH").unwrap()).next().unwrap();
        let below: PathBuf = directory.components().skip(1).collect();
        make(below.join("g++").to_str().unwrap());
        assert!(holds_libclang(&root.path().join("usr/lib"), 3));
        assert_eq!(missing_for_engines(root.path()), [""; 0]);
    }
}
