//! Detects data on a block device before a store is made on it.
//!
//! Signatures lie at both ends of a device and behind the first megabyte. Those of md RAID 1.0 and 0.90, of
//! ZFS and of the backup of a GPT lie at the end; the second header of LUKS2 lies at up to 4 MiB. A
//! filesystem with overwritten first blocks has data in the middle. So both ends and samples between are
//! read, and each non-zero byte counts as data. `blkid` is run too, if installed.
//! Invariant: the device is opened for reading only.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Devices up to this size are read completely; of larger ones the ends and samples between.
const WHOLE_BYTES: u64 = 256 << 20;
/// Bytes read at each end.
const END_BYTES: u64 = 16 << 20;
/// Number of samples between the ends, at equal distances.
const PLACES: u64 = 64;
/// Bytes of each sample.
const PLACE_BYTES: u64 = 64 << 10;
/// Bytes of one read.
const STEP_BYTES: usize = 1 << 20;

/// Position of a signature.
#[derive(Clone, Copy)]
enum SignaturePlace {
    /// Bytes from the start.
    Start(u64),
    /// Bytes before the end.
    End(u64),
    /// Bytes before the end of the last whole unit of this size: (unit, bytes).
    Aligned(u64, u64),
}

/// One signature: its name in messages, its bytes, and its possible positions.
struct DeviceSignature {
    name: &'static str,
    bytes: &'static [u8],
    places: &'static [SignaturePlace],
}

const fn signature(
    name: &'static str,
    bytes: &'static [u8],
    places: &'static [SignaturePlace],
) -> DeviceSignature {
    DeviceSignature { name, bytes, places }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Specific signatures stand before those that they contain.
const SIGNATURES: [DeviceSignature; 31] = [
    signature("an encrypted volume (LUKS)", b"LUKS\xba\xbe", &[SignaturePlace::Start(0)]),
    signature(
        "the second header of an encrypted volume (LUKS2)",
        b"SKUL\xba\xbe",
        &[
            SignaturePlace::Start(16 * KIB),
            SignaturePlace::Start(32 * KIB),
            SignaturePlace::Start(64 * KIB),
            SignaturePlace::Start(128 * KIB),
            SignaturePlace::Start(256 * KIB),
            SignaturePlace::Start(512 * KIB),
            SignaturePlace::Start(MIB),
            SignaturePlace::Start(2 * MIB),
            SignaturePlace::Start(4 * MIB),
        ],
    ),
    signature(
        "a physical volume of LVM",
        b"LABELONE",
        &[
            SignaturePlace::Start(0),
            SignaturePlace::Start(512),
            SignaturePlace::Start(1024),
            SignaturePlace::Start(1536),
        ],
    ),
    signature(
        "a member of an md RAID",
        b"\xfc\x4e\x2b\xa9",
        &[
            SignaturePlace::Start(0),
            SignaturePlace::Start(4 * KIB),
            SignaturePlace::Aligned(4 * KIB, 8 * KIB),
            SignaturePlace::Aligned(64 * KIB, 64 * KIB),
        ],
    ),
    signature("a member of an md RAID", b"\xa9\x2b\x4e\xfc", &[SignaturePlace::Aligned(64 * KIB, 64 * KIB)]),
    signature(
        "a member of a RAID (DDF)",
        b"\xde\x11\xde\x11",
        &[SignaturePlace::End(512), SignaturePlace::End(4 * KIB)],
    ),
    signature(
        "a member of a RAID (Intel)",
        b"Intel Raid ISM Cfg Sig.",
        &[SignaturePlace::End(1024), SignaturePlace::End(8 * KIB)],
    ),
    signature("ext2, ext3 or ext4", b"\x53\xef", &[SignaturePlace::Start(1080)]),
    signature("XFS", b"XFSB", &[SignaturePlace::Start(0)]),
    signature(
        "btrfs",
        b"_BHRfS_M",
        &[
            SignaturePlace::Start(64 * KIB + 64),
            SignaturePlace::Start(64 * MIB + 64),
            SignaturePlace::Start((256 << 30) + 64),
        ],
    ),
    signature("F2FS", b"\x10\x20\xf5\xf2", &[SignaturePlace::Start(KIB)]),
    signature("NTFS", b"NTFS    ", &[SignaturePlace::Start(3)]),
    signature("exFAT", b"EXFAT   ", &[SignaturePlace::Start(3)]),
    signature("FAT", b"FAT32   ", &[SignaturePlace::Start(82)]),
    signature("FAT", b"FAT16   ", &[SignaturePlace::Start(54)]),
    signature("FAT", b"FAT12   ", &[SignaturePlace::Start(54)]),
    signature("APFS", b"NXSB", &[SignaturePlace::Start(32)]),
    signature("HFS+", b"H+\x00\x04", &[SignaturePlace::Start(KIB), SignaturePlace::End(KIB)]),
    signature("ISO 9660", b"CD001", &[SignaturePlace::Start(32 * KIB + 1)]),
    signature("SquashFS", b"hsqs", &[SignaturePlace::Start(0)]),
    signature(
        "swap space",
        b"SWAPSPACE2",
        &[SignaturePlace::Start(4086), SignaturePlace::Start(16374), SignaturePlace::Start(65526)],
    ),
    signature("a suspended system in swap space", b"S1SUSPEND", &[SignaturePlace::Start(4086)]),
    signature(
        "bcache",
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        &[SignaturePlace::Start(4 * KIB + 24)],
    ),
    signature("Ceph BlueStore", b"bluestore block device", &[SignaturePlace::Start(0)]),
    signature("VDO", b"dmvdo001", &[SignaturePlace::Start(0)]),
    signature(
        "Stratis",
        b"!Stra0tis\x86\xff\x02^\x41rh",
        &[SignaturePlace::Start(516), SignaturePlace::Start(9 * 512 + 4)],
    ),
    signature("VMFS", b"\x0d\xd0\x01\xc0", &[SignaturePlace::Start(MIB)]),
    signature(
        "a partition table (GPT)",
        b"EFI PART",
        &[SignaturePlace::Start(512), SignaturePlace::Start(4 * KIB)],
    ),
    signature(
        "the backup of a partition table (GPT)",
        b"EFI PART",
        &[SignaturePlace::End(512), SignaturePlace::End(4 * KIB)],
    ),
    signature("a qcow2 image", b"QFI\xfb", &[SignaturePlace::Start(0)]),
    signature("a partition table (MBR)", b"\x55\xaa", &[SignaturePlace::Start(510)]),
];

/// Description of the data on the device at `path`; `None`: all bytes that were read are zero. Blocks on the
/// device.
/// # Errors
/// It cannot be read.
pub(crate) fn find(path: &Path) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let size = file.seek(SeekFrom::End(0))?;
    let named = by_signature(&mut file, size)?.map(str::to_owned).or(by_blkid(path));
    if named.is_some() {
        return Ok(named);
    }
    let found = first_byte(&mut file, size)?;
    Ok(found.map(|at| format!("data (the first of it was seen at byte {at})")))
}

fn by_signature(file: &mut File, size: u64) -> io::Result<Option<&'static str>> {
    for signature in &SIGNATURES {
        for place in signature.places {
            let at = match *place {
                SignaturePlace::Start(bytes) => Some(bytes),
                SignaturePlace::End(bytes) => size.checked_sub(bytes),
                SignaturePlace::Aligned(unit, bytes) => (size - size % unit).checked_sub(bytes),
            };
            let length = signature.bytes.len();
            if let Some(at) = at.filter(|at| at.saturating_add(length as u64) <= size)
                && read(file, at, &mut vec![0; length])? == signature.bytes
            {
                return Ok(Some(signature.name));
            }
        }
    }
    is_zfs(file, size).map(|is_zfs| is_zfs.then_some("a device of a ZFS pool"))
}

/// ZFS keeps four labels of 256 KiB, two at each end. The second half of each is an array of blocks that
/// begin with a magic number.
fn is_zfs(file: &mut File, size: u64) -> io::Result<bool> {
    const LABEL: u64 = 256 * KIB;
    const NUMBER: u64 = 0x00ba_b10c;
    let end = size - size % LABEL;
    let labels = [Some(0), Some(LABEL), end.checked_sub(2 * LABEL), end.checked_sub(LABEL)];
    let mut half = vec![0; (LABEL / 2) as usize];
    for label in labels.into_iter().flatten() {
        if label + LABEL > size {
            continue;
        }
        let blocks = read(file, label + LABEL / 2, &mut half)?.chunks(KIB as usize);
        let mut numbers = blocks.filter_map(|block| block.first_chunk());
        if numbers.any(|number| [u64::from_le_bytes(*number), u64::from_be_bytes(*number)].contains(&NUMBER))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Position of a non-zero byte, at the ends or in one of the samples between.
fn first_byte(file: &mut File, size: u64) -> io::Result<Option<u64>> {
    let mut ranges = vec![(0, size)];
    if size > WHOLE_BYTES {
        let distance = size / (PLACES + 1);
        ranges = vec![(0, END_BYTES), (size - END_BYTES, END_BYTES)];
        ranges.extend((1..=PLACES).map(|place| (place * distance / KIB * KIB, PLACE_BYTES)));
    }
    let zeros = vec![0; STEP_BYTES];
    let mut buffer = vec![0; STEP_BYTES];
    for (start, length) in ranges {
        let end = start.saturating_add(length).min(size);
        let mut at = start;
        while at < end {
            let step = (end - at).min(STEP_BYTES as u64) as usize;
            let bytes = read(file, at, &mut buffer[..step])?;
            if bytes != &zeros[..step] {
                let within = bytes.iter().position(|&byte| byte != 0).unwrap_or(0);
                return Ok(Some(at + within as u64));
            }
            at += step as u64;
        }
    }
    Ok(None)
}

fn read<'a>(file: &mut File, at: u64, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(buffer)?;
    Ok(buffer)
}

/// Result of `blkid`, which knows more signatures; none if it is not installed.
fn by_blkid(path: &Path) -> Option<String> {
    let mut places: Vec<PathBuf> = vec!["blkid".into()];
    places.extend(["/usr/sbin/blkid", "/sbin/blkid"].map(PathBuf::from));
    for program in places {
        let mut command = Command::new(program);
        command.args(["-p", "-o", "export"]).arg(path);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let Ok(output) = command.output() else { continue };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let value = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        };
        let found = value("TYPE")
            .map(str::to_owned)
            .or(value("PTTYPE").map(|kind| format!("a partition table ({kind})")));
        // With several signatures `blkid` names none.
        const AMBIVALENT: i32 = 8;
        let several = (output.status.code() == Some(AMBIVALENT)).then(|| "several signatures".to_owned());
        return found.or(several);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// A sparse file with some bytes at one position.
    fn holding(size: u64, at: u64, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("device");
        let file = File::create(&path).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(bytes, at).unwrap();
        (scratch, path)
    }

    /// Symptom: `copal init` without `--force` overwrote members of md RAIDs and ZFS pools, and other
    /// devices.
    /// Cause: it read only the first megabyte. Fix: it reads both ends and samples between, and runs `blkid`.
    #[test]
    fn signatures_at_both_ends_and_between_are_named() {
        let size: u64 = (300 << 20) + 12 * KIB;
        let md10 = (size / 512 - 16) / 8 * 8 * 512;
        let md090 = (size & !0xffff) - 0x10000;
        let zfs_end = size / (256 * KIB) * (256 * KIB) - 128 * KIB;
        let cases: [(u64, &[u8], &str); 14] = [
            (md10, b"\xfc\x4e\x2b\xa9", "md RAID"),
            (md090, b"\xfc\x4e\x2b\xa9", "md RAID"),
            (4096, b"\xfc\x4e\x2b\xa9", "md RAID"),
            (size - 512, b"EFI PART", "backup of a partition table"),
            (size - 4096, b"EFI PART", "backup of a partition table"),
            (512, b"EFI PART", "partition table (GPT)"),
            (zfs_end + 3 * KIB, &0x00ba_b10c_u64.to_le_bytes(), "ZFS"),
            (128 * KIB, &0x00ba_b10c_u64.to_be_bytes(), "ZFS"),
            (4 * MIB, b"SKUL\xba\xbe", "LUKS2"),
            (0, b"LUKS\xba\xbe", "LUKS"),
            (1080, b"\x53\xef", "ext4"),
            (64 * MIB + 64, b"_BHRfS_M", "btrfs"),
            (3 * MIB, b"x", "byte 3145728"),
            (size / 65 * 40 / KIB * KIB + 10, b"x", "data"),
        ];
        for (at, bytes, name) in cases {
            let (_scratch, path) = holding(size, at, bytes);
            let found = find(&path).unwrap().unwrap_or_default();
            assert!(found.contains(name), "{bytes:?} at {at}: {found:?}, not {name}");
        }
        let (_scratch, path) = holding(size, 5, b"\0");
        assert_eq!(find(&path).unwrap(), None);
    }

    /// Writes each signature at its place and expects its name. Bytes and places come from the formats' own
    /// descriptions, not from the product's table; the end of the device is that of a file of 300 MiB and 12 KiB.
    #[test]
    fn each_known_signature_is_found_at_its_place_and_named() {
        let size: u64 = 314_585_088;
        let cases: [(&str, u64, &[u8]); 57] = [
            ("an encrypted volume (LUKS)", 0, &[0x4c, 0x55, 0x4b, 0x53, 0xba, 0xbe]),
            (
                "the second header of an encrypted volume (LUKS2)",
                16_384,
                &[0x53, 0x4b, 0x55, 0x4c, 0xba, 0xbe],
            ),
            (
                "the second header of an encrypted volume (LUKS2)",
                4_194_304,
                &[0x53, 0x4b, 0x55, 0x4c, 0xba, 0xbe],
            ),
            ("a physical volume of LVM", 0, b"LABELONE"),
            ("a physical volume of LVM", 512, b"LABELONE"),
            ("a physical volume of LVM", 1_024, b"LABELONE"),
            ("a physical volume of LVM", 1_536, b"LABELONE"),
            ("a member of an md RAID", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
            ("a member of an md RAID", 4_096, &[0xfc, 0x4e, 0x2b, 0xa9]),
            ("a member of an md RAID", 314_576_896, &[0xfc, 0x4e, 0x2b, 0xa9]),
            ("a member of an md RAID", 314_507_264, &[0xfc, 0x4e, 0x2b, 0xa9]),
            ("a member of an md RAID", 314_507_264, &[0xa9, 0x2b, 0x4e, 0xfc]),
            ("a member of a RAID (DDF)", 314_584_576, &[0xde, 0x11, 0xde, 0x11]),
            ("a member of a RAID (DDF)", 314_580_992, &[0xde, 0x11, 0xde, 0x11]),
            ("a member of a RAID (Intel)", 314_584_064, b"Intel Raid ISM Cfg Sig. 1.3.00"),
            ("a member of a RAID (Intel)", 314_576_896, b"Intel Raid ISM Cfg Sig. 1.3.00"),
            ("ext2, ext3 or ext4", 1_080, &[0x53, 0xef]),
            ("XFS", 0, &[0x58, 0x46, 0x53, 0x42]),
            ("btrfs", 65_600, b"_BHRfS_M"),
            ("btrfs", 67_108_928, b"_BHRfS_M"),
            ("F2FS", 1_024, &[0x10, 0x20, 0xf5, 0xf2]),
            ("NTFS", 0, b"\xeb\x52\x90NTFS    "),
            ("exFAT", 0, b"\xeb\x76\x90EXFAT   "),
            ("FAT", 82, b"FAT32   "),
            ("FAT", 54, b"FAT16   "),
            ("FAT", 54, b"FAT12   "),
            ("APFS", 32, &[0x4e, 0x58, 0x53, 0x42]),
            ("HFS+", 1_024, &[0x48, 0x2b, 0x00, 0x04]),
            ("HFS+", 314_584_064, &[0x48, 0x2b, 0x00, 0x04]),
            ("ISO 9660", 32_768, &[0x01, 0x43, 0x44, 0x30, 0x30, 0x31, 0x01]),
            ("SquashFS", 0, &[0x68, 0x73, 0x71, 0x73]),
            ("swap space", 4_086, b"SWAPSPACE2"),
            ("swap space", 16_374, b"SWAPSPACE2"),
            ("swap space", 65_526, b"SWAPSPACE2"),
            ("a suspended system in swap space", 4_086, b"S1SUSPEND"),
            ("bcache", 4_120, &[198, 133, 115, 246, 78, 26, 69, 202, 130, 101, 245, 127, 72, 186, 109, 129]),
            ("Ceph BlueStore", 0, b"bluestore block device\n"),
            ("VDO", 0, b"dmvdo001"),
            ("Stratis", 516, &[33, 83, 116, 114, 97, 48, 116, 105, 115, 134, 255, 2, 94, 65, 114, 104]),
            ("Stratis", 4_612, &[33, 83, 116, 114, 97, 48, 116, 105, 115, 134, 255, 2, 94, 65, 114, 104]),
            ("VMFS", 1_048_576, &[0x0d, 0xd0, 0x01, 0xc0]),
            ("a partition table (GPT)", 512, b"EFI PART"),
            ("a partition table (GPT)", 4_096, b"EFI PART"),
            ("the backup of a partition table (GPT)", 314_584_576, b"EFI PART"),
            ("the backup of a partition table (GPT)", 314_580_992, b"EFI PART"),
            ("a qcow2 image", 0, &[0x51, 0x46, 0x49, 0xfb, 0x00, 0x00, 0x00, 0x03]),
            ("a partition table (MBR)", 510, &[0x55, 0xaa]),
            // Those behind the table: a magic number of a ZFS label, in both orders of bytes and in all four labels.
            ("a device of a ZFS pool", 131_072, &[0x0c, 0xb1, 0xba, 0x00, 0, 0, 0, 0]),
            ("a device of a ZFS pool", 132_096, &[0, 0, 0, 0, 0x00, 0xba, 0xb1, 0x0c]),
            ("a device of a ZFS pool", 393_216, &[0x0c, 0xb1, 0xba, 0x00, 0, 0, 0, 0]),
            ("a device of a ZFS pool", 314_179_584, &[0x0c, 0xb1, 0xba, 0x00, 0, 0, 0, 0]),
            ("a device of a ZFS pool", 314_441_728, &[0x0c, 0xb1, 0xba, 0x00, 0, 0, 0, 0]),
            // A sector of FAT, NTFS or LUKS may also end like an MBR, whose name is the last.
            ("NTFS", 3, &mbr_behind(b"NTFS    ", 3)),
            ("exFAT", 3, &mbr_behind(b"EXFAT   ", 3)),
            ("FAT", 82, &mbr_behind(b"FAT32   ", 82)),
            ("an encrypted volume (LUKS)", 0, &mbr_behind(b"LUKS\xba\xbe", 0)),
            // A protective MBR lies before a GPT.
            ("a partition table (GPT)", 510, b"\x55\xaaEFI PART"),
        ];
        let (_scratch, path) = holding(size, 0, b"");
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        for (name, at, bytes) in cases {
            file.write_all_at(bytes, at).unwrap();
            assert_eq!(by_signature(&mut file, size).unwrap(), Some(name), "{bytes:x?} at {at}");
            file.write_all_at(&vec![0; bytes.len()], at).unwrap();
            assert_eq!(by_signature(&mut file, size).unwrap(), None, "{name} is gone");
        }
    }

    /// A signature at a place in the first sector, up to the mark of an MBR at its end.
    fn mbr_behind(signature: &[u8], at: usize) -> Vec<u8> {
        let mut sector = vec![0; 512];
        sector[at..at + signature.len()].copy_from_slice(signature);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector.split_off(at)
    }

    #[test]
    fn a_small_device_is_read_completely() {
        for at in (0..64 * KIB).step_by(4093) {
            let (_scratch, path) = holding(64 * KIB, at, b"x");
            assert!(find(&path).unwrap().is_some(), "{at}");
        }
        for size in [0, 1, 511, 8192] {
            let (_scratch, path) = holding(size, 0, b"");
            assert_eq!(find(&path).unwrap(), None);
        }
    }
}
