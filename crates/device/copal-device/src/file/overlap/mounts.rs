//! File systems mounted from a block device, or from a device that lies on it.
//!
//! Source: the kernel's table `/proc/self/mountinfo`. Read-only file systems change nothing and are ignored.

use super::{DeviceListing, StorageId, device_named};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Mount point of a writable file system that lies on `device`, a block device.
#[must_use]
pub fn mounted_on(device: &Path) -> Option<PathBuf> {
    let id = StorageId::of(device)?;
    let StorageId::Device(_) = id else { return None };
    let kernel = DeviceListing::of_the_kernel();
    let mut mounts = MountLine::all().into_iter().filter(|mount| mount.may_be_written);
    let above = mounts.find(|mount| mount.device().is_some_and(|device| kernel.lies_on(device, id)));
    above.map(|mount| mount.point)
}

/// A line of the kernel's mount table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountLine {
    number: String,
    source: PathBuf,
    pub(super) point: PathBuf,
    may_be_written: bool,
}

impl MountLine {
    /// All mounts that this process can see.
    pub(super) fn all() -> Vec<MountLine> {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        table.split(|&byte| byte == b'\n').filter_map(MountLine::parse).collect()
    }

    fn parse(line: &[u8]) -> Option<MountLine> {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let dash = words.iter().position(|word| *word == b"-")?;
        let (number, point, options) = (words.get(2)?, words.get(4)?, words.get(5)?);
        let (source, of_all) = (words.get(dash + 2)?, words.get(dash + 3)?);
        let may_be_written =
            |options: &[u8]| options.split(|&byte| byte == b',').any(|option| option == b"rw");
        Some(MountLine {
            number: String::from_utf8_lossy(number).into_owned(),
            source: unescaped(source),
            point: unescaped(point),
            may_be_written: may_be_written(options) && may_be_written(of_all),
        })
    }

    /// A file system over several devices has a number of its own, and one of them as its source.
    pub(super) fn device(&self) -> Option<StorageId> {
        match device_named(&self.number)? {
            StorageId::Device(number) if rustix::fs::major(number) == 0 => StorageId::of(&self.source),
            id => Some(id),
        }
    }
}

/// The kernel escapes blanks and the like as `\040`.
pub(super) fn unescaped(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table() {
        let mount = |number: &str, source: &str, point: &str, may_be_written| MountLine {
            number: number.into(),
            source: source.into(),
            point: point.into(),
            may_be_written,
        };
        for (line, want) in [
            (
                r"36 35 8:3 / /mnt/my\040disk rw,noatime master:1 - ext4 /dev/sda3 rw,errors=continue",
                Some(mount("8:3", "/dev/sda3", "/mnt/my disk", true)),
            ),
            (
                "40 35 0:45 /sub /home rw - btrfs /dev/sdb1 rw,space_cache",
                Some(mount("0:45", "/dev/sdb1", "/home", true)),
            ),
            ("41 35 8:4 / /boot ro - ext4 /dev/sda4 rw", Some(mount("8:4", "/dev/sda4", "/boot", false))),
            ("41 35 8:4 / /boot rw - ext4 /dev/sda4 ro", Some(mount("8:4", "/dev/sda4", "/boot", false))),
            ("41 35 8:4 / /boot rw - ext4", None),
            ("", None),
        ] {
            assert_eq!(MountLine::parse(line.as_bytes()), want, "{line}");
        }
        assert_eq!(unescaped(br"a\0b\134\04"), PathBuf::from(r"a\0b\\04"));
    }

    #[test]
    fn the_root_is_on_no_device_that_is_none() {
        assert_eq!(mounted_on(Path::new("/")), None);
        assert_eq!(mounted_on(Path::new("/none")), None);
    }
}
