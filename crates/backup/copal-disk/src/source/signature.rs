//! File signatures: formats that are recognised by their first and last bytes and are not raw disks.
//!
//! A snapshot of such a file, taken as a raw disk, boots no guest. A guest can write such bytes to its raw
//! disk too, so the user can state that the disk is raw.
//! Not here: how a backup treats a recognised format (`backup::gate`), qcow2 images with that file extension
//! (`open`).

/// Bytes at each end of a file that are examined.
pub const END_BYTES: usize = 512;

/// A recognised format and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFormat {
    /// Name with its article, for messages.
    pub name: &'static str,
    /// Its kind.
    pub kind: FormatKind,
}

/// Kind of a recognised format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatKind {
    /// Disk image of another program.
    Image,
    /// A qcow2 image where a raw disk is expected.
    Qcow2,
    /// Archive or compressed file, to be unpacked first.
    Archive,
    /// Content that is not a disk.
    Other,
}

impl KnownFormat {
    /// Advice for the user: the middle of a sentence.
    pub fn advice(&self) -> &'static str {
        match self.kind {
            FormatKind::Image => {
                "convert it with `qemu-img convert -O qcow2`, or back up the copy that the VM runs from"
            }
            FormatKind::Qcow2 => {
                "name the image file itself, or export what is in it (qemu-nbd --format=qcow2), as a disk must not be \
                 taken for the file around it"
            }
            FormatKind::Archive => "unpack it first, for example `--from-command zstdcat FILE`",
            FormatKind::Other => "name the disk itself",
        }
    }
}

const fn format(name: &'static str, kind: FormatKind) -> KnownFormat {
    KnownFormat { name, kind }
}

/// Offset of the magic, the magic, and its format.
const HEADS: &[(usize, &[u8], KnownFormat)] = &[
    (0, b"QFI\xfb", format("a qcow2 image", FormatKind::Qcow2)),
    (0, b"KDMV", format("a vmdk image", FormatKind::Image)),
    (0, b"COWD", format("a vmdk image", FormatKind::Image)),
    (0, b"# Disk DescriptorFile", format("the descriptor of a vmdk image", FormatKind::Image)),
    (0, b"conectix", format("a vhd image", FormatKind::Image)),
    (0, b"vhdxfile", format("a vhdx image", FormatKind::Image)),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe], format("a vdi image", FormatKind::Image)),
    (0, b"QED\0", format("a qed image", FormatKind::Image)),
    (0, b"WithoutFreeSpace", format("a parallels image", FormatKind::Image)),
    (0, b"WithouFreSpacExt", format("a parallels image", FormatKind::Image)),
    (0, b"OOOM", format("a cow image", FormatKind::Image)),
    (0, b"Bochs Virtual HD Image", format("a bochs image", FormatKind::Image)),
    (0, b"sprs", format("a sparse image of macOS", FormatKind::Image)),
    (0, b"EVF\x09\x0d\x0a\xff\0", format("an ewf image", FormatKind::Image)),
    (0, &[0x3a, 0xff, 0x26, 0xed], format("a sparse image of Android", FormatKind::Image)),
    (0, b"MSWIM\0\0\0", format("a wim archive", FormatKind::Archive)),
    (0, b"partclone-image", format("an image of partclone", FormatKind::Archive)),
    (0, b"\0ntfsclone-image", format("an image of ntfsclone", FormatKind::Archive)),
    (0, b"VMA\0", format("a vma archive", FormatKind::Archive)),
    (0, &[0x1f, 0x8b, 8], format("a gzip file", FormatKind::Archive)),
    (0, &[0x1f, 0x9d], format("a file of compress", FormatKind::Archive)),
    (0, &[0xfd, b'7', b'z', b'X', b'Z', 0], format("an xz file", FormatKind::Archive)),
    (0, &[0x28, 0xb5, 0x2f, 0xfd], format("a zstd file", FormatKind::Archive)),
    (0, &[0x04, 0x22, 0x4d, 0x18], format("an lz4 file", FormatKind::Archive)),
    (0, &[0x02, 0x21, 0x4c, 0x18], format("an lz4 file", FormatKind::Archive)),
    (0, b"LZIP", format("an lzip file", FormatKind::Archive)),
    (0, &[0x89, b'L', b'Z', b'O', 0, 0x0d, 0x0a, 0x1a, 0x0a], format("an lzop file", FormatKind::Archive)),
    (0, b"\xff\x06\0\0sNaPpY", format("a snappy file", FormatKind::Archive)),
    (0, b"PK\x03\x04", format("a zip archive", FormatKind::Archive)),
    (0, b"PK\x05\x06", format("a zip archive", FormatKind::Archive)),
    (0, b"7z\xbc\xaf\x27\x1c", format("a 7z archive", FormatKind::Archive)),
    (0, b"Rar!\x1a\x07", format("a rar archive", FormatKind::Archive)),
    (0, b"070701", format("a cpio archive", FormatKind::Archive)),
    (0, b"070702", format("a cpio archive", FormatKind::Archive)),
    (0, b"070707", format("a cpio archive", FormatKind::Archive)),
    (0, b"!<arch>\n", format("an ar archive", FormatKind::Archive)),
    (257, b"ustar", format("a tar archive", FormatKind::Archive)),
    (0, b"age-encryption.org/", format("a file encrypted with age", FormatKind::Archive)),
    (0, b"-----BEGIN PGP MESSAGE", format("a file encrypted with OpenPGP", FormatKind::Archive)),
    (0, b"rbd diff v", format("an export of rbd", FormatKind::Archive)),
    (8, &[0xac, 0xcb, 0xba, 0xf5, 2, 0, 0, 0], format("a stream of zfs send", FormatKind::Other)),
    (0, b"btrfs-stream\0", format("a stream of btrfs send", FormatKind::Other)),
    (0, b"<!DOCTYPE", format("a page of HTML", FormatKind::Other)),
    (0, b"<!doctype", format("a page of HTML", FormatKind::Other)),
    (0, b"<html", format("a page of HTML", FormatKind::Other)),
];

/// First bytes of a bzip2 block, after the 4-byte header: of a data block, and of the end block.
const BZIP2_BLOCKS: [[u8; 6]; 2] =
    [[0x31, 0x41, 0x59, 0x26, 0x53, 0x59], [0x17, 0x72, 0x45, 0x38, 0x50, 0x90]];

/// Returns the format of a file with the given first and last [`END_BYTES`], or fewer if the file is shorter.
pub fn recognise(head: &[u8], tail: &[u8]) -> Option<KnownFormat> {
    let archive = |name| Some(format(name, FormatKind::Archive));
    let known = HEADS.iter().find(|(at, magic, _)| has_magic(head, *at, magic));
    if let Some((_, _, known)) = known {
        return Some(*known);
    }
    // A fixed vhd image is the raw disk with a footer, of 511 bytes in the format's first version.
    if has_magic(tail, 0, b"conectix") || has_magic(tail, 1, b"conectix") {
        return Some(format("a vhd image, which has a footer behind the disk", FormatKind::Image));
    }
    if has_magic(tail, 0, b"koly\0\0\0\x04") {
        return Some(format("a dmg image", FormatKind::Image));
    }
    let is_bzip2 = has_magic(head, 0, b"BZh") && BZIP2_BLOCKS.iter().any(|block| has_magic(head, 4, block));
    if is_bzip2 {
        return archive("a bzip2 file");
    }
    // Skippable frames of zstd and lz4.
    if head.first().is_some_and(|byte| byte & 0xf0 == 0x50) && has_magic(head, 1, &[0x2a, 0x4d, 0x18]) {
        return archive("a zstd or lz4 file");
    }
    if has_magic(head, 0, &[0x5d, 0, 0]) && has_magic(head, 5, &[0xff; 8]) {
        return archive("an lzma file");
    }
    is_old_tar(head).then_some(format("a tar archive", FormatKind::Archive))
}

fn has_magic(bytes: &[u8], at: usize, magic: &[u8]) -> bool {
    bytes.get(at..at + magic.len()) == Some(magic)
}

/// Whether a block is a tar header without a magic, recognised by its checksum.
fn is_old_tar(head: &[u8]) -> bool {
    const SUM: std::ops::Range<usize> = 148..156;
    let Some(block) = head.get(..512) else {
        return false;
    };
    let digits = block[SUM].iter().copied();
    let digits: Vec<u8> = digits.skip_while(|byte| *byte == b' ').take_while(u8::is_ascii_digit).collect();
    if digits.len() < 3 || block[0] == 0 {
        return false;
    }
    let stated = digits.iter().try_fold(0u64, |sum, digit| match digit {
        b'0'..=b'7' => Some(sum * 8 + u64::from(digit - b'0')),
        _ => None,
    });
    let bytes = block.iter().enumerate();
    let sum: u64 = bytes.map(|(at, byte)| if SUM.contains(&at) { 32 } else { u64::from(*byte) }).sum();
    stated == Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(head: &[u8], tail: &[u8]) -> Option<&'static str> {
        recognise(head, tail).map(|known| known.name)
    }

    #[test]
    fn known_formats_are_recognised_by_their_ends() {
        for (at, magic, known) in HEADS {
            let mut head = vec![0; 512];
            head[*at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(name_of(&head, &[]), Some(known.name));
            assert!(!known.advice().is_empty());
        }
        let mut footer = vec![0; 512];
        footer[1..9].copy_from_slice(b"conectix");
        assert!(name_of(&[0; 512], &footer).unwrap().starts_with("a vhd image"));
        footer[..8].copy_from_slice(b"conectix");
        assert!(name_of(&[0; 512], &footer).unwrap().starts_with("a vhd image"));
        assert_eq!(name_of(b"BZh91AY&SY", &[]), Some("a bzip2 file"));
        assert_eq!(
            name_of(&[0x5d, 0, 0, 0x80, 0, 255, 255, 255, 255, 255, 255, 255, 255], &[]),
            Some("an lzma file")
        );
        assert_eq!(name_of(&[0x51, 0x2a, 0x4d, 0x18], &[]), Some("a zstd or lz4 file"));
    }

    #[test]
    fn a_tar_archive_without_a_magic_is_known_by_its_checksum() {
        let mut block = [0; 512];
        block[..8].copy_from_slice(b"disk.raw");
        let sum = block.iter().map(|byte| u64::from(*byte)).sum::<u64>() + 8 * 32;
        block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        assert_eq!(name_of(&block, &[]), Some("a tar archive"));
        block[0] ^= 1;
        assert_eq!(name_of(&block, &[]), None);
    }

    #[test]
    fn raw_disks_are_not_recognised_as_a_format() {
        let mut boot = vec![0x90; 512];
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        for head in
            [&[][..], &[0; 512], &[0xff; 512], b"XFSB", b"LABELONE", b"LUKS\xba\xbe", b"BZh9 no block", &boot]
        {
            assert_eq!(name_of(head, head), None, "{head:?}");
        }
    }
}
