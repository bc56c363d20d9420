//! Demonstration of `make run`: backup and restore of a disk image, made here or the user's own, with their
//! cost.
//!
//! Own image: back up, restore, compare; back up again unchanged. The image is opened for reading only.
//! Made image: back up, change in place, back up from the changed extents alone, back up again by reading
//! everything, restore the first and the last snapshot, compare byte for byte.
//!
//! Not here: comparisons with other programs (`cargo xtask bench backup-peers`).

mod disk;

use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::{
    changes,
    copal::{self, Copal, Done},
    dataset::BITMAP_BYTES,
    metered, sparse,
    table::{Table, megabytes},
};

/// Runs the demonstration below `target/demo-run`; `image` is the user's image, if given.
pub(crate) fn run(root: &Path, image: Option<&Path>) -> Result<()> {
    let binary = copal::build_demo(root)?;
    let scratch = root.join("target/demo-run");
    if scratch.exists() {
        fs::remove_dir_all(&scratch).context("removing the last demonstration")?;
    }
    fs::create_dir_all(&scratch)?;
    let copal = Copal::new(&binary, &scratch.join("repo"))?;
    let mut table = Table::new(&["", "logical MB", "read MB", "new MB", "stored MB", "time s", "peak MB"]);
    copal.init()?;
    match image {
        Some(image) => own_image(&copal, image, &scratch, &mut table)?,
        None => made_image(&copal, &scratch, &mut table)?,
    }
    println!("\n{table}");
    println!("Every restored disk was compared byte for byte: equal.");
    let occupied =
        metered::run(Command::new("du").args(["-s", "-B1"]).arg(copal.repository()))?.success("du")?;
    let occupied: u64 = occupied.stdout.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    println!(
        "The repository occupies {} MB, space kept ready for the next backup included.",
        megabytes(occupied)
    );
    println!("Commands to inspect the repository:");
    println!("  export COPAL_REPOSITORY={}", copal.repository().display());
    println!("  export COPAL_PASSWORD_FILE={}", copal.password_file().display());
    println!("  {} snapshots", binary.display());
    Ok(())
}

fn made_image(copal: &Copal, scratch: &Path, table: &mut Table) -> Result<()> {
    println!("Making a disk of this machine's files ...");
    let image = scratch.join("disk.raw");
    let mut disk = disk::Disk::make(&image, scratch)?;
    let size = sparse::open(&image)?.1;
    println!("  {} of {} MB data, ext4", megabytes(sparse::allocated_bytes(&image)?), megabytes(size));

    let first_day = scratch.join("disk-day0.raw");
    sparse::copy(&image, &first_day)?;
    let first = backup(copal, "demo", &image, None, "first backup, everything", table)?;

    println!("Changing it in place: files removed, files added, a log grown, database pages rewritten ...");
    disk.change()?;
    let extents = sparse::changes(&first_day, &image, BITMAP_BYTES)?;
    let extents_file = scratch.join("changed.json");
    changes::write_nbdinfo_form(&extents_file, size, &extents)?;
    println!(
        "  {} MB dirty in {} extents, found by comparing bytes",
        megabytes(changes::dirty_bytes(&extents)),
        extents.len()
    );

    let second =
        backup(copal, "demo", &image, Some(&extents_file), "next day, changed extents given", table)?;
    let third = backup(copal, "demo", &image, None, "again, without them", table)?;
    if third.number("new_bytes") != 0 {
        bail!(
            "reading everything found {} bytes that the changed extents had missed",
            third.number("new_bytes")
        );
    }
    restore(copal, &first, &first_day, scratch, "restore the first day", table)?;
    restore(copal, &second, &image, scratch, "restore the next day", table)?;
    fs::remove_file(&first_day).context("removing the copy of the first day")
}

fn own_image(copal: &Copal, image: &Path, scratch: &Path, table: &mut Table) -> Result<()> {
    let image = &fs::canonicalize(image).with_context(|| format!("there is no image {}", image.display()))?;
    let snapshot = backup(copal, "mine", image, None, "first backup, everything", table)?;
    let again = backup(copal, "mine", image, None, "again, unchanged", table)?;
    if again.number("new_bytes") != 0 {
        println!("note: the image changed between the two backups; is its VM running?");
    }
    restore(copal, &snapshot, image, scratch, "restore", table)
}

fn backup(
    copal: &Copal,
    vm: &str,
    image: &Path,
    extents: Option<&Path>,
    what: &str,
    table: &mut Table,
) -> Result<Done> {
    println!("copal backup: {what} ...");
    let done = copal.backup(vm, image, extents)?;
    table.row([
        what.to_owned(),
        megabytes(done.number("logical_bytes")),
        megabytes(done.number("read_bytes")),
        megabytes(done.number("new_bytes")),
        megabytes(done.number("stored_bytes")),
        format!("{:.2}", done.run.wall.as_secs_f64()),
        megabytes(done.run.peak_bytes),
    ]);
    Ok(done)
}

/// Restores the snapshot that `backup` made and compares it with `original`.
fn restore(
    copal: &Copal,
    backup: &Done,
    original: &Path,
    scratch: &Path,
    what: &str,
    table: &mut Table,
) -> Result<()> {
    println!("copal restore: {what} ...");
    let snapshot =
        backup.text("snapshot").or(backup.text("snapshot_id")).context("the backup named no snapshot")?;
    let target = scratch.join("restored.raw");
    let done = copal.restore(snapshot, &target)?;
    compare(original, &target)?;
    table.row([
        what.to_owned(),
        megabytes(sparse::open(&target)?.1),
        String::new(),
        String::new(),
        String::new(),
        format!("{:.2}", done.run.wall.as_secs_f64()),
        megabytes(done.run.peak_bytes),
    ]);
    fs::remove_file(&target).context("removing the restored disk")
}

fn compare(original: &Path, restored: &Path) -> Result<()> {
    let difference = if is_qcow2(original)? {
        let mut command = Command::new("qemu-img");
        command.args(["compare", "-f", "qcow2", "-F", "raw"]).args([original, restored]);
        let run = metered::run(&mut command)?;
        (run.code != 0).then(|| run.stdout.trim().to_owned())
    } else {
        sparse::first_difference(original, restored)?
    };
    match difference {
        None => Ok(()),
        Some(what) => bail!("the restored disk differs from {}: {what}", original.display()),
    }
}

fn is_qcow2(path: &Path) -> Result<bool> {
    use std::io::Read;
    let mut magic = [0; 4];
    let mut file = fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    Ok(file.read_exact(&mut magic).is_ok() && &magic == b"QFI\xfb")
}

/// The image named on the command line; an empty word means none.
pub(crate) fn named(image: Option<PathBuf>) -> Option<PathBuf> {
    image.filter(|path| !path.as_os_str().is_empty())
}
