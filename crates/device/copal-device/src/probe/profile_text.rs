//! Text form of a profile: one line per figure, in a fixed order, behind a line with the version.
//!
//! Format: docs/formats/device-profile.md v1
//! Invariants
//! - Any bytes are a profile or an error; none sizes an allocation.
//! - A profile that was printed and parsed is the same profile.

use super::{DecimalRatio, DeviceKind, DeviceProfile, ProbeConfidence, ProfileBackend};
use crate::ZonedModel;
use std::{fmt, str::FromStr};

/// Longest text of a profile. It fits behind the fields of a superblock.
pub const PROFILE_BYTES_MAX: usize = 3584;
/// Begin of the first line, before the version.
const TITLE: &str = "copal device profile ";
const VERSION: u64 = 1;
/// Longest reason.
const REASON_BYTES_MAX: usize = 512;

/// Why a text is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileTextError {
    /// It does not begin as one.
    #[error("it is no profile of a device: its first line is not `{TITLE}{VERSION}`")]
    NotAProfile,
    /// It has a newer version.
    #[error(
        "it is a profile of version {version}, and this release reads version {VERSION}; use a newer copal"
    )]
    Version {
        /// Its version.
        version: u64,
    },
    /// It is too long.
    #[error("it has {bytes} bytes, more than the {PROFILE_BYTES_MAX} of a profile")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// A line is missing, or another one stands in its place.
    #[error("line {line} must be `{name} VALUE`")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Name of the figure.
        name: &'static str,
    },
    /// A value cannot be.
    #[error("line {line}: {name} is {expected}")]
    Value {
        /// Number of the line, from 1.
        line: usize,
        /// Name of the figure.
        name: &'static str,
        /// Description of the possible values.
        expected: &'static str,
    },
}

impl fmt::Display for DeviceProfile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yes = |is_so| if is_so { "yes" } else { "no" };
        writeln!(out, "{TITLE}{VERSION}")?;
        writeln!(out, "kind {}", self.kind.name())?;
        writeln!(out, "rotational {}", yes(self.rotational))?;
        writeln!(out, "zoned {}", zoned_name(self.zoned))?;
        writeln!(out, "logical_block_bytes {}", self.logical_block)?;
        writeln!(out, "page_bytes {}", self.page_bytes)?;
        writeln!(out, "rmw_ratio {}", self.rmw_ratio)?;
        writeln!(out, "read_iops {}", self.read_iops)?;
        writeln!(out, "write_iops {}", self.write_iops)?;
        writeln!(out, "read_bytes_per_s {}", self.read_bytes_per_s)?;
        writeln!(out, "write_bytes_per_s {}", self.write_bytes_per_s)?;
        writeln!(out, "sequential_ratio {}", self.sequential_ratio)?;
        writeln!(out, "read_knee {}", self.read_knee)?;
        writeln!(out, "write_knee {}", self.write_knee)?;
        writeln!(out, "read_ns {}", self.read_ns)?;
        writeln!(out, "write_ns {}", self.write_ns)?;
        writeln!(out, "flush_ns {}", self.flush_ns)?;
        writeln!(out, "fua_ns {}", self.fua_ns)?;
        writeln!(out, "group_gain {}", self.group_gain)?;
        writeln!(out, "durable_write_commands {}", self.durable_write_commands)?;
        writeln!(out, "gap_bytes {}", self.gap_bytes)?;
        writeln!(out, "plp {}", yes(self.plp))?;
        writeln!(out, "confidence {}", self.confidence.name())?;
        writeln!(out, "backend {}", self.backend.name())?;
        writeln!(out, "reason {}", self.reason)
    }
}

impl FromStr for DeviceProfile {
    type Err = ProfileTextError;

    /// # Errors
    /// The text is no profile of a known version.
    fn from_str(text: &str) -> Result<DeviceProfile, ProfileTextError> {
        if text.len() > PROFILE_BYTES_MAX {
            return Err(ProfileTextError::TooLong { bytes: text.len() });
        }
        let mut lines = ProfileLines { lines: text.lines(), line: 1 };
        let title = lines.lines.next().unwrap_or_default();
        let version = title.strip_prefix(TITLE).and_then(|version| version.parse::<u64>().ok());
        match version {
            Some(VERSION) => {}
            Some(version) => return Err(ProfileTextError::Version { version }),
            None => return Err(ProfileTextError::NotAProfile),
        }
        const KIB: u64 = 1 << 10;
        let profile = DeviceProfile {
            kind: lines.word("kind", "file, block or model", DeviceKind::of_name)?,
            rotational: lines.yes("rotational")?,
            zoned: lines.word("zoned", "none or host-aware", zoned_of_name)?,
            logical_block: lines.power("logical_block_bytes", 512, 64 * KIB)?,
            page_bytes: lines.power("page_bytes", 512, 64 * KIB)?,
            rmw_ratio: lines.hundredths("rmw_ratio")?,
            read_iops: lines.number("read_iops")?,
            write_iops: lines.number("write_iops")?,
            read_bytes_per_s: lines.number("read_bytes_per_s")?,
            write_bytes_per_s: lines.number("write_bytes_per_s")?,
            sequential_ratio: lines.hundredths("sequential_ratio")?,
            read_knee: lines.power("read_knee", 1, KIB)?,
            write_knee: lines.power("write_knee", 1, KIB)?,
            read_ns: lines.number("read_ns")?,
            write_ns: lines.number("write_ns")?,
            flush_ns: lines.number("flush_ns")?,
            fua_ns: lines.number("fua_ns")?,
            group_gain: lines.hundredths("group_gain")?,
            durable_write_commands: lines.hundredths("durable_write_commands")?,
            gap_bytes: lines.number("gap_bytes")?,
            plp: lines.yes("plp")?,
            confidence: lines.word("confidence", "low, medium or high", ProbeConfidence::of_name)?,
            backend: lines.word("backend", "cow or log", ProfileBackend::of_name)?,
            reason: lines.reason()?,
        };
        match lines.lines.next() {
            None => Ok(profile),
            Some(_) => Err(ProfileTextError::Line { line: lines.line + 1, name: "the end, no" }),
        }
    }
}

/// Lines behind the first one.
struct ProfileLines<'a> {
    lines: std::str::Lines<'a>,
    /// Number of the last line that was taken.
    line: usize,
}

/// Bound of all numbers: products of two stay within 128 bits, and sums far from the end of 64.
const NUMBER_MAX: u64 = 1 << 60;

impl<'a> ProfileLines<'a> {
    fn value(&mut self, name: &'static str) -> Result<&'a str, ProfileTextError> {
        self.line += 1;
        let line = self.lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.ok_or(ProfileTextError::Line { line: self.line, name })
    }

    fn word<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        of_name: impl Fn(&str) -> Option<T>,
    ) -> Result<T, ProfileTextError> {
        let value = self.value(name)?;
        of_name(value).ok_or(ProfileTextError::Value { line: self.line, name, expected })
    }

    fn yes(&mut self, name: &'static str) -> Result<bool, ProfileTextError> {
        self.word(name, "yes or no", |word| match word {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        })
    }

    fn number(&mut self, name: &'static str) -> Result<u64, ProfileTextError> {
        self.word(name, "a number below 2^60", parse_number)
    }

    fn power(&mut self, name: &'static str, least: u64, most: u64) -> Result<u32, ProfileTextError> {
        self.word(name, "a power of two within its bounds", |word| {
            let number = parse_number(word).filter(|number| (least..=most).contains(number))?;
            number.is_power_of_two().then_some(number as u32)
        })
    }

    fn hundredths(&mut self, name: &'static str) -> Result<DecimalRatio, ProfileTextError> {
        self.word(name, "a number with two decimals", |word| {
            let (whole, part) = word.split_once('.')?;
            let part = (part.len() == 2).then(|| parse_number(part)).flatten()?;
            Some(DecimalRatio(parse_number(whole)?.checked_mul(100)?.checked_add(part)?))
        })
    }

    fn reason(&mut self) -> Result<String, ProfileTextError> {
        self.word("reason", "a line of printable characters, at most 512 bytes", |text| {
            let is_text = text.len() <= REASON_BYTES_MAX && !text.chars().any(char::is_control);
            is_text.then(|| text.to_owned())
        })
    }
}

/// A number of digits only: no sign.
fn parse_number(word: &str) -> Option<u64> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    word.parse().ok().filter(|number| is_number && *number < NUMBER_MAX)
}

fn zoned_name(zoned: ZonedModel) -> &'static str {
    match zoned {
        // A host-managed device is refused before it is probed.
        ZonedModel::None | ZonedModel::HostManaged => "none",
        ZonedModel::HostAware => "host-aware",
    }
}

fn zoned_of_name(name: &str) -> Option<ZonedModel> {
    [ZonedModel::None, ZonedModel::HostAware].into_iter().find(|zoned| zoned_name(*zoned) == name)
}

impl DeviceKind {
    /// Its name in profiles.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::File => "file",
            DeviceKind::Block => "block",
            DeviceKind::Model => "model",
        }
    }

    fn of_name(name: &str) -> Option<DeviceKind> {
        [DeviceKind::File, DeviceKind::Block, DeviceKind::Model].into_iter().find(|kind| kind.name() == name)
    }
}

impl ProbeConfidence {
    fn of_name(name: &str) -> Option<ProbeConfidence> {
        let all = [ProbeConfidence::Low, ProbeConfidence::Medium, ProbeConfidence::High];
        all.into_iter().find(|confidence| confidence.name() == name)
    }
}

impl ProfileBackend {
    fn of_name(name: &str) -> Option<ProfileBackend> {
        [ProfileBackend::Cow, ProfileBackend::Log].into_iter().find(|backend| backend.name() == name)
    }
}
