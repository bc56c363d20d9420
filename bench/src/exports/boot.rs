//! Boot time of a guest on a QEMU machine, from its start to the login prompt.
//!
//! Kernel and initial file system come from `/boot` of the disk.

use anyhow::{Context, Result, bail, ensure};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Time limit of a boot.
const LONGEST: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(20);
/// Offset of the partition, if there is one.
const PARTITION_START_BYTES: u64 = 1 << 20;

/// Kernel files of a guest.
pub(super) struct System {
    kernel: PathBuf,
    initial: PathBuf,
    root: &'static str,
    console: PathBuf,
}

impl System {
    /// Extracts the kernel from a disk image.
    pub(super) fn of(image: &Path, scratch: &Path) -> Result<System> {
        for (offset, root) in [(0, "/dev/vda"), (PARTITION_START_BYTES, "/dev/vda1")] {
            let file_system = format!("{}?offset={offset}", image.display());
            let Ok(names) = debugfs(&file_system, "ls -p /boot") else {
                continue;
            };
            let named = |prefix: &str| {
                let mut names = names.split(['/', '\n']);
                names.find(|name| name.starts_with(prefix)).map(str::to_owned)
            };
            let (Some(kernel), Some(initial)) = (named("vmlinuz-"), named("initrd.img-")) else {
                continue;
            };
            let taken = [(kernel, "guest-kernel"), (initial, "guest-initrd")].map(|(name, to)| {
                let to = scratch.join(to);
                debugfs(&file_system, &format!("dump /boot/{name} {}", to.display())).map(|_| to)
            });
            let [kernel, initial] = taken;
            return Ok(System {
                kernel: kernel?,
                initial: initial?,
                root,
                console: scratch.join("guest-console"),
            });
        }
        bail!("{} has no kernel in /boot", image.display())
    }

    /// Time from the start of the machine to its first `login:`. `disk` is QEMU's option for the disk; the
    /// guest writes to it.
    #[expect(clippy::disallowed_methods, reason = "no event exists to wait for")]
    pub(super) fn boot(&self, disk: &str) -> Result<Duration> {
        let console = File::create(&self.console)?;
        let began = Instant::now();
        let machine = Command::new("qemu-system-x86_64")
            .args(["-machine", "q35,accel=tcg", "-m", "512", "-nodefaults", "-no-reboot"])
            .args(["-display", "none", "-serial", "stdio"])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initial)
            .arg("-append")
            .arg(format!("root={} rw console=ttyS0 quiet", self.root))
            .arg("-drive")
            .arg(format!("file={disk},format=raw,if=virtio"))
            .stdin(Stdio::null())
            .stdout(console)
            .spawn()
            .context("starting qemu-system-x86_64 (apt install qemu-system-x86)")?;
        let mut machine = Machine(machine);
        loop {
            if String::from_utf8_lossy(&fs::read(&self.console)?).contains("login:") {
                return Ok(began.elapsed());
            }
            if let Some(status) = machine.0.try_wait()? {
                bail!("the guest ended with {status}; see {}", self.console.display());
            }
            ensure!(
                began.elapsed() < LONGEST,
                "no login after {} s; see {}",
                LONGEST.as_secs(),
                self.console.display()
            );
            std::thread::sleep(LOOK);
        }
    }
}

/// Killed at the end of the measurement, like a power cut.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Output of a debugfs command.
fn debugfs(file_system: &str, request: &str) -> Result<String> {
    let output = Command::new("debugfs")
        .args(["-R", request, file_system])
        .output()
        .context("running debugfs (apt install e2fsprogs)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // debugfs exits with 0 even after errors, and prints its version first.
    ensure!(said.lines().count() <= 1, "debugfs {request}: {}", said.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
