//! Placeholders for values that differ between runs: ids, times, paths, ports, memory.
//!
//! An id has the same number at all places, so a field with a wrong id is detected. The kind of a number
//! (with or without a fraction) stays visible.

use super::ordered::Ordered;

/// Fields of numbers that are the same in each run. Chunk boundaries depend on the key of the repository, and
/// bytes of the store on the time of merges.
const FIXED: [&str; 15] = [
    "damaged_snapshots",
    "damages",
    "data_bytes",
    "fenced",
    "forgotten",
    "hole_bytes",
    "logical_bytes",
    "misdated_snapshots",
    "pds_fraction",
    "segments",
    "sequence",
    "size_bytes",
    "snapshots",
    "unfinished_sessions",
    "vms",
];

/// Kinds of bytes of the store: the set of kinds depends on the time of merges.
const KINDS: [&str; 2] = ["summed", "unused"];

/// Replaces the varying values in the lines of one golden file.
pub(super) struct Placeholders {
    /// Directories of this run.
    scratch: Vec<String>,
    /// Ids in order of appearance.
    ids: Vec<String>,
    /// Whether all numbers vary, also those in sentences, and the lengths of lists of equal elements.
    pub(super) all_numbers: bool,
    /// Fields of the VMs of a job that depend on the order of hosts.
    pub(super) omitted: Vec<&'static str>,
}

impl Placeholders {
    pub(super) fn new(scratch: String) -> Placeholders {
        Placeholders { scratch: vec![scratch], ids: Vec::new(), all_numbers: false, omitted: Vec::new() }
    }

    pub(super) fn line(&mut self, line: &Ordered) -> Ordered {
        self.learn(line);
        self.value("", line)
    }

    /// Records the long ids of a line: a short one may come before the long one.
    fn learn(&mut self, value: &Ordered) {
        match value {
            Ordered::Text(text) => {
                for word in text.split(|c: char| !c.is_ascii_hexdigit()) {
                    let is_id =
                        [16, 32].contains(&word.len()) && word.bytes().any(|b| b.is_ascii_alphabetic());
                    if is_id && !self.ids.iter().any(|id| id == word) {
                        self.ids.push(word.to_owned());
                    }
                }
            }
            Ordered::List(values) => values.iter().for_each(|value| self.learn(value)),
            Ordered::Fields(fields) => fields.iter().for_each(|(_, value)| self.learn(value)),
            _ => {}
        }
    }

    fn value(&self, name: &str, value: &Ordered) -> Ordered {
        let is_fixed = ["v", "exit_code"].contains(&name) || FIXED.contains(&name) && !self.all_numbers;
        match value {
            Ordered::Integer(_) if !is_fixed => Ordered::text("<integer>"),
            Ordered::Fraction(_) if !is_fixed => Ordered::text("<fraction>"),
            Ordered::Text(text) => Ordered::Text(self.text(text)),
            Ordered::List(_) if name == "unsettled_vms" && !self.omitted.is_empty() => {
                Ordered::text("<list>")
            }
            Ordered::List(values) => {
                let mut values: Vec<Ordered> = values.iter().map(|value| self.value(name, value)).collect();
                if self.all_numbers {
                    values.dedup();
                }
                Ordered::List(values)
            }
            Ordered::Fields(fields) if KINDS.contains(&name) && !fields.is_empty() => {
                Ordered::Fields(vec![("<kind>".to_owned(), self.value(name, &fields[0].1))])
            }
            Ordered::Fields(fields) => {
                let is_vm_of_job = value.field("agent").is_some() && value.field("vm").is_some();
                let fields =
                    fields.iter().filter(|(name, _)| !is_vm_of_job || !self.omitted.contains(&&name[..]));
                let field = |(name, value): &(String, Ordered)| (name.clone(), self.value(name, value));
                Ordered::Fields(fields.map(field).collect())
            }
            other => other.clone(),
        }
    }

    pub(super) fn text(&self, text: &str) -> String {
        let mut rest = text.to_owned();
        for scratch in &self.scratch {
            rest = rest.replace(scratch, "<scratch>");
        }
        let (mut out, mut rest) = (String::new(), &rest[..]);
        let mut before = ' ';
        while let Some(c) = rest.chars().next() {
            let found = match before.is_ascii_alphanumeric() {
                true => None,
                false => self.placeholder(rest, before),
            };
            let (shown, taken) = found.unwrap_or_else(|| (c.to_string(), c.len_utf8()));
            out.push_str(&shown);
            (before, rest) = (rest[..taken].chars().next_back().unwrap_or(' '), &rest[taken..]);
        }
        out
    }

    /// The placeholder for the beginning of a text, and the length of the replaced part.
    fn placeholder(&self, rest: &str, before: char) -> Option<(String, usize)> {
        let word = rest.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap_or_default();
        let next = rest[word.len()..].chars().next().unwrap_or(' ');
        if is_uuid(rest) {
            return Some(("<uuid>".to_owned(), 36));
        }
        if let Some(length) = time_length(rest) {
            return Some(("<time>".to_owned(), length));
        }
        if before == ':' && word.len() >= 4 && word.bytes().all(|b| b.is_ascii_digit()) {
            return Some(("<port>".to_owned(), word.len()));
        }
        if !next.is_ascii_alphanumeric() {
            if let Some(at) = self.ids.iter().position(|id| id == word) {
                return Some((format!("<id {}>", at + 1), word.len()));
            }
            let short = (word.len() == 8).then(|| self.ids.iter().position(|id| id.starts_with(word)));
            if let Some(at) = short.flatten() {
                return Some((format!("<short id {}>", at + 1), word.len()));
            }
        }
        let has_digit = word.bytes().any(|b| b.is_ascii_digit());
        if self.all_numbers && word.len() >= 6 && has_digit && !next.is_ascii_alphanumeric() {
            return Some(("<n>".to_owned(), word.len()));
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        (self.all_numbers && digits > 0).then(|| ("<n>".to_owned(), digits))
    }
}

fn is_uuid(text: &str) -> bool {
    let Some(uuid) = text.get(..36) else { return false };
    let is_of = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    uuid.bytes().enumerate().all(is_of)
}

/// Length of a time such as `2026-11-28T13:09:24Z`.
fn time_length(text: &str) -> Option<usize> {
    let form = text.get(..19)?.bytes().map(|byte| if byte.is_ascii_digit() { b'0' } else { byte });
    if !form.eq(b"0000-00-00T00:00:00".iter().copied()) {
        return None;
    }
    let more = text[19..].bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    text[19 + more..].starts_with('Z').then_some(20 + more)
}
