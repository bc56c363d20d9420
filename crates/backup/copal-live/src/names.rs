//! Names of nodes, exports, jobs and bitmaps in QEMU, by which a session is found again.
//!
//! Nodes, exports and jobs are named `copal-<session>-<part><disk>`, at most 31 bytes as QEMU requires.
//! Bitmaps are named `copal-<repository>-<vm>-<session>`. Each of the three is 8 hex digits.

use std::fmt;
use uuid::Uuid;

/// Prefix of every name.
pub(crate) const PREFIX: &str = "copal-";
const DIGITS: usize = 8;
/// Suffix of the object that marks a guest as stopped by the session.
const MARK: &str = "-stop";

/// Name of one backup of one VM.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionName(String);

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Purpose of a node, an export or a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionPart {
    /// The file of a fleecing image.
    File,
    /// The raw node that bounds its size.
    Bound,
    /// The fleecing image.
    Image,
    /// The filter that the guest's writes pass.
    Filter,
    /// The disk at the point in time.
    Snapshot,
    /// The scratch node of a new bitmap's marks.
    Marks,
    /// A node by which other backups find the session, from its first command to its last.
    Anchor,
}

impl SessionPart {
    /// All parts in teardown order.
    pub(crate) const TOP_DOWN: [SessionPart; 7] = [
        SessionPart::Snapshot,
        SessionPart::Filter,
        SessionPart::Image,
        SessionPart::Bound,
        SessionPart::File,
        SessionPart::Marks,
        SessionPart::Anchor,
    ];

    fn word(self) -> &'static str {
        match self {
            SessionPart::File => "file",
            SessionPart::Bound => "bound",
            SessionPart::Image => "image",
            SessionPart::Filter => "cbw",
            SessionPart::Snapshot => "snap",
            SessionPart::Marks => "mark",
            SessionPart::Anchor => "anchor",
        }
    }
}

impl SessionName {
    pub(crate) fn draw() -> Result<SessionName, getrandom::Error> {
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes)?;
        Ok(SessionName(format!("{:08x}", u32::from_le_bytes(bytes))))
    }

    /// The session of a node, export or job.
    pub(crate) fn of(name: &str) -> Option<SessionName> {
        let rest = name.strip_prefix(PREFIX)?;
        let (digits, part) = rest.split_at_checked(DIGITS)?;
        let is_part = part.starts_with('-')
            && SessionPart::TOP_DOWN.iter().any(|known| part[1..].starts_with(known.word()));
        ((is_part || part == MARK) && is_hex(digits)).then(|| SessionName(digits.to_owned()))
    }

    /// The object that exists in QEMU while the session has stopped the guest.
    pub(crate) fn mark(&self) -> String {
        format!("{PREFIX}{}{MARK}", self.0)
    }

    /// Whether an object is such a mark.
    pub(crate) fn is_mark(name: &str) -> bool {
        name.ends_with(MARK) && SessionName::of(name).is_some()
    }

    /// The name of a part of a disk, by the position of the disk.
    pub(crate) fn part(&self, part: SessionPart, disk: usize) -> String {
        format!("{PREFIX}{}-{}{disk}", self.0, part.word())
    }

    /// The name of the anchor, for a session with its own NBD server or without.
    pub(crate) fn anchor(&self, has_server: bool) -> String {
        self.part(SessionPart::Anchor, usize::from(has_server))
    }

    /// The part that a name stands for; `None` if the name is not of this session.
    pub(crate) fn part_of(&self, name: &str) -> Option<SessionPart> {
        if SessionName::of(name).as_ref() != Some(self) {
            return None;
        }
        let rest = &name[PREFIX.len() + DIGITS + 1..];
        SessionPart::TOP_DOWN.into_iter().find(|part| rest.starts_with(part.word()))
    }

    /// The copy of a bitmap that is exported to a reader.
    pub(crate) fn map(&self) -> String {
        format!("{PREFIX}{}-map", self.0)
    }

    /// Whether a bitmap is such a copy, of any session.
    pub(crate) fn is_map(name: &str) -> bool {
        let middle = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix("-map"));
        middle.is_some_and(is_hex)
    }

    /// The name of the session's directory.
    pub(crate) fn directory(&self) -> String {
        format!("{PREFIX}{}", self.0)
    }

    /// Whether a directory has the name of a session.
    pub(crate) fn is_directory(name: &str) -> bool {
        name.strip_prefix(PREFIX).is_some_and(is_hex)
    }
}

/// Name prefix of a VM's bitmaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BitmapOwner(String);

impl BitmapOwner {
    pub(crate) fn of(repository: Uuid, vm: &str) -> BitmapOwner {
        let (repository, ..) = repository.as_fields();
        BitmapOwner(format!("{PREFIX}{repository:08x}-{:08x}-", fold(vm)))
    }

    /// The name of the bitmap that begins with a session.
    pub(crate) fn bitmap(&self, session: &SessionName) -> String {
        format!("{}{session}", self.0)
    }

    /// Whether a bitmap began with a backup of this VM into this repository.
    pub(crate) fn has(&self, name: &str) -> bool {
        let session = name.strip_prefix(&self.0);
        session.is_some_and(is_hex)
    }
}

fn is_hex(digits: &str) -> bool {
    digits.len() == DIGITS && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// FNV-1a. It only separates the VMs of one QEMU.
fn fold(word: &str) -> u32 {
    word.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_read_from_a_name_and_other_names_have_none() {
        let session = SessionName("0123abcd".into());
        for part in SessionPart::TOP_DOWN {
            let name = session.part(part, 255);
            assert!(name.len() <= 31, "{name} is too long for QEMU");
            assert_eq!(SessionName::of(&name), Some(session.clone()));
            assert_eq!(session.part_of(&name), Some(part));
        }
        let mark = session.mark();
        assert_eq!((SessionName::of(&mark), session.part_of(&mark)), (Some(session.clone()), None));
        assert!(SessionName::is_mark(&mark) && !SessionName::is_mark(&session.part(SessionPart::Filter, 0)));
        for other in [
            "vm0",
            "copal-",
            "copal-0",
            "copal-0123abcd-",
            "copal-0123ABCD-cbw0",
            "copal-0123abcd-map",
            "copal-0123abcd-stops",
            "copal-äbcdefg-cbw0",
        ] {
            assert_eq!(SessionName::of(other), None, "{other}");
        }
        assert!(SessionName::is_map(&session.map()) && !SessionName::is_map("copal-map"));
    }

    #[test]
    fn bitmaps_of_other_repositories_and_vms_are_not_matched() {
        let session = SessionName::draw().unwrap();
        let (one, two) = (Uuid::from_u128(1 << 100), Uuid::from_u128(2 << 100));
        let own = BitmapOwner::of(one, "db1").bitmap(&session);
        assert!(BitmapOwner::of(one, "db1").has(&own));
        assert!(!BitmapOwner::of(one, "db2").has(&own) && !BitmapOwner::of(two, "db1").has(&own));
        assert!(!BitmapOwner::of(one, "db1").has("copal-0") && !SessionName::is_map(&own));
    }
}
