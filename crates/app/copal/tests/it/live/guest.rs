//! A guest under TCG that writes numbered blocks all the time: a kernel, and busybox in an initial file
//! system.
//!
//! `COPAL_TEST_KERNEL` names the directory of the unpacked `linux-image-cloud-amd64`; the default is `/`.

use super::{daemon, *};
use crate::qemu::tool;
use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

const BOTH: [&str; 2] = ["sda=vm0", "sdb=vm1"];
const BLOCKS: u64 = 32;
const BLOCK_BYTES: usize = 4096;
const MODULES: [&str; 6] =
    ["virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"];
/// The first commands of both guests.
const BOOT: &str = "#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for m in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do /bin/busybox insmod /$m.ko; done
while [ ! -b /dev/vdb ]; do /bin/busybox sleep 0.1; done
n=0
";
/// Writes numbered blocks.
const BLOCK_WRITER: &str = "
while :; do
  /bin/busybox printf '%4096d' $n > /block
  for d in vda vdb; do /bin/busybox dd if=/block of=/dev/$d bs=4096 seek=$((n % 32)) conv=notrunc,fsync 2>/dev/null; done
  n=$((n + 1))
  if [ $n = 40 ]; then echo it writes > /dev/ttyS0; fi
done
";
/// Creates files of one size, deletes the oldest, and trims. A file gets its name when its content is on the
/// disk.
const FILE_WRITER: &str = "
/bin/busybox mount -t ext4 -o discard /dev/vda /mnt
while :; do
  /bin/busybox printf '%131072d' $n > /mnt/new
  /bin/busybox sync
  /bin/busybox mv /mnt/new /mnt/f$n
  if [ $n -ge 8 ]; then /bin/busybox rm /mnt/f$((n - 8)); fi
  /bin/busybox sync
  if [ $((n % 4)) = 0 ]; then /bin/busybox fstrim /mnt || echo no trims > /dev/ttyS0; fi
  n=$((n + 1))
  if [ $n = 12 ]; then echo it writes > /dev/ttyS0; fi
done
";
/// Size of such a file.
const FILE_BYTES: usize = 128 << 10;

/// Programs and files that the test needs on this machine.
struct Parts {
    kernel: PathBuf,
    modules: Vec<(String, Vec<u8>)>,
    busybox: Vec<u8>,
}

fn below(directory: &Path, found: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => below(&path, found),
            _ => found(&path),
        }
    }
}

#[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
fn parts() -> Option<Parts> {
    let root = PathBuf::from(std::env::var_os("COPAL_TEST_KERNEL").unwrap_or("/".into()));
    let mut kernel = None;
    below(&root.join("boot"), &mut |path| {
        let name = path.file_name().unwrap().to_string_lossy();
        if name.starts_with("vmlinuz-") && name.ends_with("-cloud-amd64") {
            kernel = Some(path.to_owned());
        }
    });
    let version = kernel
        .as_ref()
        .map(|kernel| kernel.file_name().unwrap().to_string_lossy()["vmlinuz-".len()..].to_owned());
    let mut modules = Vec::new();
    if let Some(version) = version {
        below(&root.join("lib/modules").join(version), &mut |path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if MODULES.iter().any(|module| name == format!("{module}.ko")) {
                modules.push((name, std::fs::read(path).unwrap()));
            }
        });
    }
    let has_qemu = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    match (kernel, std::fs::read("/bin/busybox")) {
        (Some(kernel), Ok(busybox)) if has_qemu && modules.len() == MODULES.len() => {
            Some(Parts { kernel, modules, busybox })
        }
        _ => {
            let missing = "qemu-system-x86_64, busybox-static or a cloud kernel is missing: apt install qemu-system-x86 busybox-static \
                           linux-image-cloud-amd64 (or let scripts/guest-kernel.sh unpack the last one and set COPAL_TEST_KERNEL)";
            assert!(std::env::var_os("COPAL_TEST_REQUIRE_GUEST").is_none(), "{missing}");
            eprintln!("SKIPPED: {missing}");
            None
        }
    }
}

/// An archive of the kernel's kind (cpio, newc): names, modes, contents.
fn archive(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, (name, mode, content)) in files.iter().chain(&[("TRAILER!!!", 0, &b""[..])]).enumerate() {
        let fields = [
            number as u32 + 1,
            *mode,
            0,
            0,
            1,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        bytes.extend_from_slice(b"070701");
        fields.iter().for_each(|field| bytes.extend(format!("{field:08x}").bytes()));
        bytes.extend(name.bytes().chain([0]));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

struct Guest {
    dir: PathBuf,
    kernel: PathBuf,
    child: Child,
}

impl Guest {
    /// A guest that runs `program`, with two disks of these sizes in MiB.
    fn start(house: &House, parts: &Parts, program: &str, sizes_mib: [u64; 2]) -> Guest {
        let dir = house.path("vm");
        std::fs::create_dir(&dir).unwrap();
        let directories = ["bin", "dev", "mnt"].map(|name| (name, 0o040_755, &b""[..]));
        let mut files: Vec<(&str, u32, &[u8])> = directories.to_vec();
        files.push(("bin/busybox", 0o100_755, &parts.busybox));
        let init = format!("{BOOT}{program}");
        files.push(("init", 0o100_755, init.as_bytes()));
        files.extend(parts.modules.iter().map(|(name, bytes)| (name.as_str(), 0o100_644, &bytes[..])));
        std::fs::write(dir.join("initrd"), archive(&files)).unwrap();
        for (disk, size) in sizes_mib.iter().enumerate() {
            let (image, raw) = (dir.join(format!("vm{disk}.qcow2")), dir.join("raw"));
            File::create(&raw).unwrap().set_len(size * MIB).unwrap();
            if disk == 0 && program == FILE_WRITER {
                tool("mke2fs", &["-q", "-F", "-t", "ext4", raw.to_str().unwrap()]);
            }
            let convert = ["convert", "-f", "raw", "-O", "qcow2"];
            let names = [raw.to_str().unwrap(), image.to_str().unwrap()];
            tool("qemu-img", &[&convert[..], &names].concat());
        }
        let kernel = parts.kernel.clone();
        let child = spawn(&dir, &kernel);
        Guest { dir, kernel, child }
    }

    fn wait_until_it_writes(&self) {
        let console = || std::fs::read(self.dir.join("console")).unwrap_or_default();
        wait_until("the guest", || String::from_utf8_lossy(&console()).contains("it writes"));
    }

    /// Both disks, in this order of their nodes.
    fn words(&self, nodes: [&str; 2]) -> Vec<String> {
        let (qmp, dir) = (self.dir.join("qmp.sock"), self.dir.to_str().unwrap());
        let words =
            ["backup", "--vm", "db1", "--qmp", qmp.to_str().unwrap(), "--node", nodes[0], "--node", nodes[1]];
        let fleece = ["--fleece-dir", dir, "--fleece-limit", "50%"];
        words.iter().chain(&fleece).map(|word| (*word).to_owned()).collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first disk is attached to its device directly, the second one below a raw node: both paths of a
/// guest's writes.
fn spawn(dir: &Path, kernel: &Path) -> Child {
    let mut command = Command::new("qemu-system-x86_64");
    command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null());
    command.args(["-accel", "tcg", "-m", "128", "-display", "none", "-nodefaults", "-no-reboot"]);
    command.args(["-serial", "file:console", "-qmp", "unix:qmp.sock,server=on,wait=off"]);
    command.arg("-kernel").arg(kernel);
    command.args(["-initrd", "initrd", "-append", "console=ttyS0 quiet panic=-1"]);
    for disk in 0..2 {
        let file = format!("file.driver=throttle,file.throttle-group=limit{disk},file.discard=unmap");
        let node = format!(
            "driver=qcow2,node-name=vm{disk},discard=unmap,{file},file.file.driver=file,file.file.filename=vm{disk}.qcow2,\
             file.file.discard=unmap"
        );
        command.args(["-object", &format!("throttle-group,id=limit{disk}")]);
        command.args(["-blockdev", &node]);
    }
    command.args(["-blockdev", "driver=raw,node-name=top1,file=vm1"]);
    command.args([
        "-device",
        "virtio-blk-pci,drive=vm0,id=vd0",
        "-device",
        "virtio-blk-pci,drive=top1,id=vd1",
    ]);
    command.spawn().unwrap()
}

/// The number of the last write, if the disk is that of a single moment: its blocks have consecutive numbers,
/// each in its place.
fn moment_of(disk: &[u8]) -> Option<u64> {
    let blocks = disk.chunks(BLOCK_BYTES).take(BLOCKS as usize);
    let numbers: Option<Vec<u64>> =
        blocks.map(|block| std::str::from_utf8(block).ok()?.trim().parse().ok()).collect();
    let numbers = numbers?;
    let newest = *numbers.iter().max()?;
    let is_right =
        |(place, number): (usize, &u64)| number % BLOCKS == place as u64 && newest - number < BLOCKS;
    numbers.iter().enumerate().all(is_right).then_some(newest)
}

/// The numbers of the files in a file system. Panics if the file system or a file is in a state that the
/// guest never had.
fn files_of(image: &Path, into: &Path) -> BTreeSet<u64> {
    // The journal repairs the effects of a power cut; further damage gives an exit code of 4 or more.
    let checked = Command::new("e2fsck").args(["-f", "-p"]).arg(image).output().unwrap();
    assert!(matches!(checked.status.code(), Some(0 | 1)), "{checked:?}");
    std::fs::create_dir(into).unwrap();
    let dump = format!("rdump / {}", into.to_str().unwrap());
    tool("debugfs", &["-R", &dump, image.to_str().unwrap()]);
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(into).unwrap() {
        let (name, content) = match entry.unwrap() {
            directory if directory.path().is_dir() => continue,
            file => (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap()),
        };
        let Some(number) = name.strip_prefix('f') else {
            continue;
        };
        assert!(content.len() == FILE_BYTES && content.trim_ascii() == number.as_bytes(), "{name}");
        numbers.insert(number.parse().unwrap());
    }
    std::fs::remove_dir_all(into).unwrap();
    numbers
}

/// Symptom: 12 of 12 files that a guest deleted after the moment were zeros in the snapshot.
/// Cause: the blocks were trimmed, by `mount -o discard` or `fstrim`, and QEMU before 8.0 reported the holes
/// of the present disk.
/// Fix: the filter ignores trims, each read lies within one cluster there, and no holes are queried. Without
/// both rules this test fails.
#[test]
fn files_that_a_guest_deletes_and_trims_meanwhile_are_in_the_snapshot() {
    let Some(parts) = parts() else { return };
    let house = House::plain();
    let guest = Guest::start(&house, &parts, FILE_WRITER, [24, 4]);
    guest.wait_until_it_writes();
    // The disk without files is read first, slowly, while the guest continues.
    let limits =
        serde_json::json!({ "path": "limit1", "property": "limits", "value": { "bps-read": 2 * MIB } });
    daemon::execute(&guest.dir.join("qmp.sock"), "qom-set", limits);
    let mut words = guest.words(["sda=vm1", "sdb=vm0"]);
    words.extend(["--spot-check", "0%"].map(str::to_owned));
    let mut newest = 0;
    for more in ["--full", "--strict-incremental"] {
        let made = house.summary([&words[..], &[more.to_owned()]].concat());
        house.good(["restore", &id(&made), "--disk", "sdb", "--target", &house.word("out"), "--overwrite"]);
        let files = files_of(&house.path("out"), &house.path("files"));
        assert!(matches!(files.len(), 7..=9), "{files:?}");
        assert!(*files.last().unwrap() > newest, "{files:?} after {newest}");
        newest = *files.last().unwrap();
    }
    let console = std::fs::read_to_string(guest.dir.join("console")).unwrap();
    assert!(!console.contains("no trims"), "{console}");
}

#[test]
fn a_guest_that_writes_all_the_time_is_backed_up_at_moments() {
    let Some(parts) = parts() else { return };
    let house = House::plain();
    let mut guest = Guest::start(&house, &parts, BLOCK_WRITER, [64; 2]);
    guest.wait_until_it_writes();
    let mut last = 0;
    let mut backup = |words: &[String], mode: &str| {
        let made = house.summary(words);
        assert!(modes(&made).iter().all(|(found, _)| *found == mode), "{made}");
        let moments: Vec<u64> = ["sda", "sdb"]
            .iter()
            .map(|disk| {
                house.good([
                    "restore",
                    &id(&made),
                    "--disk",
                    disk,
                    "--target",
                    &house.word("out"),
                    "--overwrite",
                ]);
                moment_of(&std::fs::read(house.path("out")).unwrap())
                    .unwrap_or_else(|| panic!("{disk} is of no moment"))
            })
            .collect();
        // One moment for both: a number is on the first disk before it is on the second.
        assert!(moments[0] == moments[1] || moments[0] == moments[1] + 1, "{moments:?}");
        assert!(moments[0] > last || mode == "rescan", "{moments:?} after {last}");
        last = moments[0];
    };
    let words = guest.words(BOTH);
    backup(&words, "full");
    for _ in 0..3 {
        backup(&words, "incremental");
    }
    // The guest was killed and restarted meanwhile: its bitmaps are no longer valid.
    let under_way = Running::start(&house, &words);
    wait_until("the point in time", || {
        let mut entries = std::fs::read_dir(&guest.dir).unwrap().flatten();
        entries.any(|entry| entry.path().join("nbd.sock").exists())
    });
    guest.child.kill().unwrap();
    guest.child.wait().unwrap();
    let run = under_way.end();
    assert!(matches!(run.code, Some(0 | 3)), "{run:?}");
    std::fs::remove_file(guest.dir.join("console")).unwrap();
    guest.child = spawn(&guest.dir, &guest.kernel);
    guest.wait_until_it_writes();
    backup(&words, "rescan");
    backup(&words, "incremental");
    house.check();
}
