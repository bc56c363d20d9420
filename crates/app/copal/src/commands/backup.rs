//! `copal backup`.

mod live;
mod producer;
mod source;
mod together;

use super::{CommandContext, close, fields::MeasuredFields};
use crate::{
    arguments::{BackupArgs, FormatWord},
    failure::{Failure, Outcome, exit},
    human,
    place::RepositoryPlace,
    repository::OpenRepository,
    repository::RemoteView,
    stdin::InterruptibleStdin,
};
use copal_backup::{BackupRequest, BackupSummary, DiskSource, Error};
use copal_disk::source::{
    ChangedExtents,
    open::{self, BitmapNames, ImageFormat},
    read_changed_extents,
    stream::StreamSource,
};
use copal_live::PointInTime;
use copal_node::Access;
use jiff::SignedDuration;
use serde::Serialize;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// A disk of the command line.
#[derive(Debug, PartialEq, Eq)]
struct TypedDisk {
    name: String,
    image: OsString,
    changed_extents: Option<OsString>,
    serial: Option<String>,
}

pub(super) fn run(context: &CommandContext<'_>, backup: &BackupArgs) -> Outcome<()> {
    let memory = context.memory()?;
    // Sources come first: a missing image is reported before the prompt for the password.
    let typed = typed_disks(backup)?;
    let running = live::typed_vm(backup, &typed);
    let mut disks = match running {
        Some(_) => Vec::new(),
        None => open_disks(context, backup)?,
    };
    let place = RepositoryPlace::find(&context.arguments.common)?;
    for typed in typed.iter().filter(|_| running.is_none()) {
        source::refuse_own(&place, &typed.image)?;
    }
    let opened = context.open_for(Access::Write, RemoteView::AtStart)?;
    let mut point = None;
    if let Some(vm) = running {
        match live::hold(opened.repository(), vm, backup.format) {
            Ok((held, opened)) => (point, disks) = (Some(held), opened),
            Err(failure) => return close(opened, Err(failure)),
        }
    }
    if let Some(base) = &backup.base
        && let Err(failure) = name_base(&opened, &backup.vm, base, &mut disks)
    {
        return close(opened, Err(failure));
    }
    let mut request = BackupRequest::new(backup.vm.clone(), disks);
    request.tags.clone_from(&backup.tags);
    request.description.clone_from(&backup.description);
    request.strict_incremental = backup.strict_incremental;
    request.full = backup.full;
    request.spot_check_millionths = backup.spot_check;
    request.allow_smaller = backup.allow_smaller;
    request.full_every = backup.full_every.map(SignedDuration::unsigned_abs);
    request.memory_bytes = memory.work;
    let meter = context.meter();
    let is_shared = place.is_shared() && opened.repository().info().layout.is_fleet();
    let outcome = match is_shared {
        true => together::run(context, opened.repository(), request, backup.timeout, &meter),
        false => opened.repository().backup(request, &meter, &context.cancel),
    };
    drop(meter);
    let is_frozen = point.as_ref().map(PointInTime::is_frozen);
    let outcome = match point {
        Some(point) => live::end(point, outcome),
        None => outcome.map(|summary| (summary, Vec::new())).map_err(Failure::from),
    };
    let (mut summary, warnings) = close(opened, outcome)?;
    summary.warnings.extend(warnings);
    report(context, &summary, is_frozen);
    Ok(())
}

fn open_disks(context: &CommandContext<'_>, backup: &BackupArgs) -> Outcome<Vec<DiskSource>> {
    let format = match backup.format {
        FormatWord::Auto => ImageFormat::Auto,
        FormatWord::Raw => ImageFormat::Raw,
        FormatWord::Qcow2 => ImageFormat::Qcow2,
    };
    let mut disks = Vec::new();
    for typed in typed_disks(backup)? {
        let is_pipe = typed.image.is_empty() || typed.image == "-";
        if is_pipe && format == ImageFormat::Qcow2 {
            return Err(Failure::usage(
                "--format qcow2 needs an image file; the bytes of a pipe are always taken as raw, so name the file itself",
            ));
        }
        let bitmaps = BitmapNames {
            changed: backup.bitmap.as_deref(),
            starts: backup.starts_bitmap.as_deref(),
            has_list: typed.changed_extents.is_some(),
        };
        let mut opened = if typed.image.is_empty() {
            let source = producer::start(&backup.from_command, &context.cancel)?;
            let opened = open::without_bitmaps("the command", bitmaps, Box::new(source));
            opened.stated(format)
        } else if typed.image == "-" {
            let reader = Box::new(InterruptibleStdin::new(context.cancel.clone()));
            let source = StreamSource::new("standard input", reader);
            open::without_bitmaps("standard input", bitmaps, Box::new(source)).stated(format)
        } else {
            open::open(&typed.image, format, bitmaps)?
        };
        if let Some(file) = &typed.changed_extents {
            opened.changed = Some(read_list(file, &typed.name, opened.source.size_bytes())?);
        }
        opened.doubts.extend(source::doubts(&typed.image));
        disks.push(DiskSource {
            name: typed.name,
            source: opened.source,
            serial: typed.serial.unwrap_or_default(),
            changed: opened.changed,
            no_changes: opened.no_changes,
            starts: opened.starts,
            sentinel: None,
            identity: opened.identity,
            content: opened.content,
            warnings: opened.warnings,
            doubts: opened.doubts,
        });
    }
    Ok(disks)
}

/// Reads a list of changed extents; a list for another size belongs to another disk.
fn read_list(file: &OsStr, disk: &str, size_bytes: Option<u64>) -> Outcome<ChangedExtents> {
    let list = read_changed_extents(Path::new(file))?;
    match size_bytes {
        Some(size) if size != list.size_bytes => Err(Failure::new(
            exit::SOURCE,
            "source",
            format!(
                "the changed extents in {} are for a disk of {} bytes, {disk} has {size}; leave them out for a full read",
                file.display(),
                list.size_bytes
            ),
        )),
        _ => Ok(list),
    }
}

/// Applies the base of the command line to lists that name none.
fn name_base(opened: &OpenRepository, vm: &str, typed: &str, disks: &mut [DiskSource]) -> Outcome<()> {
    let base = match opened.repository().resolve_damaged(typed, Some(vm)) {
        Ok(snapshot) => snapshot.id.to_string(),
        // Forgotten, or the first backup: the backup reads everything and reports the reason.
        Err(Error::NotFound { .. }) if typed == "latest" => return Ok(()),
        Err(Error::NotFound { .. }) => typed.to_ascii_lowercase(),
        Err(error) => return Err(error.into()),
    };
    for list in disks.iter_mut().filter_map(|disk| disk.changed.as_mut()) {
        with_base(list, typed, &base)?;
    }
    Ok(())
}

/// Sets the base of a list. `base`: the id of the command line, or the snapshot that `latest` names now. It
/// must not contradict the list.
fn with_base(list: &mut ChangedExtents, typed: &str, base: &str) -> Outcome<()> {
    match &list.base {
        Some(listed) => {
            let own = listed.to_ascii_lowercase();
            if base.starts_with(&own) || own.starts_with(base) {
                return Ok(());
            }
            Err(Failure::usage(format!(
                "the changed extents are relative to {listed}, not to {typed}; leave --base out, or name that one"
            )))
        }
        // The newest snapshot shows whether a bitmap is valid. A list has no such evidence: after a backup
        // that failed or was forgotten, the newest snapshot is older than the base of the list.
        None if typed == "latest" => Ok(()),
        None => {
            list.base = Some(base.to_owned());
            Ok(())
        }
    }
}

fn typed_disks(backup: &BackupArgs) -> Outcome<Vec<TypedDisk>> {
    let mut disks: Vec<TypedDisk> = Vec::new();
    if !backup.from_command.is_empty() {
        disks.push(TypedDisk {
            name: "sda".into(),
            // No file has an empty name.
            image: OsString::new(),
            changed_extents: None,
            serial: None,
        });
    }
    if let Some(image) = &backup.image {
        disks.push(TypedDisk {
            name: "sda".into(),
            image: image.clone(),
            changed_extents: None,
            serial: None,
        });
    }
    let images = backup.disks.iter().map(|disk| (disk.as_os_str(), "--disk", "NAME=IMAGE"));
    let nodes = backup.live.nodes.iter().map(|node| (OsStr::new(node), "--node", "NAME=NODE"));
    for (disk, option, form) in images.chain(nodes) {
        let (name, image) = split_name(disk)
            .filter(|(name, image)| !name.is_empty() && !image.is_empty())
            .ok_or_else(|| Failure::usage(format!("{option} {disk:?} is not of the form {form}")))?;
        if disks.iter().any(|other| other.name == name) {
            return Err(Failure::usage(format!("there are two disks called {name}; give each its own name")));
        }
        disks.push(TypedDisk { name: name.into(), image: image.into(), changed_extents: None, serial: None });
    }
    let is_live = backup.live.qmp.is_some();
    if !is_live && disks.iter().filter(|disk| disk.image == "-").count() > 1 {
        return Err(Failure::usage("only one disk can come from standard input"));
    }
    for typed in &backup.changed_extents {
        let (at, file) = of_a_disk(&disks, typed).ok_or_else(|| {
            Failure::usage(format!(
                "--changed-extents {typed:?}: with several disks say NAME=FILE, with the name of a disk"
            ))
        })?;
        let (at, file) = (at, file.to_owned());
        if disks[at].changed_extents.replace(file).is_some() {
            return Err(Failure::usage(format!("two lists of changed extents for disk {}", disks[at].name)));
        }
    }
    for typed in &backup.serial {
        let (at, serial) = of_a_disk(&disks, OsStr::new(typed)).ok_or_else(|| {
            Failure::usage(format!(
                "--serial {typed:?}: with several disks say NAME=SERIAL, with the name of a disk"
            ))
        })?;
        let (at, serial) = (at, serial.to_string_lossy().into_owned());
        if disks[at].serial.replace(serial).is_some() {
            return Err(Failure::usage(format!("two serials for disk {}", disks[at].name)));
        }
    }
    Ok(disks)
}

/// The two sides of `NAME=REST`. The name is UTF-8; the rest may be a path that is not.
fn split_name(typed: &OsStr) -> Option<(&str, &OsStr)> {
    let bytes = typed.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let name = std::str::from_utf8(&bytes[..at]).ok()?;
    Some((name, OsStr::from_bytes(&bytes[at + 1..])))
}

/// `NAME=REST` for one of several disks, or a plain value for the only disk.
fn of_a_disk<'a>(disks: &[TypedDisk], typed: &'a OsStr) -> Option<(usize, &'a OsStr)> {
    let named = split_name(typed).and_then(|(name, rest)| {
        let at = disks.iter().position(|disk| disk.name == name)?;
        Some((at, rest))
    });
    named.or_else(|| (disks.len() == 1).then_some((0, typed)))
}

/// Fields of the summary.
#[derive(Serialize)]
struct BackupFields<'a> {
    #[serde(flatten)]
    summary: &'a BackupSummary,
    short_id: String,
    time: String,
    /// For a running VM: consistency of the disks.
    consistency: Option<&'static str>,
}

fn report(context: &CommandContext<'_>, summary: &BackupSummary, is_frozen: Option<bool>) {
    let counts = &summary.counts;
    for warning in &summary.warnings {
        context.output.warning(warning);
    }
    let fields = BackupFields {
        summary,
        short_id: summary.snapshot.short(),
        time: human::utc_time(summary.created_ms),
        consistency: is_frozen.map(|is_frozen| if is_frozen { "file system" } else { "crash" }),
    };
    context.output.summary(MeasuredFields::new("backup", fields), || {
        let mut text =
            format!("snapshot {} of {}\n", summary.snapshot.short(), human::visible(&summary.vm.name));
        for disk in &summary.disks {
            text.push_str(&format!("  {}: {}, {}", disk.name, human::bytes(disk.size_bytes), disk.mode));
            if !disk.reason.is_empty() {
                text.push_str(&format!(" ({})", disk.reason));
            }
            text.push('\n');
        }
        let checked = match counts.spot_check_bytes {
            0 => String::new(),
            bytes => format!(" and {} to compare", human::bytes(bytes)),
        };
        text.push_str(&format!(
            "  read {}{checked}, new {}, stored {}, {}\n",
            human::bytes(counts.read_bytes),
            human::bytes(counts.new_bytes),
            human::bytes(counts.stored_bytes),
            human::seconds(summary.duration.as_secs_f64()),
        ));
        if !summary.doubts.is_empty() {
            text.push_str(&format!(
                "  doubtful: retention removes no good snapshot in its favour until `copal accept {}`\n",
                summary.snapshot.short()
            ));
        }
        if counts.asked_chunks > 0 {
            text.push_str(&format!(
                "  {} of it are popular already; {} newly stored as popular\n",
                human::bytes(counts.popular_dup_bytes),
                human::bytes(counts.popular_bytes),
            ));
        }
        if counts.unresolved_chunks > 0 {
            text.push_str(&format!(
                "  {} chunks had no answer in time: `copal pds cleanup` asks again\n",
                counts.unresolved_chunks
            ));
        }
        text
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{CopalArgs, CopalCommand};
    use clap::Parser;

    fn typed(line: &str) -> Result<Vec<(String, OsString, Option<OsString>)>, String> {
        let words = ["copal", "backup", "--vm", "v"].into_iter().chain(line.split(' '));
        let arguments = CopalArgs::try_parse_from(words).unwrap();
        let CopalCommand::Backup(backup) = arguments.command else { panic!("not a backup") };
        let disks = typed_disks(&backup).map_err(|failure| failure.sentence)?;
        Ok(disks.into_iter().map(|disk| (disk.name, disk.image, disk.changed_extents)).collect())
    }

    #[test]
    fn disks_and_their_lists_find_each_other() {
        let disk = |name: &str, image: &str, list: Option<&str>| {
            (name.to_owned(), image.into(), list.map(OsString::from))
        };
        for (line, want) in [
            ("a.raw", vec![disk("sda", "a.raw", None)]),
            ("a.raw --changed-extents c.json", vec![disk("sda", "a.raw", Some("c.json"))]),
            ("a.raw --changed-extents day=1.json", vec![disk("sda", "a.raw", Some("day=1.json"))]),
            ("a.raw --changed-extents sda=1.json", vec![disk("sda", "a.raw", Some("1.json"))]),
            (
                "--disk x=nbd://h/e?a=b --disk y=- --changed-extents y=l",
                vec![disk("x", "nbd://h/e?a=b", None), disk("y", "-", Some("l"))],
            ),
        ] {
            assert_eq!(typed(line), Ok(want), "{line}");
        }
        for (line, reason) in [
            ("--disk sda", "NAME=IMAGE"),
            ("--disk =x", "NAME=IMAGE"),
            ("--disk a=x --disk a=y", "two disks called a"),
            ("--disk a=- --disk b=-", "standard input"),
            ("--disk a=x --disk b=y --changed-extents l", "NAME=FILE"),
            ("a.raw --changed-extents l --changed-extents m", "two lists"),
            ("--disk a=x --disk b=y --serial s", "NAME=SERIAL"),
            ("a.raw --serial s --serial sda=t", "two serials"),
        ] {
            assert!(typed(line).unwrap_err().contains(reason), "{line}");
        }
    }

    #[test]
    fn a_list_and_the_command_line_may_not_name_different_bases() {
        let list = |base: Option<&str>| ChangedExtents {
            size_bytes: 1,
            base: base.map(str::to_owned),
            ..ChangedExtents::default()
        };
        let base = |listed, typed, base| {
            let mut list = list(listed);
            with_base(&mut list, typed, base).map(|()| list.base)
        };
        assert_eq!(base(None, "abcd", "abcd12").unwrap().as_deref(), Some("abcd12"));
        assert_eq!(base(None, "latest", "abcd12").unwrap(), None);
        for typed in ["latest", "abcd12"] {
            assert_eq!(base(Some("ABCD"), typed, "abcd12").unwrap().as_deref(), Some("ABCD"));
            assert!(base(Some("cd12"), typed, "abcd12").is_err());
        }
    }
}
