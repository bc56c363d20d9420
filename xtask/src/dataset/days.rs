//! Images of one VM: creation of day 0 and the changes of each later day.

use super::{
    content,
    parameters::{Parameters, Partition, VmPlan},
    random::Random,
    roles,
    system::{self, Mounted},
};
use crate::sparse;
use anyhow::{Context, Result};
use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
};

const PARTITION_START_BYTES: u64 = 1 << 20;
/// Space for the backup copy of a GPT.
const PARTITION_END_BYTES: u64 = 1 << 20;
const DATABASE: &str = "var/lib/app/data.db";

fn offset(partition: Partition) -> u64 {
    if partition == Partition::None { 0 } else { PARTITION_START_BYTES }
}

/// Makes the image of day 0 at `image`: a copy of the role's template, or a newly built file system.
pub(super) fn first(directory: &Path, plan: &VmPlan, parameters: &Parameters, image: &Path) -> Result<()> {
    let mut random = Random::new(&[parameters.seed, 1, u64::from(plan.index)]);
    if plan.clone {
        sparse::copy(&template(directory, plan, parameters)?, image)?;
    } else {
        let mut seeds = Random::new(&[parameters.seed, 4, u64::from(plan.index)]);
        make_file_system(directory, plan, parameters, image, Some(&mut random), &mut seeds)?;
    }
    let mounted = Mounted::new(image, offset(parameters.partition))?;
    let root = mounted.path();
    fs::write(root.join("etc/hostname"), format!("{}\n", plan.name))?;
    fs::write(root.join("etc/machine-id"), format!("{:016x}{:016x}\n", random.next(), random.next()))?;
    let private = if plan.clone { plan.private_bytes } else { plan.private_bytes / 2 };
    content::write_private(&root.join("srv/data"), "day0", private, &mut random)?;
    content::append_log(&root.join("var/log/syslog"), 4 << 20, 0, &mut random)?;
    fs::create_dir_all(root.join("var/lib/app"))?;
    content::write_database(&root.join(DATABASE), parameters.database_bytes, &mut random)?;
    mounted.close()
}

/// First image of all clones of a role and size; built once.
fn template(directory: &Path, plan: &VmPlan, parameters: &Parameters) -> Result<PathBuf> {
    let name =
        format!("{}-{}-{:?}-{}.raw", plan.role, plan.size_bytes, parameters.partition, parameters.seed);
    let path = directory.join("cache").join(name);
    if !path.exists() {
        let role = plan.role.bytes().fold(0, |sum, byte| sum * 31 + u64::from(byte));
        let unfinished = path.with_extension("unfinished");
        // Remove the remains of an interrupted build.
        let _ = fs::remove_file(&unfinished);
        let mut seeds = Random::new(&[parameters.seed, 3, role]);
        make_file_system(directory, plan, parameters, &unfinished, None, &mut seeds)?;
        fs::rename(&unfinished, &path).context("keeping a template")?;
    }
    Ok(path)
}

/// Builds an ext4 of the role's tree, behind a partition table if the plan has one. With `private`, half of
/// the VM's own files go into the tree first, so that all later blocks lie at other offsets than in the
/// template.
fn make_file_system(
    directory: &Path,
    plan: &VmPlan,
    parameters: &Parameters,
    image: &Path,
    private: Option<&mut Random>,
    seeds: &mut Random,
) -> Result<()> {
    let tree = tempfile::tempdir_in(directory).context("making room for a tree")?;
    fill(tree.path(), directory, plan, private)?;
    let file = File::create_new(image).with_context(|| format!("creating {}", image.display()))?;
    file.set_len(plan.size_bytes).context("setting the size of a disk")?;
    let mut room = plan.size_bytes;
    if parameters.partition != Partition::None {
        room -= PARTITION_START_BYTES + PARTITION_END_BYTES;
        let script = tree.path().with_extension("sfdisk");
        make_partition(image, parameters.partition, room, &script)?;
    }
    let extended = format!(
        "hash_seed={},lazy_itable_init=0,lazy_journal_init=0,offset={}",
        seeds.uuid(),
        offset(parameters.partition)
    );
    let uuid = seeds.uuid();
    let blocks = (room / 4096).to_string();
    let (tree, image) = (system::text(tree.path()), system::text(image));
    let with = ["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-L", "root"];
    let of = ["-U", &uuid, "-E", &extended, "-d", &tree, &image, &blocks];
    system::run("mke2fs", &[&with[..], &of].concat())
}

/// The role's tree; with `private`, also half of the VM's own files.
fn fill(tree: &Path, directory: &Path, plan: &VmPlan, private: Option<&mut Random>) -> Result<()> {
    system::run(
        "tar",
        &["-C", &system::text(tree), "-xf", &system::text(&roles::tree(directory, &plan.role)?)],
    )?;
    if let Some(random) = private {
        let places = ["etc/local", "opt/local", "usr/lib/local", "usr/local/share", "var/lib/local"];
        for place in places {
            let bytes = plan.private_bytes / 2 / places.len() as u64;
            content::write_private(&tree.join(place), &plan.name, bytes, random)?;
        }
    }
    Ok(())
}

/// Writes a table of the wanted kind with one partition of `bytes`, through the temporary file `script`.
fn make_partition(image: &Path, table: Partition, bytes: u64, script: &Path) -> Result<()> {
    let label = if table == Partition::Mbr { "dos" } else { "gpt" };
    let lines = format!("label: {label}\nstart=1MiB, size={}MiB, type=linux\n", bytes >> 20);
    fs::write(script, lines)?;
    let command = format!("sfdisk -q {} < {}", system::text(image), system::text(script));
    let result = system::run("sh", &["-c", &command]);
    fs::remove_file(script)?;
    result
}

/// Applies the changes of one day to the image, in place.
pub(super) fn next(
    directory: &Path,
    plan: &VmPlan,
    parameters: &Parameters,
    image: &Path,
    day: u32,
    random: &mut Random,
) -> Result<()> {
    let mut mounted = Mounted::new(image, offset(parameters.partition))?;
    let root = mounted.path().to_path_buf();
    delete_some(&root.join("srv/data"), parameters.churn_bytes, random)?;
    mounted.trim()?;
    install(directory, plan, &mut mounted, day, random)?;
    content::write_private(&root.join("srv/data"), &format!("day{day}"), parameters.churn_bytes, random)?;
    content::append_log(&root.join("var/log/syslog"), 2 << 20, day, random)?;
    content::append_log(&root.join(format!("var/log/{}/access.log", plan.role)), 2 << 20, day, random)?;
    content::rewrite_pages(&root.join(DATABASE), parameters.database_pages_day, day, random)?;
    mounted.trim()?;
    mounted.close()
}

/// Removes the package of the day before and installs another one, with the system's own tools.
fn install(
    directory: &Path,
    plan: &VmPlan,
    mounted: &mut Mounted,
    day: u32,
    random: &mut Random,
) -> Result<()> {
    let (name, files) = roles::draw_install(directory, &plan.role, random)?;
    // Services must not start inside the chroot.
    let policy = mounted.path().join("usr/sbin/policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
    system::run("chmod", &["755", &system::text(&policy)])?;
    mounted.bind(Path::new("/proc"), "proc")?;
    mounted.bind(&roles::archives(directory), "mnt")?;
    let record = mounted.path().join("var/lib/app/installed");
    let before = fs::read_to_string(&record).unwrap_or_default();
    if day.is_multiple_of(2) && !before.is_empty() && before != name {
        mounted.chroot(&["dpkg", "--remove", "--force-depends", &before])?;
    }
    let paths: Vec<String> = files.iter().map(|file| format!("/mnt/{file}")).collect();
    let mut command = vec!["dpkg", "--skip-same-version", "--force-confnew", "-i"];
    command.extend(paths.iter().map(String::as_str));
    // A pass leaves out packages that need an earlier one configured before they are unpacked.
    let mut passes = 1;
    while let Err(error) = mounted.chroot(&command) {
        if passes == 5 {
            return Err(error);
        }
        passes += 1;
    }
    fs::write(record, name)?;
    mounted.unbind()?;
    fs::remove_file(policy).context("removing policy-rc.d")
}

/// Deletes private files of about `bytes` in total.
fn delete_some(directory: &Path, bytes: u64, random: &mut Random) -> Result<()> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .with_context(|| format!("reading {}", directory.display()))?
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    let mut gone = 0;
    while gone < bytes && !files.is_empty() {
        let path = files.swap_remove(random.below(files.len() as u64) as usize);
        gone += fs::metadata(&path)?.len();
        fs::remove_file(&path)?;
    }
    Ok(())
}
