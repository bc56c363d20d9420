//! The order of the crates: each depends only on members above it in the root manifest.
//!
//! Also refused: an async runtime anywhere below the volume layer, found in the resolved graph, so that it
//! cannot come in through a dependency's dependency.
//! Not here: versions and licences (`deny.toml`).

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

/// Layers 0 to 2: device, objects, engine.
const SYNC_CRATES: [&str; 5] = [
    "copal-codec",
    "copal-device",
    "copal-object",
    "copal-filter",
    "copal-kv",
];
const ASYNC_RUNTIMES: [&str; 6] = ["tokio", "async-std", "smol", "hyper", "tonic", "futures-executor"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}
#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}
#[derive(Deserialize)]
struct Dependency {
    name: String,
    path: Option<String>,
}
#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}
#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

/// Prints the order and fails on the first crate that breaks it.
pub(crate) fn run(root: &Path) -> Result<()> {
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).context("reading Cargo.toml")?;
    let order = members(&manifest);
    let platform = host()?;
    let output = Command::new("cargo")
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            &platform,
        ])
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed; is Cargo.lock up to date?");
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("parsing cargo metadata")?;
    let faults = faults(&order, &directories(root, &metadata), &metadata);
    for fault in &faults {
        println!("layers: {fault}");
    }
    if !faults.is_empty() {
        bail!("layers: {} dependencies point the wrong way", faults.len());
    }
    println!(
        "layers: {} crates, each depends only on those above it",
        order.len()
    );
    Ok(())
}

/// The triple this toolchain builds for, so that crates of other systems need not be fetched.
fn host() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("running rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// The `members` list of the root manifest, in its order.
fn members(manifest: &str) -> Vec<String> {
    let Some(list) = manifest
        .split_once("members = [")
        .and_then(|(_, rest)| rest.split_once(']'))
    else {
        return Vec::new();
    };
    list.0.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Package name to its directory from the root.
fn directories(root: &Path, metadata: &Metadata) -> BTreeMap<String, String> {
    metadata
        .packages
        .iter()
        .filter_map(|package| {
            let directory = Path::new(&package.manifest_path)
                .parent()?
                .strip_prefix(root)
                .ok()?;
            Some((package.name.clone(), directory.to_string_lossy().into_owned()))
        })
        .collect()
}

fn faults(order: &[String], directories: &BTreeMap<String, String>, metadata: &Metadata) -> Vec<String> {
    let rank = |name: &str| {
        order
            .iter()
            .position(|member| Some(member) == directories.get(name))
    };
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let Some(own) = rank(&package.name) else { continue };
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            match rank(&dependency.name) {
                Some(theirs) if theirs < own => {}
                Some(_) => faults.push(format!(
                    "{} must not depend on {}: it stands below it in the manifest",
                    package.name, dependency.name
                )),
                None => faults.push(format!(
                    "{} depends on {}, which is no member",
                    package.name, dependency.name
                )),
            }
        }
    }
    let graph: BTreeMap<&str, &[String]> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), node.dependencies.as_slice()))
        .collect();
    let names: BTreeMap<&str, &str> = metadata
        .packages
        .iter()
        .map(|package| (package.id.as_str(), package.name.as_str()))
        .collect();
    for package in metadata
        .packages
        .iter()
        .filter(|p| SYNC_CRATES.contains(&p.name.as_str()))
    {
        for id in reachable(&package.id, &graph) {
            let name = names.get(id).copied().unwrap_or_default();
            if ASYNC_RUNTIMES.contains(&name) {
                faults.push(format!(
                    "{} reaches {name}: layers 0 to 2 are synchronous",
                    package.name
                ));
            }
        }
    }
    faults
}

fn reachable<'a>(start: &'a str, graph: &BTreeMap<&'a str, &'a [String]>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::from([start]);
    let mut open = vec![start];
    while let Some(id) = open.pop() {
        for next in graph.get(id).copied().unwrap_or_default() {
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(dependencies: &[(&str, &[&str])]) -> Metadata {
        Metadata {
            packages: dependencies
                .iter()
                .map(|(name, on)| Package {
                    id: (*name).to_owned(),
                    name: (*name).to_owned(),
                    manifest_path: format!("/r/crates/{name}/Cargo.toml"),
                    dependencies: on
                        .iter()
                        .map(|d| Dependency {
                            name: (*d).to_owned(),
                            path: d.starts_with("copal").then(|| format!("/r/crates/{d}")),
                        })
                        .collect(),
                })
                .collect(),
            resolve: Resolve {
                nodes: dependencies
                    .iter()
                    .map(|(name, on)| Node {
                        id: (*name).to_owned(),
                        dependencies: on.iter().map(|d| (*d).to_owned()).collect(),
                    })
                    .collect(),
            },
        }
    }

    fn faults_of(dependencies: &[(&str, &[&str])]) -> Vec<String> {
        let order = members(
            "members = [\n \"crates/copal-codec\",\n \"crates/copal-object\",\n \"crates/copal\",\n]",
        );
        assert_eq!(order.len(), 3);
        let metadata = metadata(dependencies);
        faults(&order, &directories(Path::new("/r"), &metadata), &metadata)
    }

    #[test]
    fn a_dependency_on_a_crate_above_is_fine_and_on_one_below_is_not() {
        assert!(faults_of(&[("copal-codec", &[]), ("copal-object", &["copal-codec"])]).is_empty());
        assert_eq!(
            faults_of(&[("copal-codec", &["copal-object"]), ("copal-object", &[])]).len(),
            1
        );
    }

    #[test]
    fn a_runtime_is_found_through_a_dependency_of_a_dependency() {
        let graph: &[(&str, &[&str])] = &[
            ("copal-object", &["innocent"]),
            ("innocent", &["tokio"]),
            ("tokio", &[]),
            ("copal", &["tokio"]),
        ];
        let found = faults_of(graph);
        assert_eq!(
            found.len(),
            1,
            "the binary may have it, the object layer not: {found:?}"
        );
        assert!(found[0].starts_with("copal-object reaches tokio"));
    }
}
