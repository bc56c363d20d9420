//! Disks to back up: seeded, sparse, and changed in place with a list of the changes.

pub(crate) use copal_testkit::Random;
use std::{
    fs::File,
    io::Read,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

pub(crate) const MIB: u64 = 1 << 20;

/// Lines of a log, that compress about three to one.
pub(crate) fn log_lines(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 32);
    while bytes.len() < len {
        bytes.extend(format!("{:03} entry of a log; ", random.below(1000)).bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A run of changed bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A disk in a file, and the same in memory.
pub(crate) struct Disk {
    file: File,
    pub(crate) bytes: Vec<u8>,
    random: Random,
}

impl Disk {
    /// `size` bytes with about a third data, in runs of 4 KiB to 512 KiB, half of it compressible.
    pub(crate) fn create(path: &Path, size: u64, seed: u64) -> Disk {
        let file = File::create(path).unwrap();
        file.set_len(size).unwrap();
        let mut disk = Disk { file, bytes: vec![0; size as usize], random: Random::new(seed) };
        let mut at = 0;
        while at < size {
            let length = 4096 * (1 + disk.random.below(128));
            let length = length.min(size - at);
            if disk.random.below(3) == 0 {
                disk.write(at, length);
            }
            at += length;
        }
        disk
    }

    /// Fresh content at `offset`.
    pub(crate) fn write(&mut self, offset: u64, length: u64) -> Change {
        let fresh = match self.random.below(2) {
            0 => self.random.bytes(length as usize),
            _ => log_lines(&mut self.random, length as usize),
        };
        self.file.write_all_at(&fresh, offset).unwrap();
        self.bytes[offset as usize..(offset + length) as usize].copy_from_slice(&fresh);
        Change { offset, length }
    }

    /// A few writes of whole 4 KiB blocks at random places.
    pub(crate) fn mutate(&mut self, count: u64) -> Vec<Change> {
        let blocks = self.bytes.len() as u64 / 4096;
        (0..count)
            .map(|_| {
                let at = self.random.below(blocks);
                let length = (1 + self.random.below(16)).min(blocks - at);
                self.write(at * 4096, length * 4096)
            })
            .collect()
    }
}

/// Checks that both files hold these bytes, and that the restored one is about as sparse as its holes allow.
pub(crate) fn assert_restored(path: &Path, bytes: &[u8]) {
    let mut file = File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), bytes.len() as u64);
    let mut buf = vec![0; 1 << 20];
    for piece in bytes.chunks(buf.len()) {
        let part = &mut buf[..piece.len()];
        file.read_exact(part).unwrap();
        assert!(part == piece, "the restored disk differs");
    }
    let allocated = file.metadata().unwrap().blocks() * 512;
    let data: u64 = bytes.chunks(4096).filter(|block| block.iter().any(|b| *b != 0)).count() as u64 * 4096;
    assert!(allocated <= data + data / 4 + MIB, "{allocated} bytes allocated for {data} bytes of data");
}
