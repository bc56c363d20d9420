//! Commits on a disk that takes 120 commands a second: a loop device under a limit of the kernel's block I/O controller.
//!
//! Clouds sell such disks. The limit counts reads, writes and flushes. The store is new, not aged.

use super::store::AgedLayout;
use crate::objects::{fresh, stores::options};
use anyhow::{Context, Result};
use copal_bench_harness::{loop_device::LoopDevice, report::Report};
use copal_device::{FileOptions, open_file};
use copal_object::{Ack, MkfsOptions, ObjectId, ObjectKind, OpenOptions, Store, Txn};
use std::{
    collections::VecDeque,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const COMMANDS_A_SECOND: u64 = 120;
const STORE_BYTES: u64 = 512 << 20;
/// Time of each measurement; the burst that the controller allows at its begin is short beside it.
const WINDOW: Duration = Duration::from_secs(15);
/// The object whose pages are overwritten.
const OBJECT: ObjectId = ObjectId(1);
const OBJECT_PAGES: u64 = 4096;

/// Commits on their way, and the least gain over data apart.
const CASES: [(&str, usize, f64); 2] = [("alone", 1, 1.7), ("32 on their way", 32, 8.0)];

/// Adds the rows, or a note why this machine cannot measure them.
pub(super) fn measure(scratch: &Path, report: &mut Report) -> Result<()> {
    if let Some(reason) = LoopDevice::obstacle().or_else(LimitedGroup::obstacle) {
        report.note(format!("120 commands a second: skipped, {reason}."));
        return Ok(());
    }
    let mut apart = [0.0; CASES.len()];
    for layout in AgedLayout::ALL {
        fresh(scratch)?;
        let rates = rates_of(layout, scratch)?;
        if layout == AgedLayout::CowApart {
            apart = rates;
        }
        for (index, (case, _, gain)) in CASES.iter().enumerate() {
            let row = format!("120 commands a second, {case}: {}", layout.name());
            report.fact(&row, rates[index], "/s");
            if layout != AgedLayout::CowApart {
                report.at_least(format!("{row} : data apart"), rates[index] / apart[index], "x", *gain);
            }
        }
    }
    Ok(fs::remove_dir_all(scratch)?)
}

/// Commits a second in each case.
fn rates_of(layout: AgedLayout, scratch: &Path) -> Result<[f64; CASES.len()]> {
    let disk = LoopDevice::attach(&scratch.join("disk"), STORE_BYTES)?;
    let device = open_file(disk.path(), &FileOptions::default()).context("opening the loop device")?;
    let (backend, inline_data) = layout.store();
    Store::mkfs(&device, &MkfsOptions { backend, ..MkfsOptions::default() }).context("formatting a store")?;
    let open = OpenOptions { inline_data, ..OpenOptions::default() };
    let (store, _) = Store::open(device, &open).context("opening a store")?;
    let filled = Txn::new().create(OBJECT, options(ObjectKind::Plain, OBJECT_PAGES * 4096));
    store.commit(filled, Ack::Durable).wait()?;
    for page in (0..OBJECT_PAGES).step_by(64) {
        store.commit(Txn::new().write(OBJECT, page * 4096, vec![1; 64 * 4096]), Ack::Durable).wait()?;
    }
    store.checkpoint()?;
    let limited = LimitedGroup::enter(disk.path())?;
    let rates = CASES.map(|(_, depth, _)| rate(&store, depth));
    drop(limited);
    let [alone, together] = rates;
    Ok([alone?, together?])
}

/// Durable commits of a page a second, with `depth` on their way.
fn rate(store: &Store, depth: usize) -> Result<f64> {
    let begin = Instant::now();
    let mut on_their_way = VecDeque::new();
    let (mut started, mut ended) = (0_u64, 0_u64);
    loop {
        while on_their_way.len() < depth && begin.elapsed() < WINDOW {
            // Scattered places.
            let page = started * 1021 % OBJECT_PAGES;
            on_their_way
                .push_back(store.commit(Txn::new().write(OBJECT, page * 4096, vec![7; 4096]), Ack::Durable));
            started += 1;
        }
        let Some(commit) = on_their_way.pop_front() else { break };
        commit.wait().context("a commit")?;
        ended += 1;
    }
    Ok(ended as f64 / begin.elapsed().as_secs_f64())
}

/// This process in a control group with a limit for one device, until it is dropped.
struct LimitedGroup {
    path: PathBuf,
}

impl LimitedGroup {
    /// Reason why this machine has no limits; `None` if it has.
    fn obstacle() -> Option<String> {
        let parent = LimitedGroup::parent();
        let probe = parent.join(format!("copal-probe-{}", std::process::id()));
        let made = fs::create_dir(&probe);
        let has_limit =
            ["io.max", "blkio.throttle.write_iops_device"].iter().any(|file| probe.join(file).exists());
        let _ = fs::remove_dir(&probe);
        match made {
            Err(error) => Some(format!("no control group in {}: {error}", parent.display())),
            Ok(()) => (!has_limit).then(|| "the kernel limits no block I/O".to_owned()),
        }
    }

    fn parent() -> PathBuf {
        let first = Path::new("/sys/fs/cgroup/blkio");
        if first.exists() { first.to_owned() } else { "/sys/fs/cgroup".into() }
    }

    fn enter(device: &Path) -> Result<LimitedGroup> {
        let path = LimitedGroup::parent().join(format!("copal-bench-{}", std::process::id()));
        fs::create_dir(&path).context("making a control group")?;
        let group = LimitedGroup { path };
        let number = fs::metadata(device)?.rdev();
        let disk = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        let set = |file: &str, text: String| {
            fs::write(group.path.join(file), text)
                .with_context(|| format!("writing {file} of a control group"))
        };
        if group.path.join("io.max").exists() {
            set("io.max", format!("{disk} riops={COMMANDS_A_SECOND} wiops={COMMANDS_A_SECOND}"))?;
        } else {
            for side in ["read", "write"] {
                set(&format!("blkio.throttle.{side}_iops_device"), format!("{disk} {COMMANDS_A_SECOND}"))?;
            }
        }
        set("cgroup.procs", std::process::id().to_string())?;
        Ok(group)
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        let _ = fs::write(LimitedGroup::parent().join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(&self.path);
    }
}
