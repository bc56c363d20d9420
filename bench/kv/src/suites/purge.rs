//! Deleting everything below a prefix: time and I/O by amount of data, for small values and for separated
//! ones.
//!
//! T11: 10 GB within a second, with I/O proportional to the number of objects, not to the bytes. Two amounts,
//! one four times the other, distinguish the two. Each peer uses the calls that it has: RocksDB a range
//! delete, a deletion of whole files and a merge of the range; LevelDB and fjall delete key by key.

use crate::{
    peer::Peer,
    protocol::Request,
    suite_runner::{Role, Scale, SuiteRunner},
};
use anyhow::Result;
use clap::Args;
use std::{fs, path::Path};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
    /// MiB below the larger prefix
    #[arg(long, default_value_t = 256)]
    data: u64,
}

const NAMES: [&str; 4] = ["copal", "leveldb", "rocksdb", "fjall"];
const CAP: u64 = 512 << 20;

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "kv-purge", &options.scale)?;
    for name in runner.chosen(&NAMES)? {
        for value_bytes in [1008, 65_536] {
            // LevelDB writes large values through every level: its small values suffice.
            if name == "leveldb" && value_bytes > 4096 {
                continue;
            }
            let store = format!("purge-{name}");
            let role = Role {
                table_bytes: 0,
                memory_bytes: 64 << 20,
                write_buffer_bytes: 8 << 20,
                store,
                ..runner.loading_role(10.0)
            };
            let mut spec = runner.spec(name, &role)?;
            spec.data_bytes = options.data << 21;
            if spec.directory.exists() {
                fs::remove_dir_all(&spec.directory)?;
            }
            let mut peer = Peer::open(&spec, Some(CAP))?;
            let count = (options.data << 20) / (value_bytes as u64 + 16);
            let mut measured = Vec::new();
            for (prefix, count) in [(10, count / 4), (200, count)] {
                peer.ask(&Request::LoadPrefix { prefix, count, value_bytes })?;
                peer.ask(&Request::Flush)?;
                peer.ask(&Request::AwaitMerges)?;
                let purged = peer.ask(&Request::Purge { prefix })?;
                let after = peer.ask(&Request::AwaitMerges)?;
                let bytes = |outcome: &crate::peer::Outcome| {
                    (outcome.traffic.read_bytes + outcome.traffic.write_bytes) as f64
                };
                measured.push((purged.answer.seconds, bytes(&purged) + bytes(&after)));
            }
            peer.close()?;
            fs::remove_dir_all(&spec.directory)?;
            let label = format!("{name}, {value_bytes} B values");
            tell(&mut runner, &label, options.data, measured[0], measured[1]);
            if name == "copal" {
                judge(&mut runner, &label, options.data, measured[1]);
            }
        }
    }
    runner.finish()
}

/// Seconds of a purge, and bytes of I/O until its merges are done.
type Purged = (f64, f64);

fn tell(runner: &mut SuiteRunner<'_>, label: &str, data_mib: u64, small: Purged, large: Purged) {
    let data = (data_mib << 20) as f64;
    runner.report.detail(format!("{label}: purge of {} MiB", data_mib / 4), small.0 * 1e3, "ms");
    runner.report.fact(format!("{label}: purge of {data_mib} MiB"), large.0 * 1e3, "ms");
    runner.report.fact(format!("{label}: bytes of I/O / bytes purged"), large.1 / data, "");
}

/// Adds the rows with targets.
fn judge(runner: &mut SuiteRunner<'_>, label: &str, data_mib: u64, large: Purged) {
    let data = (data_mib << 20) as f64;
    runner.report.at_most(format!("T11 {label}: purge"), large.0, "s", 1.0);
    runner.report.at_most(format!("T11 {label}: bytes of I/O / bytes purged"), large.1 / data, "", 0.05);
}
