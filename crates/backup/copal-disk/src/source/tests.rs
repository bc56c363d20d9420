//! Sources over real files, pipes and `qemu-nbd`.

use super::{
    open::{BitmapNames, ImageFormat},
    *,
};
use std::{
    ffi::OsStr,
    fs::File,
    io::Write,
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
    process::Command,
};

const MIB: u64 = 1 << 20;

/// 16 MiB: data at 1 MiB (64 KiB), at 9 MiB (1 MiB + 7 bytes), holes elsewhere.
fn sparse_image(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 16 << 20];
    bytes[1 << 20..(1 << 20) + (64 << 10)].fill(0xa1);
    for (at, byte) in bytes[9 << 20..(10 << 20) + 7].iter_mut().enumerate() {
        *byte = (at / 3) as u8 | 1;
    }
    let file = File::create(path).unwrap();
    file.set_len(16 * MIB).unwrap();
    file.write_all_at(&bytes[1 << 20..(1 << 20) + (64 << 10)], MIB).unwrap();
    file.write_all_at(&bytes[9 << 20..(10 << 20) + 7], 9 * MIB).unwrap();
    bytes
}

/// Reads a source as a backup does: extent by extent, without the holes.
fn read_all(source: &dyn Source) -> (Vec<u8>, u64) {
    let size = source.size_bytes().unwrap();
    let mut bytes = vec![0; size as usize];
    let mut zero_bytes = 0;
    for extent in extents(source, 0..size) {
        let extent = extent.unwrap();
        match extent.kind {
            ExtentKind::Zero => zero_bytes += extent.length,
            ExtentKind::Data => {
                let part = &mut bytes[extent.offset as usize..extent.end() as usize];
                assert_eq!(source.read_at(extent.offset, part).unwrap(), part.len());
            }
        }
    }
    (bytes, zero_bytes)
}

#[test]
fn a_sparse_file_gives_its_bytes_and_its_holes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    let bytes = sparse_image(&path);
    let source =
        open::open(path.to_str().unwrap(), ImageFormat::Auto, BitmapNames::default()).unwrap().source;
    let (read, zero_bytes) = read_all(&*source);
    assert!(read == bytes);
    assert!(zero_bytes > 14 * MIB, "only {zero_bytes} bytes of holes");
    // Odd offsets and lengths, and past the end.
    let mut buf = vec![7; 300_001];
    assert_eq!(source.read_at(9 * MIB + 13, &mut buf).unwrap(), buf.len());
    assert!(buf == bytes[(9 << 20) + 13..][..300_001]);
    assert_eq!(source.read_at(16 * MIB - 5, &mut buf).unwrap(), 5);
    assert_eq!(source.read_at(17 * MIB, &mut buf).unwrap(), 0);
}

#[test]
fn a_read_around_the_page_cache_equals_one_through_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    let mut bytes: Vec<u8> = (0..5_000_123u32).map(|at| (at ^ (at >> 9)) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    let source = file::FileSource::open(&path).unwrap();
    for (offset, len) in [(0, 5_000_123), (1, 4_999_000), (4095, 2), (4096, 1 << 20), (3 << 20, 1_854_395)] {
        // Empties the cache, so that the read uses direct I/O where the file system supports it.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut buf = vec![0; len];
        assert_eq!(source.read_at(offset, &mut buf).unwrap(), len);
        assert!(buf == bytes[offset as usize..][..len], "{offset}+{len}");
    }
    // A write that is only in the cache is visible too.
    bytes[100..200].fill(0xee);
    File::options().write(true).open(&path).unwrap().write_all_at(&bytes[100..200], 100).unwrap();
    let mut buf = vec![0; 8192];
    source.read_at(0, &mut buf).unwrap();
    assert!(buf == bytes[..8192]);
}

#[test]
fn a_file_that_shrinks_under_the_reader_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    std::fs::write(&path, vec![1; 100_000]).unwrap();
    let source = file::FileSource::open(&path).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(50_000).unwrap();
    let error = source.read_at(40_000, &mut vec![0; 60_000]).unwrap_err();
    assert!(matches!(error, SourceError::Short { at: 50_000, expected: 100_000, .. }), "{error}");
}

/// Symptom: a sparse image that was truncated during the read was backed up with zeros in place of its end,
/// with exit code 0, and `verify` accepted it.
/// Cause: the file system's reply "no more data" counted as a hole up to the old size.
/// Fix: such a hole counts only while the size is unchanged, and size and name are checked again at the end.
#[test]
fn a_sparse_file_that_shrinks_under_the_reader_has_no_hole_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    sparse_image(&path);
    let source = file::FileSource::open(&path).unwrap();
    let image = File::options().write(true).open(&path).unwrap();
    image.set_len(4 * MIB).unwrap();
    let walked: Result<Vec<_>, _> = extents(&source, 0..16 * MIB).collect();
    assert!(matches!(walked, Err(SourceError::Changed { .. })), "{walked:?}");
}

/// As above, for changes that the map alone does not show.
#[test]
fn a_file_is_checked_again_after_the_last_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    let look = |change: &dyn Fn(&File)| {
        sparse_image(&path);
        let source = file::FileSource::open(&path).unwrap();
        read_all(&source);
        change(&File::options().write(true).open(&path).unwrap());
        source.confirm()
    };
    assert!(matches!(look(&|_| ()), Ok(None)));
    let refused = |outcome: Result<Option<String>, SourceError>, words: &str| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, SourceError::Changed { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(look(&|image| image.set_len(16 * MIB - 1).unwrap()), "went from 16777216 to 16777215 bytes");
    refused(look(&|image| image.set_len(17 * MIB).unwrap()), "to 17825792 bytes");
    refused(look(&|_| std::fs::remove_file(&path).unwrap()), "removed");
    let other = dir.path().join("other.raw");
    std::fs::write(&other, "another disk").unwrap();
    refused(look(&|_| std::fs::rename(&other, &path).unwrap()), "replaced");
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let said = look(&|image| {
        image.write_all_at(b"x", 5).unwrap();
        // With a coarse clock the write may get the time that the file already has.
        image.set_modified(hour_ago).unwrap();
    });
    let said = said.unwrap().expect("a written image is said");
    assert!(said.contains("was written while it was read"), "{said}");
}

#[test]
fn a_stream_is_read_once_in_order() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at / 7) as u8).collect();
    std::thread::scope(|scope| {
        let sent = &bytes;
        scope.spawn(move || sent.chunks(777).for_each(|piece| writer.write_all(piece).unwrap()));
        let source = stream::StreamSource::new("pipe", Box::new(reader));
        assert_eq!(source.size_bytes(), None);
        let mut buf = vec![0; 200_000];
        assert_eq!(source.read_at(0, &mut buf).unwrap(), 200_000);
        assert!(buf == bytes[..200_000]);
        assert!(source.read_at(0, &mut buf).is_err());
        assert_eq!(source.read_at(200_000, &mut buf).unwrap(), 100_000);
        assert!(buf[..100_000] == bytes[200_000..]);
        assert_eq!(source.read_at(300_000, &mut buf).unwrap(), 0);
    });
}

fn reason(opened: Result<open::OpenedSource, SourceError>) -> String {
    opened.err().expect("refused").to_string()
}

#[test]
fn the_format_is_never_guessed_from_content_alone() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(spec("guest.raw"), b"QFI\xfb and what a guest would add").unwrap();
    std::fs::write(spec("not.qcow2"), [0; 4096]).unwrap();
    std::fs::write(spec("tiny.img"), b"QF").unwrap();
    assert!(
        reason(open::open(spec("guest.raw"), ImageFormat::Auto, BitmapNames::default()))
            .contains("--format qcow2")
    );
    assert!(
        reason(open::open(spec("not.qcow2"), ImageFormat::Auto, BitmapNames::default()))
            .contains("--format raw")
    );
    assert!(
        reason(open::open(spec("not.qcow2"), ImageFormat::Qcow2, BitmapNames::default()))
            .contains("--format raw")
    );
    for (name, format) in
        [("guest.raw", ImageFormat::Raw), ("not.qcow2", ImageFormat::Raw), ("tiny.img", ImageFormat::Auto)]
    {
        assert!(open::open(spec(name), format, BitmapNames::default()).is_ok(), "{name}");
    }
    assert!(
        reason(open::open(spec("none"), ImageFormat::Auto, BitmapNames::default())).contains("cannot open")
    );
    assert!(
        reason(open::open(dir.path().to_str().unwrap(), ImageFormat::Auto, BitmapNames::default()))
            .contains("directory")
    );
    let bitmaps = BitmapNames { changed: Some("b"), starts: Some("c"), ..BitmapNames::default() };
    let raw = open::open(spec("tiny.img"), ImageFormat::Raw, bitmaps).unwrap();
    assert!(raw.no_changes.unwrap().contains("dirty bitmaps"));
    assert!(raw.starts.is_none() && raw.warnings[0].contains("--starts-bitmap c"));
    assert!(
        reason(open::open("nbd+unix:///x?socket=/none", ImageFormat::Auto, BitmapNames::default()))
            .contains("no NBD server")
    );
}

/// Whether the programs of QEMU are there; missing ones are a loud skip, or a failure where the
/// suite must be complete.
#[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
fn have_qemu() -> bool {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let have = there("qemu-nbd") && there("qemu-img") && there("qemu-io");
    if !have {
        let required = std::env::var_os("COPAL_TEST_REQUIRE_QEMU").is_some();
        assert!(!required, "qemu-nbd is missing: apt install qemu-utils");
        eprintln!("SKIPPED: qemu-nbd is missing; apt install qemu-utils");
    }
    have
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Process ids of the `qemu-nbd` that serve `image`.
fn servers_of(image: &Path) -> Vec<String> {
    let image = image.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let serving = processes.filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("qemu-nbd") && line.contains(image)
    });
    serving.map(|process| process.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_qcow2_image_is_served_and_its_server_ends() {
    if !have_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (raw, qcow2) = (dir.path().join("disk.raw"), dir.path().join("disk.qcow2"));
    let bytes = sparse_image(&raw);
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", raw.to_str().unwrap(), qcow2.to_str().unwrap()]);
    let spec = qcow2.to_str().unwrap();
    run("qemu-img", &["bitmap", "--add", "-g", "64K", spec, "copal-0"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 0xbb 3M 100k", spec]);

    let bitmaps = |changed, starts| BitmapNames { changed, starts, ..BitmapNames::default() };
    let opened = open::open(spec, ImageFormat::Auto, bitmaps(Some("copal-0"), Some("copal-0"))).unwrap();
    assert_eq!(servers_of(&qcow2).len(), 1);
    let (read, zero_bytes) = read_all(&*opened.source);
    let mut want = bytes.clone();
    want[3 << 20..(3 << 20) + (100 << 10)].fill(0xbb);
    assert!(read == want);
    assert!(zero_bytes > 14 * MIB, "only {zero_bytes} bytes of holes");
    let dirty = ChangedExtent { offset: 3 * MIB, length: 128 << 10, kind: ChangeKind::Dirty };
    let bitmap = BitmapState { name: "copal-0".into(), dirty_bytes: 128 << 10 };
    assert_eq!(opened.starts, Some(bitmap.clone()));
    assert_eq!(
        opened.changed,
        Some(ChangedExtents { size_bytes: 16 * MIB, base: None, bitmap: Some(bitmap), extents: vec![dirty] })
    );
    assert!(matches!(opened.source.confirm(), Ok(None)));
    drop(opened);
    assert!(servers_of(&qcow2).is_empty());

    // An image without a usable bitmap is opened without it.
    run("qemu-img", &["bitmap", "--add", "--disable", spec, "off"]);
    let opened = open::open(spec, ImageFormat::Auto, bitmaps(Some("no-such"), Some("off"))).unwrap();
    assert_eq!((&opened.changed, &opened.starts), (&None, &None));
    assert!(opened.no_changes.unwrap().contains("no-such"));
    assert!(opened.warnings[0].contains("is disabled"), "{:?}", opened.warnings);
    drop(opened.source);
    let opened = open::open(spec, ImageFormat::Auto, bitmaps(Some("off"), Some("copal-0"))).unwrap();
    assert!(opened.changed.is_none() && opened.warnings.is_empty());
    assert_eq!(opened.starts.unwrap().dirty_bytes, 128 << 10);
    drop(opened.source);
    let image = File::options().write(true).open(&qcow2).unwrap();
    // A feature that no program knows.
    image.write_all_at(&[0x40], 72).unwrap();
    let broken = reason(open::open(spec, ImageFormat::Auto, BitmapNames::default()));
    assert!(broken.starts_with("qemu-nbd cannot serve"), "{broken}");
    image.write_all_at(&[0xff; 64], 8).unwrap();
    let broken = reason(open::open(spec, ImageFormat::Auto, BitmapNames::default()));
    assert!(broken.contains("qemu-img check"), "{broken}");
    assert!(servers_of(&qcow2).is_empty());
}

#[test]
fn an_unreadable_image_is_refused_before_qemu_nbd_starts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locked.qcow2");
    std::fs::write(&path, b"QFI\xfb").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    if File::open(&path).is_ok() {
        return; // root reads everything
    }
    assert!(
        reason(open::open(path.to_str().unwrap(), ImageFormat::Qcow2, BitmapNames::default()))
            .contains("cannot open")
    );
}

/// Symptom: a truncated qcow2 image or backing image was backed up with zeros for clusters past the end of
/// the file, with exit code 0 and no message.
/// Cause: QEMU reads zeros there, and only changes during the read were detected.
/// Fix: every cluster that the tables of a chain name must lie within its files.
#[test]
fn an_image_whose_tables_name_missing_clusters_is_refused() {
    if !have_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let word = |name: &str| path(name).to_str().unwrap().to_owned();
    let (raw, base, data) = (word("disk.raw"), word("base.qcow2"), word("data.qcow2"));
    sparse_image(&path("disk.raw"));
    let images: [(&str, &[&str]); 6] = [
        ("base.qcow2", &[]),
        ("old.qcow2", &["-o", "compat=0.10"]),
        ("packed.qcow2", &["-c"]),
        ("small.qcow2", &["-o", "cluster_size=512"]),
        ("sub.qcow2", &["-o", "extended_l2=on,cluster_size=128k"]),
        ("full.qcow2", &["-o", "preallocation=falloc"]),
    ];
    let look = |name: &str| open::open(word(name), ImageFormat::Auto, BitmapNames::default());
    let cut = |name: &str, length: u64| {
        let image = File::options().write(true).open(path(name)).unwrap();
        image.set_len(length).unwrap();
    };
    for (name, options) in images {
        let image = word(name);
        let words = [&["convert", "-f", "raw", "-O", "qcow2"], options, &[&raw, &image]].concat();
        run("qemu-img", &words);
        let whole = look(name).unwrap();
        assert!(whole.warnings.is_empty() && whole.doubts.is_empty(), "{name}");
        assert_eq!(whole.content, ContentEvidence::Decoded);
        drop(whole);
        let length = path(name).metadata().unwrap().len();
        let bytes = std::fs::read(path(name)).unwrap();
        // Within the data, within the tables, and the header alone.
        for left in [length - 4096, 3 * length / 4, length / 2, 104, 20] {
            cut(name, left);
            let refused = reason(look(name));
            assert!(refused.contains("no snapshot was made"), "{name} of {left}: {refused}");
        }
        std::fs::write(path(name), bytes).unwrap();
        assert!(look(name).is_ok(), "{name}");
    }
    // Backing files and data files.
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", "base.qcow2", &word("top.qcow2")]);
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "disk.raw", &word("over.qcow2")]);
    run(
        "qemu-img",
        &[
            "convert",
            "-f",
            "raw",
            "-O",
            "qcow2",
            "-o",
            &format!("data_file={}", word("data.raw")),
            &raw,
            &data,
        ],
    );
    for name in ["top.qcow2", "over.qcow2", "data.qcow2"] {
        let whole = look(name).unwrap();
        assert!(whole.warnings.is_empty() && whole.doubts.is_empty(), "{name}");
    }
    cut("base.qcow2", path("base.qcow2").metadata().unwrap().len() / 2);
    assert!(reason(look("top.qcow2")).contains(&base));
    cut("data.raw", 9 * MIB);
    assert!(reason(look("data.qcow2")).contains("data.raw is truncated"));
    // A raw backing disk may always have been shorter: the user decides.
    cut("disk.raw", 9 * MIB);
    let said = look("over.qcow2").unwrap();
    assert!(
        matches!(&said.doubts[..], [(crate::doubt::DoubtKind::Chain, text)] if text.contains("its end is missing"))
    );
    drop(said);
    let disk = File::options().write(true).open(&raw).unwrap();
    disk.write_all_at(b"KDMV", 0).unwrap();
    let said = look("over.qcow2").unwrap();
    let told = |words: &str| said.doubts.iter().any(|(_, text)| text.contains(words));
    assert!(told("a vmdk image") && told("its end is missing"), "{:?}", said.doubts);
}

/// Symptom: a qcow2 image with a truncated vmdk or vdi backing image was backed up with exit code 0, and the
/// missing end was read as zeros. With a backing loop, `qemu-nbd` allocated memory without end. Cause: the
/// walk ended at the first file that is not qcow2, and after 500 images. Fix: both are refused by name.
#[test]
fn a_chain_with_a_foreign_image_or_without_an_end_is_refused() {
    if !have_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let word = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let look = |name: &str| {
        let looked = image_check::check_chain(&dir.path().join(name));
        looked.expect_err("refused").to_string()
    };
    let create = |name: &str, format: &str, behind: &str| {
        let words = ["create", "-q", "-f", "qcow2", "-F", format, "-b", &word(behind), &word(name), "4M"];
        run("qemu-img", &words);
    };
    for format in ["vmdk", "vdi", "qcow"] {
        let behind = format!("behind.{format}");
        run("qemu-img", &["create", "-q", "-f", format, &word(&behind), "4M"]);
        create("over.qcow2", format, &behind);
        let said = look("over.qcow2");
        assert!(said.contains(&behind) && said.contains("qemu-img rebase"), "{said}");
    }
    // The header does not state the backing format, so QEMU probes it.
    create("over.qcow2", "vmdk", "behind.vmdk");
    let over = dir.path().join("over.qcow2");
    let mut bytes = std::fs::read(&over).unwrap();
    let at = bytes.windows(4).position(|word| word == [0xe2, 0x79, 0x2a, 0xca]);
    bytes[at.unwrap()..][..4].copy_from_slice(&[1, 2, 3, 4]);
    std::fs::write(&over, bytes).unwrap();
    assert!(look("over.qcow2").contains("a vmdk image"));
    run("qemu-img", &["create", "-q", "-f", "qcow2", &word("a.qcow2"), "4M"]);
    create("b.qcow2", "qcow2", "a.qcow2");
    let (a, b) = (word("a.qcow2"), word("b.qcow2"));
    run("qemu-img", &["rebase", "-u", "-b", &b, "-F", "qcow2", &a]);
    assert!(look("b.qcow2").contains("lies behind itself"));
    run("qemu-img", &["rebase", "-u", "-b", &a, "-F", "qcow2", &a]);
    assert!(look("a.qcow2").contains("lies behind itself"));
    // An image of version 1, which has the same magic.
    let old = word("old.img");
    run("qemu-img", &["create", "-q", "-f", "qcow", &old, "4M"]);
    for format in [ImageFormat::Auto, ImageFormat::Qcow2] {
        let said = open::open(OsStr::new(&old), format, BitmapNames::default()).err().unwrap().to_string();
        assert!(said.contains("of version 1") && said.contains("qemu-img convert"), "{said}");
    }
}

/// As above, for tables of which an empty disk reads nothing, and for a raw data file.
#[test]
fn an_image_whose_header_names_missing_tables_is_refused() {
    if !have_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.qcow2");
    let spec = path.to_str().unwrap();
    run("qemu-img", &["create", "-q", "-f", "qcow2", spec, "64M"]);
    let bytes = std::fs::read(&path).unwrap();
    let counts_at = u64::from_be_bytes(bytes[48..56].try_into().unwrap());
    let far = &(1_u64 << 40).to_be_bytes()[..];
    let wrong: [(&[u8], u64, &str); 4] = [
        (&[0; 4], 36, "its first table has 0 entries"),
        (far, 40, "its first table"),
        (far, 48, "its table of reference counts"),
        (far, counts_at, "a block of reference counts"),
    ];
    for (value, at, words) in wrong {
        std::fs::write(&path, &bytes).unwrap();
        let image = File::options().write(true).open(&path).unwrap();
        image.write_all_at(value, at).unwrap();
        let refused = reason(open::open(spec, ImageFormat::Auto, BitmapNames::default()));
        assert!(refused.contains(words), "{at}: {refused}");
    }
    let data = dir.path().join("disk.raw");
    let options = format!("data_file={},data_file_raw=on", data.display());
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &options, spec, "64M"]);
    drop(open::open(spec, ImageFormat::Auto, BitmapNames::default()).unwrap());
    let raw = File::options().write(true).open(&data).unwrap();
    raw.set_len(63 << 20).unwrap();
    let refused = reason(open::open(spec, ImageFormat::Auto, BitmapNames::default()));
    assert!(refused.contains("byte for byte"), "{refused}");
}

/// As above, for flags and counts of the header.
#[test]
fn an_image_marked_as_corrupt_is_refused_and_internal_snapshots_get_a_warning() {
    if !have_qemu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.qcow2");
    let spec = path.to_str().unwrap();
    run("qemu-img", &["create", "-q", "-f", "qcow2", spec, "1M"]);
    run("qemu-img", &["snapshot", "-c", "before", spec]);
    let opened = open::open(spec, ImageFormat::Auto, BitmapNames::default()).unwrap();
    assert!(opened.warnings[0].contains("1 internal snapshots"), "{:?}", opened.warnings);
    assert!(opened.doubts.is_empty());
    drop(opened);
    let image = File::options().write(true).open(&path).unwrap();
    image.write_all_at(&[1], 79).unwrap();
    let opened = open::open(spec, ImageFormat::Auto, BitmapNames::default()).unwrap();
    assert!(opened.warnings[0].contains("was not closed"), "{:?}", opened.warnings);
    drop(opened);
    image.write_all_at(&[2], 79).unwrap();
    let refused = reason(open::open(spec, ImageFormat::Auto, BitmapNames::default()));
    assert!(refused.contains("marked as corrupt"), "{refused}");
}
