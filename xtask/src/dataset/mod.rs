//! Real data set: disk images of Debian machines of several roles, one image per day.
//!
//! Day 0 is built from packages. Later days change the images in place through a loop mount: package installs
//! and removals, growing logs, rewritten database pages, private files, delete and trim. Rebuilding would
//! move every block and make change tracking meaningless. After each day the builder copies the image,
//! compares it with the day before, and records its hash and true changes in `oracle.json`.
//!
//! Layout below `DIR`:
//! - `vm0/day0.raw`, `vm0/day1.raw`, ...
//! - `vm0/day1.changed.json`: Copal's form, at the 64 KiB granularity of a dirty bitmap
//! - `vm0/day1.map.json`: the form of `nbdinfo --json --map`
//! - `oracle.json`
//! - `cache/`: packages and role trees, so that a second build needs no network
//!
//! Needs root, loop devices, mmdebstrap.
//!
//! Not here: uses of the images (`bench/`).

pub mod content;
mod days;
pub mod oracle;
pub mod parameters;
pub mod random;
mod roles;
mod system;

use crate::{changes, sparse};
use anyhow::{Context, Result, bail};
use oracle::{Day, Oracle, Vm};
use parameters::Parameters;
use random::Random;
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

/// Granularity of the changed extents handed to a backup: that of QEMU's dirty bitmap.
pub const BITMAP_BYTES: u64 = 64 * 1024;
/// Granularity of the true changes: a block of the guest's file system.
pub const BLOCK_BYTES: u64 = 4096;

/// Builds the whole set; replaces an earlier build of other parameters in `DIR`.
///
/// # Errors
/// Not root, a tool is missing, the disk is full, or a step failed; the error names the step and its output.
#[expect(clippy::print_stdout, reason = "a build of minutes prints its progress")]
pub fn build(parameters: &Parameters) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("the data set is built through loop mounts and chroots; run it as root");
    }
    let started = Instant::now();
    let directory = std::path::absolute(&parameters.directory)?;
    fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
    let say = |what: String| println!("{:7.1} s  {what}", started.elapsed().as_secs_f64());

    for role in parameters.used_roles() {
        say(format!("role {role}"));
        roles::tree(&directory, role)?;
    }
    let mut unique = UniqueBlocks::default();
    let mut oracle = Oracle::new(parameters);
    for index in 0..parameters.vms {
        let vm = build_vm(parameters, &directory, index, &mut unique, &say)?;
        oracle.vms.push(vm);
    }
    oracle.unique_4k_bytes = unique.blocks.len() as u64 * BLOCK_BYTES;
    oracle.write(&directory)?;
    roles::lock(&directory)?;
    say(format!(
        "{} VMs, {} days, {:.0} MB unique at 4 KiB: {}",
        oracle.vms.len(),
        parameters.days,
        oracle.unique_4k_bytes as f64 / 1e6,
        directory.display()
    ));
    Ok(())
}

/// Builds one VM, day by day.
fn build_vm(
    parameters: &Parameters,
    directory: &Path,
    index: u32,
    unique: &mut UniqueBlocks,
    say: &dyn Fn(String),
) -> Result<Vm> {
    let plan = parameters.vm(index);
    let vm_directory = directory.join(&plan.name);
    if vm_directory.exists() {
        fs::remove_dir_all(&vm_directory).context("removing an earlier build")?;
    }
    fs::create_dir_all(&vm_directory)?;
    say(format!(
        "{}: role {}, {}, day 0",
        plan.name,
        plan.role,
        if plan.clone { "clone of a template" } else { "built alone" }
    ));
    let working = vm_directory.join("working.raw");
    days::first(directory, &plan, parameters, &working)?;
    let mut vm = Vm::new(&plan);
    let mut previous: Option<PathBuf> = None;
    for day in 0..parameters.days {
        if day > 0 {
            let mut random = Random::new(&[parameters.seed, 2, u64::from(index), u64::from(day)]);
            days::next(directory, &plan, parameters, &working, day, &mut random)?;
        }
        let image = vm_directory.join(format!("day{day}.raw"));
        sparse::copy(&working, &image)?;
        unique.add(&image)?;
        let entry = describe(directory, &image, previous.as_deref(), day)?;
        say(format!(
            "{} day {day}: {:.1} MB data, {:.1} MB dirty",
            plan.name,
            entry.data_bytes as f64 / 1e6,
            entry.dirty_bytes as f64 / 1e6
        ));
        vm.days.push(entry);
        if parameters.qcow2 {
            convert(&image)?;
        }
        previous = Some(image);
    }
    fs::remove_file(&working).context("removing the working image")?;
    Ok(vm)
}

/// Writes the image as qcow2 too.
fn convert(image: &Path) -> Result<()> {
    let (from, to) = (system::text(image), system::text(&image.with_extension("qcow2")));
    system::run("qemu-img", &["convert", "-O", "qcow2", &from, &to])
}

/// Hash, sizes and changes of one day's image; writes the changed extents beside it.
fn describe(directory: &Path, image: &Path, previous: Option<&Path>, day: u32) -> Result<Day> {
    let (file, size) = sparse::open(image)?;
    let relative = |path: &Path| system::text(path.strip_prefix(directory).unwrap_or(path));
    let mut entry = Day {
        day,
        image: relative(image),
        sha256: sparse::sha256(image)?,
        size_bytes: size,
        data_bytes: sparse::data_ranges(&file, size)?.iter().map(|range| range.end - range.start).sum(),
        true_dirty_bytes: 0,
        dirty_bytes: 0,
        zeroed_bytes: 0,
        changed_extents: None,
        nbdinfo_map: None,
    };
    if let Some(previous) = previous {
        entry.true_dirty_bytes = changes::dirty_bytes(&sparse::changes(previous, image, BLOCK_BYTES)?);
        let extents = sparse::changes(previous, image, BITMAP_BYTES)?;
        entry.dirty_bytes = changes::dirty_bytes(&extents);
        entry.zeroed_bytes = extents.iter().map(|extent| extent.length).sum::<u64>() - entry.dirty_bytes;
        let own = image.with_extension("changed.json");
        let map = image.with_extension("map.json");
        changes::write_own_form(&own, size, &extents)?;
        changes::write_nbdinfo_form(&map, size, &extents)?;
        entry.changed_extents = Some(relative(&own));
        entry.nbdinfo_map = Some(relative(&map));
    }
    Ok(entry)
}

/// Counts distinct non-zero 4 KiB blocks over all images: the storage that fixed-size blocks would need.
#[derive(Default)]
struct UniqueBlocks {
    blocks: HashSet<[u8; 16]>,
}

impl UniqueBlocks {
    fn add(&mut self, image: &Path) -> Result<()> {
        let (file, size) = sparse::open(image)?;
        sparse::for_each_window(&file, &sparse::data_ranges(&file, size)?, |_, bytes| {
            for block in bytes.chunks(BLOCK_BYTES as usize) {
                if block.iter().any(|byte| *byte != 0) {
                    let mut short = [0; 16];
                    short.copy_from_slice(&blake3::hash(block).as_bytes()[..16]);
                    self.blocks.insert(short);
                }
            }
            Ok(())
        })
    }
}
