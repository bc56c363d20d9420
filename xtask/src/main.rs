//! Command line of the project's chores: `cargo xtask CHORE`.
//!
//! Each chore is a module; this file holds only their names and arguments.
#![expect(clippy::print_stdout, reason = "a command-line tool prints to standard output")]

mod bench;
mod callpath;
mod chaos;
mod ci;
mod cluster_sim;
mod crash;
mod demo;
mod device_constants;
mod full_disk;
mod house;
mod kill_loop;
mod layers;
mod models;
mod modules;
mod mutants;
mod orphans;
mod test_programs;
mod tidy;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use crash::CrashBackend;
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
    /// Run format, lints, tidy, layers and all tests, as `make test` and CI do
    Ci,
    /// Check the rules of sources, format pages, design pages and the papers table
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
        /// Check the modules inside each crate instead: circles of imports must not grow
        #[arg(long)]
        modules: bool,
        /// Also print the imports of each circle
        #[arg(long, requires = "modules")]
        edges: bool,
    },
    /// Back up and restore a disk image and print the cost; `make run` runs this
    Demo {
        /// Use this disk image, for reading only, instead of one made here
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
        /// Number of the first history
        #[arg(long, default_value_t = 0)]
        from: u64,
        #[arg(long, value_enum, default_value_t)]
        backend: CrashBackend,
    },
    /// Search all orders of events of a group of volumes on three replicas, and print the number of states
    ClusterModel {
        /// Search many more states, in a release build: a quarter of an hour and some GB of memory
        #[arg(long)]
        deep: bool,
    },
    /// Search all orders of events of a fleet: backups, deletions, prunes, clean-ups, and hosts that die at
    /// any point
    FleetModel {
        /// Search many more states, in a release build: some minutes and some GB of memory
        #[arg(long)]
        deep: bool,
    },
    /// Run whole clusters in one thread with faults of all kinds; a seed reproduces its run exactly
    ClusterSim {
        /// Number of runs
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        /// First seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Kill `copal` at random moments, and check the repository after each
    KillLoop {
        /// Number of commands to kill
        rounds: u64,
        /// Seed of the moments and of the disk
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Backend of the repository
        #[arg(long, default_value = "cow", value_parser = ["cow", "log", "hostfs"])]
        backend: String,
    },
    /// Fill the large disks of a cluster of three, delete half, restart it and fill it again
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
    /// namespaces are not permitted, links are not cut and the exit code is 3. `scripts/install-deps.sh
    /// chaos` installs the needed programs.
    #[command(verbatim_doc_comment)]
    ClusterChaos {
        /// Minutes of faults; recovery and the final checks take more time
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        minutes: u64,
        /// Seed of the moments, the faults and the load
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Use a release build instead of the profile demo
        #[arg(long)]
        release: bool,
    },
    /// Kill agents, servers and commands of a fleet while VMs are backed up, deleted, repaired and cleaned up
    FleetChaos {
        /// Store of the repository
        #[arg(long, value_enum, default_value_t = chaos::FleetStore::Cluster)]
        store: chaos::FleetStore,
        /// Number of processes to kill
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
        rounds: u64,
        /// Seed of the moments, the work and the images
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Use a release build instead of the profile demo
        #[arg(long)]
        release: bool,
    },
    /// Mutate every changed function once with `cargo mutants`, if installed, and check that tests fail
    Mutants {
        /// Commit that the change begins at [default: HEAD, or its parent if everything is committed]
        #[arg(long)]
        base: Option<String>,
        /// Instead: apply the patches of xtask/mutants, all or those named, one after the other, and check
        /// that the test of each fails
        #[arg(long, conflicts_with = "base")]
        kept: bool,
        /// Arguments of `cargo mutants`; with --kept, parts of the names of patches
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
    /// Run a suite of measurements; without a name, list the suites
    Bench {
        /// Name of the suite
        suite: Option<String>,
        /// First install the missing programs and data of the suite, as `make bench` does
        #[arg(long)]
        prepare: bool,
        /// Arguments of the suite
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
        Chore::Crash { histories, from, backend } => crash::run(&root, backend, histories, from),
        Chore::ClusterSim { seeds, seed } => cluster_sim::run(&root, seeds, seed),
        Chore::ClusterModel { deep } => models::run(&root, &models::CLUSTER, deep),
        Chore::FleetModel { deep } => models::run(&root, &models::FLEET, deep),
        Chore::KillLoop { rounds, seed, backend } => kill_loop::run(&root, rounds, seed, &backend),
        Chore::FullDisk { limit, file_bytes } => full_disk::run(&root, &limit, file_bytes),
        Chore::ClusterChaos { minutes, seed, release } => {
            let trial = chaos::Trial { minutes, seed, release };
            return chaos::run(&root, &trial);
        }
        Chore::FleetChaos { store, rounds, seed, release } => {
            chaos::run_fleet(&root, store, rounds, seed, release)
        }
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
