//! `TraceEvent`: one line of tracefs.

use super::device_number::DeviceNumber;
use crate::emulated::model::{CommandKind, ModelCommand};

/// Unit of positions and lengths in a trace. It does not depend on the block of the device.
const SECTOR: u64 = 512;
/// Longest read or write that a line may name; the kernel splits at far less.
const MOST_SECTORS: u32 = 1 << 21;

/// Meaning of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    Issue,
    Complete,
    Requeue,
}

pub(super) struct TraceEvent {
    pub(super) kind: EventKind,
    pub(super) device: DeviceNumber,
    pub(super) nanos: u64,
    /// A flush comes before the command.
    pub(super) preflush: bool,
    pub(super) command: Option<ModelCommand>,
}

impl TraceEvent {
    /// The event of a line such as
    /// `copal-1 [001] d.. 12.345678: block_rq_issue: 7,0 R 4096 () 8 + 8 none,0,0 [copal]`; a completion lacks the
    /// bytes before the parentheses. `None`: it is another line.
    pub(super) fn parse(line: &[u8]) -> Option<TraceEvent> {
        const PREFIX: &[u8] = b": block_rq_";
        let start = line.windows(PREFIX.len()).position(|window| window == PREFIX)?;
        let (before, rest) = (&line[..start], &line[start + PREFIX.len()..]);
        let name_end = rest.iter().position(|byte| *byte == b':')?;
        let kind = match &rest[..name_end] {
            b"issue" => EventKind::Issue,
            b"complete" => EventKind::Complete,
            b"requeue" => EventKind::Requeue,
            _ => return None,
        };
        let rest = &rest[name_end + 1..];
        let behind_command = rest.iter().position(|byte| *byte == b')')?;
        let mut head = words(&rest[..behind_command]);
        let mut tail = words(&rest[behind_command + 1..]);
        let device = head.next()?.parse().ok()?;
        let flags = head.next()?;
        let (sector, _, count) = (tail.next()?, tail.next().filter(|word| *word == "+")?, tail.next()?);
        let (preflush, command) = command_of(flags, sector, count.parse().ok()?)?;
        Some(TraceEvent { kind, device, nanos: nanos_of(words(before).last()?)?, preflush, command })
    }
}

/// Words of the text; a word that is no UTF-8 is left out.
fn words(text: &[u8]) -> impl Iterator<Item = &str> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .filter_map(|word| std::str::from_utf8(word).ok())
}

/// Nanoseconds of "12.345678".
fn nanos_of(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.get(..fraction.len().min(9))?;
    let scale = 10u64.pow(9 - digits.len() as u32);
    let below = if digits.is_empty() { 0 } else { digits.parse::<u32>().ok()? };
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(u64::from(below) * scale)
}

/// Whether a flush comes first, and the command, from the letters that the kernel prints: F (a flush first), then
/// the operation (R, W, D, F), then attributes, of which F is FUA. `None`: another operation, such as a raw one.
fn command_of(flags: &str, sector: &str, count: u32) -> Option<(bool, Option<ModelCommand>)> {
    let (preflush, rest) = match flags.strip_prefix('F') {
        Some(rest) => (true, rest),
        None => (false, flags),
    };
    let kind = match rest.chars().next() {
        Some('R') => CommandKind::Read,
        Some('W') if rest[1..].contains('F') => CommandKind::WriteThrough,
        Some('W') => CommandKind::Write,
        Some('D') => CommandKind::Discard,
        _ if preflush => return Some((true, None)),
        _ => return None,
    };
    if count == 0 {
        return preflush.then_some((true, None));
    }
    if count > MOST_SECTORS && kind != CommandKind::Discard {
        return None;
    }
    let at = sector.parse::<u64>().ok()?.checked_mul(SECTOR)?;
    Some((preflush, Some(ModelCommand { kind, at, len: u64::from(count) * SECTOR })))
}
