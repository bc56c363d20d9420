//! Numbers and times in human-readable form. Units are decimal: MB = 10^6 bytes.

use copal_backup::is_deceptive;
use jiff::{Timestamp, tz::TimeZone};
use std::{borrow::Cow, time::Duration};

/// `1.23 GB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ if value < 9.995 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 99.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// A duration with a suitable unit: `0.42 s`, `3m07s`, `2h05m`.
pub(crate) fn seconds(value: f64) -> String {
    let whole = value as u64;
    match whole {
        0..60 => format!("{value:.2} s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        _ => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
    }
}

/// Like [`seconds`] for whole seconds: `7 s`, `3m07s`.
pub(crate) fn age(whole_seconds: u64) -> String {
    match whole_seconds {
        0..60 => format!("{whole_seconds} s"),
        _ => seconds(whole_seconds as f64),
    }
}

/// `1 snapshot`, `2 snapshots`.
pub(crate) fn count(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Local time to the second.
pub(crate) fn local_time(ms: u64) -> String {
    timestamp(ms).to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Local day.
pub(crate) fn local_day(ms: u64) -> String {
    timestamp(ms).to_zoned(TimeZone::system()).strftime("%Y-%m-%d").to_string()
}

/// Now, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// RFC 3339 in UTC, for machines.
pub(crate) fn utc_time(ms: u64) -> String {
    timestamp(ms).to_string()
}

fn timestamp(ms: u64) -> Timestamp {
    i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX)
}

/// Text as one line with escapes for control characters and for marks that change the direction of writing.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, is_deceptive)
}

/// Like [`visible`], for text of several lines.
pub(crate) fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_deceptive(c))
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_escaped(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Parses `90s`, `10m`, `1h30m`, `2d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time to wait like 90s, 10m or 1h30m");
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let count: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let unit = match rest[digits..].chars().next() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86_400,
            _ => return Err(wrong()),
        };
        let seconds = count.checked_mul(unit).ok_or_else(wrong)?;
        total = total.checked_add(seconds).ok_or_else(wrong)?;
        rest = &rest[digits + 1..];
    }
    match text.is_empty() {
        true => Err(wrong()),
        false => Ok(Duration::from_secs(total)),
    }
}

/// Parses `96M`, `1.5GiB`, `4096`: decimal units, binary with an `i`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size like 96M, 2G or 512MiB");
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let value: f64 = text[..digits_end].parse().map_err(|_| wrong())?;
    let unit = text[digits_end..].trim().to_ascii_lowercase();
    let (letter, rest) = unit.split_at(unit.chars().next().map_or(0, char::len_utf8));
    let base: f64 = match rest {
        "" | "b" => 1000.0,
        "i" | "ib" => 1024.0,
        _ => return Err(wrong()),
    };
    let power = match (letter, rest) {
        ("" | "b", "") => 0,
        ("k", _) => 1,
        ("m", _) => 2,
        ("g", _) => 3,
        ("t", _) => 4,
        _ => return Err(wrong()),
    };
    let result = value * base.powi(power);
    if !(0.0..9e18).contains(&result) {
        return Err(wrong());
    }
    Ok(result as u64)
}

/// Parses a share such as `0.1%` or `5%`; returns millionths.
pub(crate) fn parse_share(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').and_then(|digits| digits.trim().parse::<f64>().ok());
    let millionths = number.map_or(-1.0, |percent| percent * 10_000.0);
    if !(0.0..=1_000_000.0).contains(&millionths) {
        return Err(format!("{text:?} is not a share like 0.1%, 5% or 100%"));
    }
    Ok(millionths.ceil() as u32)
}

/// A table with one row per entry. A column is left-aligned unless every cell below its title begins with a
/// number.
pub(crate) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.iter().map(|cell| visible(cell)).collect()).collect();
    let mut widths: Vec<usize> = titles.iter().map(|title| title.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let numeric: Vec<bool> = (0..titles.len())
        .map(|column| {
            let is_number = |cell: &Cow<'_, str>| {
                cell.split(' ').next().is_some_and(|word| word.parse::<f64>().is_ok()) || cell.is_empty()
            };
            !rows.is_empty() && rows.iter().all(|row| row.get(column).is_none_or(is_number))
        })
        .collect();
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for ((cell, width), numeric) in cells.zip(&widths).zip(&numeric) {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            let parts = if *numeric { [&pad, cell] } else { [cell, &pad] };
            text.push_str(parts[0]);
            text.push_str(parts[1]);
            text.push_str("  ");
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(&mut titles.iter().copied());
    for row in &rows {
        line(&mut row.iter().map(Cow::as_ref));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_with_three_digits() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9_994, "9.99 kB"),
            (9_996, "10.0 kB"),
            (123_456_789, "123 MB"),
            (999_600_000, "1.00 GB"),
            (u64::MAX, "18447 PB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn sizes_are_read_in_the_units_people_write() {
        for (text, count) in [
            ("4096", 4096),
            ("4096b", 4096),
            ("96M", 96_000_000),
            ("96mb", 96_000_000),
            ("1.5K", 1500),
            ("512MiB", 512 << 20),
            ("2Gi", 2 << 30),
            ("1T", 1_000_000_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(count), "{text}");
        }
        for text in ["", "M", "x", "1X", "1MM", "-1", "1iB", "99999999T", "1.2.3"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_to_wait_are_read_in_the_units_people_write() {
        for (text, seconds) in [("0s", 0), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172_800)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "10", "m", "1y", "1.5h", "-1s", "10 m", "18446744073709551615d", "ä"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    /// Symptom: a VM called `web\u{1b}[2J` emptied the terminal that listed it, one with a line break forged
    /// a row.
    /// Cause: stored text was printed unescaped. Fix: control characters are escaped.
    #[test]
    fn control_characters_are_printed_escaped() {
        assert_eq!(visible("Büro: база"), "Büro: база");
        assert_eq!(visible("a\u{1b}[2J\u{202e}\nb"), "a\\u{1b}[2J\\u{202e}\\nb");
        assert_eq!(visible_lines("a\rb\nc\n"), "a\\rb\nc\n");
        let rows = vec![vec!["a\nb".into(), "c".into()]];
        assert_eq!(table(&["VM", ""], &rows), "VM\na\\nb  c\n");
    }

    #[test]
    fn a_table_lines_up() {
        let rows = vec![vec!["ab".into(), "1.00 kB".into()], vec!["c".into(), "20 B".into()]];
        assert_eq!(table(&["id", "size"], &rows), "id     size\nab  1.00 kB\nc      20 B\n");
    }
}
