//! Sizes of filters and indexes in LevelDB's tables, read from the tables themselves.
//!
//! Format: LevelDB's doc/table_format.md
//! An open table has its filter and index in memory as a whole, so their sum is LevelDB's need once every
//! table is open. The process does not show it: tables are mapped, so both lie among the data in the page
//! cache.

use anyhow::{Context, Result, bail, ensure};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

const FOOTER_BYTES: u64 = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;

/// Sum over all tables in the directory of a closed store.
pub(super) fn filter_and_index_bytes(directory: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "ldb") {
            let file = File::open(&path)?;
            let len = file.metadata()?.len();
            let read = |offset, len: u64| {
                let mut bytes = vec![0; len as usize];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            };
            sum += of_table(len, read).with_context(|| format!("reading {}", path.display()))?;
        }
    }
    Ok(sum)
}

fn of_table(len: u64, read: impl Fn(u64, u64) -> Result<Vec<u8>>) -> Result<u64> {
    ensure!(len >= FOOTER_BYTES, "shorter than a footer");
    let footer = read(len - FOOTER_BYTES, FOOTER_BYTES)?;
    let (handles, magic) = footer.split_at(FOOTER_BYTES as usize - 8);
    ensure!(magic == MAGIC.to_le_bytes(), "not a table of LevelDB");
    let mut rest = handles;
    let (meta_offset, meta_bytes) = handle(&mut rest)?;
    let (_, index_bytes) = handle(&mut rest)?;
    ensure!(meta_offset.checked_add(meta_bytes).is_some_and(|end| end <= len), "a block beyond the end");
    let meta = read(meta_offset, meta_bytes)?;
    Ok(index_bytes + filter_bytes(&meta)?)
}

/// Size of the filter that the meta block names; 0: a table without one.
fn filter_bytes(meta: &[u8]) -> Result<u64> {
    let (_, count) = meta.split_last_chunk::<4>().context("a block without an end")?;
    let restarts = u32::from_le_bytes(*count) as usize * 4 + 4;
    let mut rest = meta
        .len()
        .checked_sub(restarts)
        .and_then(|end| meta.get(..end))
        .context("more restarts than bytes")?;
    while !rest.is_empty() {
        // The key has no prefix in common with an earlier one: the block has one entry, or other policies
        // have different names.
        let _shared = varint(&mut rest)?;
        let key_bytes = varint(&mut rest)? as usize;
        let value_bytes = varint(&mut rest)? as usize;
        let key = rest.get(..key_bytes).context("a key beyond the end")?;
        let mut value = rest
            .get(key_bytes..)
            .and_then(|rest| rest.get(..value_bytes))
            .context("a value beyond the end")?;
        if key.starts_with(b"filter.") {
            return Ok(handle(&mut value)?.1);
        }
        rest = &rest[key_bytes + value_bytes..];
    }
    Ok(0)
}

/// Offset and size of a block.
fn handle(rest: &mut &[u8]) -> Result<(u64, u64)> {
    Ok((varint(rest)?, varint(rest)?))
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().context("a number beyond the end")?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    bail!("a number of more than 64 bits")
}

#[cfg(test)]
mod tests {
    use super::{MAGIC, of_table};

    /// A table with 300 bytes of data, a filter of 200, its meta block, and an index of 77 that is not read.
    #[test]
    fn sizes_of_filter_and_index_come_from_footer_and_meta_block() {
        let mut table = vec![0; 500];
        let mut meta = vec![0, 10, 4];
        meta.extend(b"filter.any");
        meta.extend([0xac, 0x02, 0xc8, 0x01]); // at 300, 200 bytes
        meta.extend([0, 0, 0, 0, 1, 0, 0, 0]); // one restart, at 0
        table.extend(&meta);
        table.extend([0; 77]);
        let mut footer = vec![0xf4, 0x03, meta.len() as u8, 0x80, 0x05, 77];
        footer.resize(40, 0);
        footer.extend(MAGIC.to_le_bytes());
        table.extend(footer);
        let read = |offset: u64, len: u64| Ok(table[offset as usize..][..len as usize].to_vec());
        assert_eq!(of_table(table.len() as u64, read).expect("a table"), 277);
    }

    #[test]
    fn a_file_that_is_not_a_table_is_refused() {
        let read = |_, len: u64| Ok(vec![0xff; len as usize]);
        assert!(of_table(20, read).is_err());
        assert!(of_table(100, read).is_err());
    }
}
