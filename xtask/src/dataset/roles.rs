//! Role trees: a Debian system per role, built once by mmdebstrap and stored as a tar. The cache also holds
//! every package that a later day may install, so that the days need no network.

use super::{random::Random, system};
use crate::sparse;
use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
};

const SUITE: &str = "bookworm";

/// Packages that a later day may install; the cache holds each with its dependencies beyond the role.
const INSTALLS: [&str; 7] = ["git", "vim", "python3", "tcpdump", "sqlite3", "nginx-light", "gdb"];

fn packages(role: &str) -> Result<&'static str> {
    Ok(match role {
        "base" => "",
        "web" => ",nginx-light,curl,ca-certificates",
        "db" => ",postgresql",
        "py" => ",python3,python3-requests,python3-yaml",
        "mail" => ",exim4-daemon-light,dovecot-core",
        "build" => ",gcc,make,git,ca-certificates",
        _ => bail!("there is no role `{role}`"),
    })
}

fn cache(directory: &Path) -> PathBuf {
    directory.join("cache")
}

/// The directory of downloaded packages.
pub(super) fn archives(directory: &Path) -> PathBuf {
    cache(directory).join("archives")
}

/// The role's tree as a tar, from the cache or built now.
pub(super) fn tree(directory: &Path, role: &str) -> Result<PathBuf> {
    let tar = cache(directory).join(format!("{role}.tar"));
    if tar.exists() {
        return Ok(tar);
    }
    let archives = archives(directory);
    fs::create_dir_all(&archives).context("creating the package cache")?;
    let archive_text = system::text(&archives);
    let include = format!("--include=linux-image-cloud-amd64,openssh-server,systemd-sysv{}", packages(role)?);
    let unfinished = tar.with_extension("unfinished.tar");
    let mut arguments = vec![
        "--variant=minbase".to_owned(),
        "--skip=essential/unlink".to_owned(),
        include,
        r#"--setup-hook=mkdir -p "$1/var/cache/apt/archives""#.to_owned(),
        format!("--setup-hook=sync-in {archive_text} /var/cache/apt/archives"),
    ];
    for install in INSTALLS {
        let list = cache(directory).join(format!("{role}.{install}.debs"));
        // With an empty cache apt lists every package it would need; a second call downloads them.
        arguments.push(format!(
            r#"--customize-hook=mkdir -p "$1/tmp/none/partial" && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --yes --no-install-recommends --print-uris -o Dir::Cache::archives="$1/tmp/none" install {install} | sed -n "s/^'[^']*' \([^ ]*\) .*/\1/p" > {} && rm -r "$1/tmp/none""#,
            system::text(&list)
        ));
        arguments.push(format!(
            r#"--customize-hook=APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --yes --no-install-recommends --download-only install {install}"#
        ));
    }
    arguments.push(format!("--customize-hook=sync-out /var/cache/apt/archives {archive_text}"));
    arguments.push(SUITE.to_owned());
    arguments.push(system::text(&unfinished));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    system::run("mmdebstrap", &arguments)?;
    fs::rename(&unfinished, &tar).context("keeping the role's tree")?;
    Ok(tar)
}

/// Name of a randomly drawn install and the files of its packages that the role does not hold.
pub(super) fn draw_install(
    directory: &Path,
    role: &str,
    random: &mut Random,
) -> Result<(&'static str, Vec<String>)> {
    let first = random.below(INSTALLS.len() as u64) as usize;
    for step in 0..INSTALLS.len() {
        let install = INSTALLS[(first + step) % INSTALLS.len()];
        let list = cache(directory).join(format!("{role}.{install}.debs"));
        let names = fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
        let files: Vec<String> = names.lines().map(str::to_owned).collect();
        if !files.is_empty() {
            return Ok((install, files));
        }
    }
    bail!("role `{role}` already holds every package that a day could install")
}

/// Writes `packages.lock`: the hash of every package file in the cache.
pub(super) fn lock(directory: &Path) -> Result<()> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(archives(directory)).context("reading the package cache")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            lines.push(format!("{}  {name}\n", sparse::sha256(&path)?));
        }
    }
    lines.sort_by(|left, right| left[64..].cmp(&right[64..]));
    fs::write(directory.join("packages.lock"), lines.concat()).context("writing packages.lock")
}
