//! The project's chores: `cargo xtask CHORE`.
//!
//! Each chore is a module; this file only says what they are called.
#![expect(clippy::print_stdout, reason = "a command-line tool talks on standard output")]

mod bench;
mod callpath;
mod chaos;
mod ci;
mod cluster_sim;
mod crash;
mod demo;
mod full_disk;
mod house;
mod kill_loop;
mod layers;
mod models;
mod modules;
mod mutants;
mod slowest;
mod tidy;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};
use xtask::dataset::{self, parameters::Parameters};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's chores")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Format, lints, tidy, layers and all tests: what `make test` and CI run
    Ci,
    /// Check what keeps code and documents true
    Tidy {
        /// Record the present hash of every format source in its page, and lower the bounds of xtask/house.txt
        #[arg(long)]
        fix: bool,
        /// Print the measures of structure, lines, names and prose instead; with a path, such as
        /// crates/kv/copal-kv, each name and sentence below it that counts
        #[arg(long, conflicts_with = "fix", value_name = "PATH", num_args = 0..=1)]
        report: Option<Option<String>>,
    },
    /// Check that crates depend only on those above them
    Layers {
        /// Look at the modules inside each crate instead: which need each other in circles, and whether
        /// circles grew
        #[arg(long)]
        modules: bool,
        /// Which module of a circle names which, too
        #[arg(long, requires = "modules")]
        edges: bool,
    },
    /// Do the main job on a disk image and print what it cost: what `make run` runs
    Demo {
        /// Your own disk image instead of one made here; it is only read
        #[arg(long)]
        image: Option<PathBuf>,
    },
    /// Build the data set of disk images: KEY=VALUE words, such as DIR=/data VMS=4 DAYS=3 SIZE=1G
    ///
    /// Keys: DIR VMS DAYS SIZE ROLES SEED CLONE_RATIO PRIVATE_MB CHURN_MB DB_MB DB_PAGES_DAY SKEW
    /// PART=none|mbr|gpt FMT=raw|qcow2. Needs root and `scripts/install-deps.sh dataset`.
    #[command(verbatim_doc_comment)]
    Dataset {
        /// Parameters; the defaults are the small set of 4 VMs, 3 days and 1 GiB
        parameters: Vec<String>,
    },
    /// Enumerate crash states of the object store for longer than `make test` does
    Crash {
        /// Histories to try
        #[arg(long, default_value_t = 20_000)]
        histories: u64,
        /// Number of the first one
        #[arg(long, default_value_t = 0)]
        from: u64,
    },
    /// Search all orders of what may happen to a group of volumes on three members; prints how many states
    /// there were
    ClusterModel {
        /// Many more states, in a release build: a quarter of an hour and some GB of memory
        #[arg(long)]
        deep: bool,
    },
    /// Search all orders of what may happen to a fleet: backups, deletions, prunes, clean-ups, of hosts that
    /// die at any point
    FleetModel {
        /// Many more states, in a release build: some minutes and some GB of memory
        #[arg(long)]
        deep: bool,
    },
    /// Whole clusters in one thread, from one seed each, with faults of all kinds; every seed is the same run
    /// every time
    ClusterSim {
        /// Runs
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Kill `copal` at random moments, round after round, and look at what is left each time
    KillLoop {
        /// Commands to kill
        rounds: u64,
        /// Seed of the moments and of the disk
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// On a repository of files instead of one in a file
        #[arg(long)]
        hostfs: bool,
    },
    /// Fill the disks of a cluster of three, delete half, start it again and fill it again, with large disks
    FullDisk {
        /// Size of each disk
        #[arg(long, default_value = "256MiB")]
        limit: String,
        /// Bytes of each file
        #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(3..=4_000_000))]
        file_bytes: u64,
    },
    /// Kill, freeze, cut off and restart processes of a cluster while clients use it
    ///
    /// Three masters over a MariaDB and four data servers, each in a network namespace of its own. Where
    /// namespaces are not permitted links are not cut, and the exit code is 3. `scripts/install-deps.sh
    /// chaos` installs what it needs.
    #[command(verbatim_doc_comment)]
    ClusterChaos {
        /// How long troubles are made; healing and looking at everything comes on top
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        minutes: u64,
        /// Seed of the moments, the troubles and the load
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// In a release build
        #[arg(long)]
        release: bool,
    },
    /// Kill agents, servers and commands of a fleet while VMs are backed up, deleted, repaired and cleaned up
    FleetChaos {
        /// Processes to kill
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
        rounds: u64,
        /// Seed of the moments, the work and the images
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// In a release build
        #[arg(long)]
        release: bool,
    },
    /// Break every function of a change once with `cargo mutants`, where that is installed, and see tests
    /// fail
    Mutants {
        /// Commit that the change begins at [default: HEAD, or the one before it where all is committed]
        #[arg(long)]
        base: Option<String>,
        /// Instead: apply the patches of xtask/mutants one after the other, those whose names are given or
        /// all, and see that the test of each notices
        #[arg(long, conflicts_with = "base")]
        kept: bool,
        /// What `cargo mutants` takes; with --kept, parts of the names of patches
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Count the source files that one durable put and one get of the engine run through, with valgrind
    ///
    /// Needs `scripts/install-deps.sh callpath`.
    Callpath {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run a suite of measurements; without a name, list them
    Bench {
        /// The suite
        suite: Option<String>,
        /// First install what the suite needs and this machine has not: what `make bench` does
        #[arg(long)]
        prepare: bool,
        /// What the suite takes
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().chore) {
        Ok(code) => code,
        Err(error) => {
            println!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<ExitCode> {
    let root = root()?;
    let done = match chore {
        Chore::Ci => ci::run(&root),
        Chore::Tidy { report: Some(area), .. } => tidy::report(&root, area.as_deref()),
        Chore::Tidy { fix, .. } => tidy::run(&root, fix),
        Chore::Layers { modules: true, edges } => modules::run(&root, edges),
        Chore::Layers { .. } => layers::run(&root),
        Chore::Demo { image } => demo::run(&root, demo::named(image).as_deref()),
        Chore::Dataset { parameters } => dataset::build(&Parameters::parse(&parameters)?),
        Chore::Crash { histories, from } => crash::run(&root, histories, from),
        Chore::ClusterSim { seeds, seed } => cluster_sim::run(&root, seeds, seed),
        Chore::ClusterModel { deep } => models::run(&root, &models::CLUSTER, deep),
        Chore::FleetModel { deep } => models::run(&root, &models::FLEET, deep),
        Chore::KillLoop { rounds, seed, hostfs } => kill_loop::run(&root, rounds, seed, hostfs),
        Chore::FullDisk { limit, file_bytes } => full_disk::run(&root, &limit, file_bytes),
        Chore::ClusterChaos { minutes, seed, release } => {
            let trial = chaos::Trial { minutes, seed, release };
            return chaos::run(&root, &trial);
        }
        Chore::FleetChaos { rounds, seed, release } => chaos::run_fleet(&root, rounds, seed, release),
        Chore::Mutants { kept: true, arguments, .. } => mutants::run_kept(&root, &arguments),
        Chore::Mutants { base, arguments, .. } => mutants::run(&root, base.as_deref(), &arguments),
        Chore::Callpath { json } => callpath::run(&root, json),
        Chore::Bench { suite, prepare, arguments } => {
            bench::run(&root, suite.as_deref(), prepare, &arguments)
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// The repository: the parent of this crate's directory.
fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(manifest.parent().context("xtask lies in the repository")?.to_path_buf())
}
