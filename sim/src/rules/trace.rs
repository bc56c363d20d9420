//! Recorded Gets: a text file, one Get a line.
//!
//! ```text
//! copal gets 1
//! keys 2000000
//! +75736572312f696e626f78
//! -75736572312f7472617368
//! ```
//! The first line names format and version, the second the number of keys of the recorded store. Each Get is
//! a line: `+` and the key in hexadecimal if it was found, `-` and the key if not. Lines that begin with `#`
//! and empty lines are skipped. A key has at most 65539 bytes: the longest key of a user after the four bytes
//! of its keyspace that the engine (`Store::record_gets` of `copal-kv`) writes.
//!
//! A trace does not contain the tree. The simulator places keys in its own tree: in the order of the keys,
//! evenly between the first and the last key of the trace. A found key goes to a run by the run's share of
//! all keys.

use super::{
    key::{Key, STORE_SEED},
    random::mix,
};
use anyhow::{Context, Result, bail, ensure};
use copal_filter::KeyHash;
use std::{
    collections::HashSet,
    io::{BufRead, Write},
};

const FIRST_LINE: &str = "copal gets 1";
const MAX_KEY_BYTES: usize = 65_539;
/// `+`, two digits for each byte, the end of the line.
const MAX_LINE_BYTES: u64 = 2 * MAX_KEY_BYTES as u64 + 3;

/// Gets of a trace and the number of keys of the store they come from.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) store_keys: u64,
    pub(crate) gets: Vec<Key>,
    /// Every key that each of its look-ups found, once.
    pub(crate) found: Vec<Key>,
}

/// Reads a whole trace.
///
/// # Errors
/// The first malformed line, by its number.
pub(crate) fn read(mut from: impl BufRead) -> Result<Trace> {
    let mut lines = Lines { from: &mut from, number: 0, line: Vec::new() };
    ensure!(
        lines.next()? && lines.line == FIRST_LINE.as_bytes(),
        "line 1 is not `{FIRST_LINE}`: this is not a trace of Gets"
    );
    ensure!(lines.next()?, "the trace ends before its number of keys");
    let text = std::str::from_utf8(&lines.line).unwrap_or_default();
    let keys = text.strip_prefix("keys ").and_then(|keys| keys.parse().ok());
    let store_keys: u64 = keys.with_context(|| format!("line {} is not `keys NUMBER`", lines.number))?;
    ensure!(store_keys > 0, "a store without keys answers no Get");
    let mut asked: Vec<(Vec<u8>, bool)> = Vec::new();
    while lines.next()? {
        let found = match lines.line.first() {
            Some(b'+') => true,
            Some(b'-') => false,
            _ => bail!("line {} begins with neither + nor -", lines.number),
        };
        let key = unhex(&lines.line[1..])
            .with_context(|| format!("line {} has no key in hexadecimal", lines.number))?;
        asked.push((key, found));
    }
    ensure!(!asked.is_empty(), "the trace has no Get");
    let gets = place(&asked);
    // A key with a look-up before it was stored was correctly absent there: no filter may hold it.
    let absent: HashSet<u128> = gets.iter().filter(|key| key.home.is_none()).map(|key| key.hash.0).collect();
    let always = |key: &Key| key.home.is_some() && !absent.contains(&key.hash.0);
    let mut found: Vec<Key> = gets.iter().copied().filter(always).collect();
    found.sort_unstable_by_key(|key| key.hash.0);
    found.dedup_by_key(|key| key.hash.0);
    Ok(Trace { store_keys, gets, found })
}

/// Positions by rank among the distinct keys.
fn place(asked: &[(Vec<u8>, bool)]) -> Vec<Key> {
    let mut distinct: Vec<&[u8]> = asked.iter().map(|(key, _)| key.as_slice()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let count = distinct.len() as u128;
    asked
        .iter()
        .map(|(bytes, found)| {
            let rank = distinct.partition_point(|other| *other < bytes.as_slice()) as u128;
            let hash = KeyHash::new(bytes, STORE_SEED);
            Key { position: ((rank << 64) / count) as u64, home: found.then(|| mix(hash.0 as u64)), hash }
        })
        .collect()
}

struct Lines<'a, R> {
    from: &'a mut R,
    number: u64,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<'_, R> {
    /// Reads the next line that is not skipped, without its end; false at the end of the file.
    fn next(&mut self) -> Result<bool> {
        loop {
            self.line.clear();
            self.number += 1;
            let read =
                std::io::Read::take(&mut *self.from, MAX_LINE_BYTES).read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(false);
            }
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else {
                ensure!((read as u64) < MAX_LINE_BYTES, "line {} is longer than any key", self.number);
            }
            if !self.line.is_empty() && self.line[0] != b'#' {
                return Ok(true);
            }
        }
    }
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, []) = digits.as_chunks::<2>() else {
        return None;
    };
    let byte = |pair: &[u8; 2]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
    if pairs.len() > MAX_KEY_BYTES { None } else { pairs.iter().map(byte).collect() }
}

/// Writes a trace, Get by Get.
pub(crate) struct Writer<W: Write>(W);

impl<W: Write> Writer<W> {
    /// Begins the trace of a store with `store_keys` keys.
    pub(crate) fn new(mut to: W, store_keys: u64) -> Result<Writer<W>> {
        writeln!(to, "{FIRST_LINE}\nkeys {store_keys}")?;
        Ok(Writer(to))
    }

    /// Writes one Get.
    pub(crate) fn get(&mut self, key: &[u8], found: bool) -> Result<()> {
        let mut line = String::with_capacity(2 * key.len() + 2);
        line.push(if found { '+' } else { '-' });
        for byte in key {
            line.extend(
                [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])),
            );
        }
        line.push('\n');
        Ok(self.0.write_all(line.as_bytes())?)
    }

    /// Flushes the file.
    pub(crate) fn finish(mut self) -> Result<()> {
        Ok(self.0.flush()?)
    }
}
