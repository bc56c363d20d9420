//! Puts and gets of 4 and 64 KiB by 1 to 64 clients; the data server has some cores, and the clients others.
//!
//! One server with one replica, so that a put costs one server's time. Its directory lies in memory where the
//! machine has such a file system: the rows measure processors. The clients have the same cores in each row.

use super::{ScaleBench, results::RowKey};
use crate::cluster::running::{Running, Setup};
use anyhow::{Context, Result};
use copal_volume::{VolumeId, VolumeOptions, VolumeStore};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::metered;

/// Row and size of a file.
pub(super) const SIZES: [(&str, usize); 2] = [("cluster-4k", 4 << 10), ("cluster-64k", 64 << 10)];
const CLIENTS: [usize; 4] = [1, 4, 16, 64];
/// A file system in memory.
const MEMORY: &str = "/dev/shm";

pub(super) fn measure(bench: &mut ScaleBench) -> Result<()> {
    let half = bench.processors.count() / 2;
    let fitting: Vec<_> = bench.cores.iter().copied().filter(|cores| *cores <= half).collect();
    for cores in bench.cores.clone() {
        let missing = missing(bench, cores);
        if missing.is_empty() {
            continue;
        }
        if !fitting.contains(&cores) {
            bench.notes.push(format!(
                "cluster rows on {cores} cores: skipped; as many are needed for the clients, and the machine \
                 lets the suite use {}.",
                bench.processors.count()
            ));
            continue;
        }
        let most = fitting.last().copied().unwrap_or(1);
        let clients = bench.processors.beyond(most);
        one_cluster(bench, cores, &clients, &missing)?;
    }
    Ok(())
}

/// Rows that are not measured yet: name, size of a file, number of clients.
fn missing(bench: &ScaleBench, cores: usize) -> Vec<(&'static str, usize, usize)> {
    let all = SIZES.into_iter().flat_map(|(row, bytes)| CLIENTS.map(|clients| (row, bytes, clients)));
    all.filter(|(row, _, clients)| {
        bench.options.is_chosen(row) && !bench.results.has(&key(row, cores, *clients))
    })
    .collect()
}

fn key(row: &str, cores: usize, clients: usize) -> RowKey {
    RowKey { clients, ..RowKey::new(row, "copal", cores) }
}

fn one_cluster(
    bench: &mut ScaleBench,
    cores: usize,
    clients_processors: &str,
    rows: &[(&'static str, usize, usize)],
) -> Result<()> {
    let directory = tempfile::tempdir_in(directory_of_servers(&bench.scratch))?;
    let setup = Setup { replicas: 1, processors: Some(bench.processors.first(cores)), ..Setup::of(1) };
    let cluster = Running::start(&bench.programs.copal, &directory.path().join("cluster"), &setup)?;
    let volumes = (0..CLIENTS[CLIENTS.len() - 1]).map(|number| {
        let made = cluster.store().create_volume("", &format!("box{number}"), &VolumeOptions::default());
        made.context("making a volume")
    });
    let volumes: Vec<String> =
        volumes.map(|vid| vid.map(|VolumeId(number)| number.to_string())).collect::<Result<_>>()?;
    for (row, bytes, clients) in rows {
        let mut command = Command::new("taskset");
        command
            .args(["-c", clients_processors])
            .arg(&bench.programs.bench)
            .arg("scale-cores-clients")
            .arg("--profile")
            .arg(directory.path().join("cluster/master/client.json"))
            .args(["--server", &cluster.server(0)?.pid().to_string()])
            .args(["--volumes", &volumes.join(",")])
            .args(["--clients", &clients.to_string(), "--bytes", &bytes.to_string()])
            .args(["--seconds", &bench.options.seconds.to_string()]);
        let run = metered::run(&mut command)?.success("the clients")?;
        let line: Value = serde_json::from_str(run.stdout.trim()).context("reading the clients' numbers")?;
        let numbers = line.as_object().into_iter().flatten();
        let values: BTreeMap<_, _> =
            numbers.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
        bench.results.add(key(row, cores, *clients), values)?;
    }
    Ok(())
}

fn directory_of_servers(scratch: &Path) -> PathBuf {
    let memory = Path::new(MEMORY);
    if memory.is_dir() { memory.to_owned() } else { scratch.to_owned() }
}
