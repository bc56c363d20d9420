//! Programs of the suite: built here, or taken from a directory of stripped binaries.

use super::Options;
use anyhow::{Context, Result, bail};
use copal_bench_harness::machine;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::copal;

const COPAL: &str = "copal";
const BENCH: &str = "copal-bench";
const ENGINE: &str = "copal-bench-kv";
const RESTIC: &str = "restic";
/// File of a bundle with the commit of its binaries.
const COMMIT: &str = "commit";

/// The measured programs, and those that load them.
pub(super) struct Programs {
    pub(super) copal: PathBuf,
    /// This suite, for its own children.
    pub(super) bench: PathBuf,
    /// Engines with their threads.
    pub(super) engine: PathBuf,
    pub(super) restic: Option<PathBuf>,
}

impl Programs {
    /// Builds those that the chosen rows need.
    pub(super) fn built(root: &Path, options: &Options) -> Result<Programs> {
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("bench/target"), PathBuf::from);
        if options.is_part_chosen("engine") {
            build_engine(root, options)?;
        }
        let peers = crate::default_below_cache(root, options.peers.as_ref(), "peers");
        Ok(Programs {
            copal: copal::build_release(root)?,
            bench: env::current_exe()?,
            engine: target.join("release").join(ENGINE),
            restic: Some(peers.join("bin").join(RESTIC)).filter(|path| path.exists()).or_else(restic_in_path),
        })
    }

    /// Those of a bundle.
    pub(super) fn bundled(directory: &Path) -> Programs {
        let restic = Some(directory.join(RESTIC)).filter(|path| path.exists());
        Programs {
            copal: directory.join(COPAL),
            bench: directory.join(BENCH),
            engine: directory.join(ENGINE),
            restic: restic.or_else(restic_in_path),
        }
    }
}

fn build_engine(root: &Path, options: &Options) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--release",
        "--locked",
        "--manifest-path",
        "bench/Cargo.toml",
        "--package",
        ENGINE,
    ]);
    if !options.without_rocksdb {
        cargo.args(["--features", "rocksdb"]);
    }
    let status = cargo.current_dir(root).status().context("starting cargo")?;
    if !status.success() {
        bail!(
            "building the engine's program failed; add --without-rocksdb on a machine without a C++ compiler"
        );
    }
    Ok(())
}

fn restic_in_path() -> Option<PathBuf> {
    let directories = env::var_os("PATH")?;
    env::split_paths(&directories).map(|directory| directory.join(RESTIC)).find(|path| path.exists())
}

/// Makes a directory that `--binaries` takes.
pub(super) fn make(root: &Path, options: &Options, directory: &Path) -> Result<()> {
    // The bundle measures any row.
    let programs = Programs::built(root, &Options { only: Vec::new(), ..options.clone() })?;
    fs::create_dir_all(directory)?;
    for (name, path) in [(COPAL, &programs.copal), (BENCH, &programs.bench), (ENGINE, &programs.engine)] {
        let mut strip = Command::new("strip");
        let status =
            strip.arg("-o").arg(directory.join(name)).arg(path).status().context("starting strip")?;
        if !status.success() {
            bail!("strip failed on {}", path.display());
        }
    }
    match &programs.restic {
        Some(restic) => {
            let to = directory.join(RESTIC);
            fs::copy(restic, &to).with_context(|| format!("copying {}", restic.display()))?;
        }
        None => println!("restic is not installed; scripts/install-peers.sh installs it"),
    }
    fs::write(directory.join(COMMIT), machine::commit(root))?;
    println!(
        "{} is ready; run `{} {} --binaries {}` where it lies",
        directory.display(),
        directory.join(BENCH).display(),
        super::SUITE,
        directory.display()
    );
    Ok(())
}

/// Commit of a bundle's binaries; empty if it names none.
pub(super) fn commit_of(directory: &Path) -> String {
    fs::read_to_string(directory.join(COMMIT)).unwrap_or_default().trim().to_owned()
}
