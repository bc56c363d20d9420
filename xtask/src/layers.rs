//! Checks the order of the crates and of the layers.
//!
//! - A crate depends only on members above it in the root manifest.
//! - It depends only on its own layer and the next one below, except for the skips listed here with their
//!   reason.
//! - It lies in the folder of its layer, `crates/LAYER/copal-*`.
//! - Product code does not use the testkit: it stands under `[dev-dependencies]` only.
//! - Product code does not contain the emulated disks: their feature is enabled under `[dev-dependencies]` only, by
//!   simulators and by this crate.
//! - No crate above the object store has a constant of a device (`device_constants`).
//! - No async runtime below the volume layer. The resolved graph is searched, so that none enters through a
//!   dependency of a dependency.
//!
//! Not here: versions and licences (`deny.toml`).

use crate::device_constants;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

/// Layers 0 to 2: device, objects, engine.
const SYNC_CRATES: [&str; 5] = ["copal-codec", "copal-device", "copal-object", "copal-filter", "copal-kv"];
/// Layers from the bottom up, by the names of their folders. copal-codec lies below all of them, so using it
/// skips no layer.
const LAYERS: [(&str, &[&str]); 6] = [
    ("device", &["copal-device"]),
    ("objects", &["copal-object"]),
    ("kv", &["copal-filter", "copal-kv"]),
    (
        "volumes",
        &[
            "copal-volume",
            "copal-remote",
            "copal-proto",
            "copal-data",
            "copal-node",
            "copal-master",
            "copal-client",
            "copal-server",
        ],
    ),
    (
        "backup",
        &[
            "copal-chunk",
            "copal-nbd",
            "copal-disk",
            "copal-backup",
            "copal-live",
            "copal-agent",
            "copal-export",
        ],
    ),
    ("app", &["copal"]),
];
/// Crates that every layer may use; their folder is that of the lowest layer.
const BELOW_ALL: [&str; 2] = ["copal-codec", TESTKIT];
/// Allowed dependencies past the layer below: crate, dependency, reason.
const SKIPS: [(&str, &str, &str); 15] = [
    ("copal-kv", "copal-device", "classes of reads, completions, page buffers"),
    ("copal-data", "copal-object", "opens objects and engine together; ids and classes of reads"),
    ("copal-node", "copal-device", "opens the file or device of a store"),
    ("copal-node", "copal-object", "opens objects below the engine"),
    ("copal-backup", "copal-kv", "the chunk index is a keyspace beside the volumes"),
    ("copal", "copal-device", "names of file systems and devices in messages"),
    ("copal", "copal-object", "checks and repairs object stores; reason of a failed opening"),
    ("copal", "copal-volume", "options and errors of the store it opens"),
    ("copal", "copal-node", "finds, makes, opens and closes stores"),
    ("copal", "copal-client", "talks to a cluster"),
    ("copal", "copal-remote", "opens and probes an object store"),
    ("copal", "copal-master", "opens the database of a master"),
    ("copal", "copal-server", "runs masters and data servers"),
    ("copal", "copal-data", "checks the store of volumes, copies readable data"),
    ("copal", "copal-kv", "shows, checks and repairs the engine's tables"),
];
/// Helpers of tests; no product code uses it.
const TESTKIT: &str = "copal-testkit";
/// Feature of copal-device with models of disks; no product code enables it.
const EMULATED: (&str, &str) = ("copal-device", "emulated");
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
    /// Features of the package, each with the features that it enables.
    features: BTreeMap<String, Vec<String>>,
}
#[derive(Deserialize)]
struct Dependency {
    name: String,
    path: Option<String>,
    /// `dev` or `build`; none for normal dependencies.
    kind: Option<String>,
    /// Features of the dependency that are enabled.
    features: Vec<String>,
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

/// Prints the order and fails if a dependency breaks it.
pub(crate) fn run(root: &Path) -> Result<()> {
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).context("reading Cargo.toml")?;
    let order = members(&manifest);
    let platform = host()?;
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &platform])
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed; is Cargo.lock up to date?");
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("parsing cargo metadata")?;
    let mut faults = faults(&order, &directories(root, &metadata), &metadata);
    let above: Vec<&str> = LAYERS[2..].iter().map(|(folder, _)| *folder).collect();
    faults.extend(device_constants::faults(root, &above)?);
    for fault in &faults {
        println!("layers: {fault}");
    }
    if !faults.is_empty() {
        bail!("layers: {} findings", faults.len());
    }
    for (from, to, why) in SKIPS {
        println!("layers: {from} reaches past its neighbour to {to}: {why}");
    }
    println!(
        "layers: {} crates, each depends only on crates above it; {} allowed skips",
        order.len(),
        SKIPS.len()
    );
    Ok(())
}

/// Target triple of this toolchain, so that crates of other systems need not be fetched.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("running rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// The `members` list of the root manifest, in its order.
fn members(manifest: &str) -> Vec<String> {
    let Some(list) = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')) else {
        return Vec::new();
    };
    list.0.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Directory of a crate from the root; none for a package outside of the layers.
pub(crate) fn directory(name: &str) -> Option<String> {
    let layer = match LAYERS.iter().find(|(_, crates)| crates.contains(&name)) {
        Some((layer, _)) => layer,
        None if BELOW_ALL.contains(&name) => LAYERS[0].0,
        None => return None,
    };
    Some(format!("crates/{layer}/{name}"))
}

/// Package name to its directory from the root.
fn directories(root: &Path, metadata: &Metadata) -> BTreeMap<String, String> {
    metadata
        .packages
        .iter()
        .filter_map(|package| {
            let directory = Path::new(&package.manifest_path).parent()?.strip_prefix(root).ok()?;
            Some((package.name.clone(), directory.to_string_lossy().into_owned()))
        })
        .collect()
}

fn faults(order: &[String], directories: &BTreeMap<String, String>, metadata: &Metadata) -> Vec<String> {
    let rank = |name: &str| order.iter().position(|member| Some(member) == directories.get(name));
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let Some(own) = rank(&package.name) else { continue };
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            match rank(&dependency.name) {
                Some(_) if dependency.name == TESTKIT && dependency.kind.as_deref() != Some("dev") => {
                    faults.push(format!(
                        "{} may depend on {TESTKIT} under [dev-dependencies] only",
                        package.name
                    ));
                }
                Some(theirs) if theirs < own => {}
                Some(_) => faults.push(format!(
                    "{} must not depend on {}: that one stands below it in the manifest",
                    package.name, dependency.name
                )),
                None => faults
                    .push(format!("{} depends on {}, which is not a member", package.name, dependency.name)),
            }
        }
    }
    faults.extend(strays(directories));
    faults.extend(emulations(metadata));
    faults.extend(skips(metadata));
    let graph: BTreeMap<&str, &[String]> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node.dependencies.as_slice())).collect();
    let names: BTreeMap<&str, &str> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package.name.as_str())).collect();
    for package in metadata.packages.iter().filter(|p| SYNC_CRATES.contains(&p.name.as_str())) {
        for id in reachable(&package.id, &graph) {
            let name = names.get(id).copied().unwrap_or_default();
            if ASYNC_RUNTIMES.contains(&name) {
                faults.push(format!("{} reaches {name}: layers 0 to 2 are synchronous", package.name));
            }
        }
    }
    faults
}

/// Crates of a layer that enable the emulated disks outside of their tests, or can be told to.
fn emulations(metadata: &Metadata) -> impl Iterator<Item = String> {
    let (device, feature) = EMULATED;
    let in_a_layer = move |package: &&Package| directory(&package.name).is_some() && package.name != device;
    metadata.packages.iter().filter(in_a_layer).filter_map(move |package| {
        let enables = |dependency: &Dependency| {
            dependency.name == device
                && dependency.kind.as_deref() != Some("dev")
                && dependency.features.iter().any(|enabled| enabled == feature)
        };
        let names = |enabled: &String| {
            enabled
                .split_once('/')
                .is_some_and(|(of, it)| of.trim_end_matches('?') == device && it == feature)
        };
        let found =
            package.dependencies.iter().any(enables) || package.features.values().flatten().any(names);
        found.then(|| {
            format!("{} may enable {feature} of {device} under [dev-dependencies] only", package.name)
        })
    })
}

/// Crates outside the folder of their layer.
fn strays(directories: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    directories.iter().filter_map(|(name, is)| {
        let right = directory(name)?;
        (*is != right).then(|| format!("{name} stands in {is}: its place is {right}"))
    })
}

/// Dependencies past the layer below that are not allowed, and allowed skips that no longer exist.
fn skips(metadata: &Metadata) -> Vec<String> {
    let layer = |name: &str| LAYERS.iter().position(|(_, crates)| crates.contains(&name));
    let mut found = BTreeSet::new();
    for package in &metadata.packages {
        for dependency in &package.dependencies {
            let Some((above, below)) = layer(&package.name).zip(layer(&dependency.name)) else {
                continue;
            };
            if dependency.path.is_some() && dependency.kind.is_none() && above > below + 1 {
                found.insert((package.name.as_str(), dependency.name.as_str()));
            }
        }
    }
    let is_there = |name: &str| metadata.packages.iter().any(|package| package.name == name);
    let allowed = SKIPS.iter().map(|(from, to, _)| (*from, *to));
    let allowed: BTreeSet<(&str, &str)> =
        allowed.filter(|(from, to)| is_there(from) && is_there(to)).collect();
    let new = found
        .difference(&allowed)
        .map(|(from, to)| format!("{from} must not reach past its neighbour to {to}"));
    let gone = allowed.difference(&found);
    let gone =
        gone.map(|(from, to)| format!("{from} no longer depends on {to}: remove it from the list of skips"));
    new.chain(gone).collect()
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
                    manifest_path: directory(name)
                        .map_or_else(|| format!("/r/{name}/Cargo.toml"), |at| format!("/r/{at}/Cargo.toml")),
                    dependencies: on
                        .iter()
                        .map(|d| Dependency {
                            name: (*d).to_owned(),
                            path: d.starts_with("copal").then(|| format!("/r/crates/{d}")),
                            kind: None,
                            features: Vec::new(),
                        })
                        .collect(),
                    features: BTreeMap::new(),
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
            "members = [\n \"crates/device/copal-codec\",\n \"crates/objects/copal-object\",\n \"crates/app/copal\",\n]",
        );
        assert_eq!(order.len(), 3);
        let metadata = metadata(dependencies);
        faults(&order, &directories(Path::new("/r"), &metadata), &metadata)
    }

    #[test]
    fn a_dependency_on_a_crate_above_is_fine_and_on_one_below_is_not() {
        assert!(faults_of(&[("copal-codec", &[]), ("copal-object", &["copal-codec"])]).is_empty());
        assert_eq!(faults_of(&[("copal-codec", &["copal-object"]), ("copal-object", &[])]).len(), 1);
    }

    #[test]
    fn a_crate_outside_the_folder_of_its_layer_is_found() {
        let directories = |at: &str| BTreeMap::from([("copal-kv".to_owned(), at.to_owned())]);
        assert_eq!(strays(&directories("crates/kv/copal-kv")).count(), 0);
        let told: Vec<String> = strays(&directories("crates/objects/copal-kv")).collect();
        assert_eq!(told, ["copal-kv stands in crates/objects/copal-kv: its place is crates/kv/copal-kv"]);
    }

    #[test]
    fn the_testkit_is_for_tests_only() {
        let order =
            members("members = [\n \"crates/device/copal-testkit\",\n \"crates/device/copal-codec\",\n]");
        let mut metadata = metadata(&[(TESTKIT, &[]), ("copal-codec", &[TESTKIT])]);
        let directories = directories(Path::new("/r"), &metadata);
        assert_eq!(
            faults(&order, &directories, &metadata),
            ["copal-codec may depend on copal-testkit under [dev-dependencies] only"]
        );
        metadata.packages[1].dependencies[0].kind = Some("dev".to_owned());
        assert!(faults(&order, &directories, &metadata).is_empty());
    }

    #[test]
    fn the_emulated_disks_are_for_tests_and_simulators_only() {
        let mut metadata = metadata(&[("copal-object", &["copal-device"]), ("copal-sim", &["copal-device"])]);
        metadata.packages[1].dependencies[0].features = vec![EMULATED.1.to_owned()];
        assert_eq!(emulations(&metadata).count(), 0, "a simulator may");
        metadata.packages[0].dependencies[0].features = vec![EMULATED.1.to_owned()];
        let fault = "copal-object may enable emulated of copal-device under [dev-dependencies] only";
        assert_eq!(emulations(&metadata).collect::<Vec<_>>(), [fault]);
        metadata.packages[0].dependencies[0].kind = Some("dev".to_owned());
        assert_eq!(emulations(&metadata).count(), 0);
        let enables = vec!["copal-device/emulated".to_owned()];
        metadata.packages[0].features.insert("models".to_owned(), enables);
        assert_eq!(emulations(&metadata).collect::<Vec<_>>(), [fault], "not by a feature of its own either");
    }

    #[test]
    fn a_runtime_is_found_through_a_dependency_of_a_dependency() {
        let graph: &[(&str, &[&str])] = &[
            ("copal-object", &["innocent"]),
            ("innocent", &["tokio"]),
            ("tokio", &[]),
            ("copal", &["tokio", "copal-object"]),
        ];
        let found = faults_of(graph);
        assert_eq!(found.len(), 1, "the binary may have it, the object layer not: {found:?}");
        assert!(found[0].starts_with("copal-object reaches tokio"));
    }

    #[test]
    fn a_skip_that_is_not_listed_and_a_listed_skip_without_dependency_are_refused() {
        let skips_of = |on: &[&str]| skips(&metadata(&[("copal-data", on), ("copal-object", &[])]));
        assert!(skips_of(&["copal-object", "copal-kv"]).is_empty());
        let faults = skips_of(&["copal-device"]);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].ends_with("past its neighbour to copal-device"), "{faults:?}");
        assert!(faults[1].contains("no longer depends"), "{faults:?}");
    }
}
