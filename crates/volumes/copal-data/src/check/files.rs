//! Check of files: heads, pieces, bodies, and pieces without a file.

use super::{CheckOptions, VolumeCheckReport, walk};
use crate::format::{
    BLOCK_BYTES, FileHead, INLINE_BYTES, block_sum, piece_len, pieces_of, upload_started_ms,
};
use crate::keys;
use crate::keyspaces::DataKeyspaces;
use crate::local::{is_single_block, piece_sums};
use copal_codec::crc32c;
use copal_volume::{FileId, VolumeId, check_file_name};
use std::collections::HashSet;

/// File ids in memory during the search for pieces without a file: 4 MiB of ids.
const IDS_AT_A_TIME: u64 = 262_144;

/// Checks the files of one volume.
pub(super) fn check_volume(
    spaces: &DataKeyspaces,
    vid: VolumeId,
    options: &CheckOptions,
    report: &mut VolumeCheckReport,
    progress: &mut dyn FnMut(&VolumeCheckReport),
) {
    let mut in_pieces = 0_u64;
    let range = keys::range(&keys::volume(vid), None);
    walk(
        &spaces.files,
        &format!("the files of volume {vid}"),
        &range,
        false,
        report,
        &mut |key, row, report| {
            let name = keys::split(key).map_or(&[][..], |(_, name)| name);
            if let Err(error) = check_file_name(name) {
                report.found(Some(vid), Some(name), error.to_string());
            }
            match FileHead::parse(key, &row) {
                Ok(head) => {
                    report.files += 1;
                    report.bytes += head.size;
                    in_pieces += u64::from(head.size > INLINE_BYTES);
                    match check_body(spaces, vid, &head, options, report) {
                        Ok(()) => {}
                        Err(what) => report.found(Some(vid), Some(name), what),
                    }
                    progress(report);
                }
                Err(error) => report.found(Some(vid), Some(name), format!("its head: {error}")),
            }
        },
    );
    let passes = in_pieces.div_ceil(IDS_AT_A_TIME).max(1);
    for pass in 0..passes {
        check_owners(spaces, vid, passes, pass, report);
    }
}

/// Checks one body; the error describes the damage.
fn check_body(
    spaces: &DataKeyspaces,
    vid: VolumeId,
    head: &FileHead,
    options: &CheckOptions,
    report: &mut VolumeCheckReport,
) -> Result<(), String> {
    let differs = "its checksum differs from that of its bytes";
    if let Some(body) = &head.inline {
        if crc32c(0, body) != head.crc32c {
            return Err(differs.to_owned());
        }
        report.verified_bytes += head.size;
        return Ok(());
    }
    let reads = options.reads(head.fid);
    let mut sum = 0;
    for index in 0..pieces_of(head.size) {
        let key = keys::piece(vid, head.fid, index);
        let sums = if is_single_block(head.size) {
            None
        } else {
            let sums = piece_sums(spaces, head, index, &key);
            Some(sums.map_err(|error| error.to_string())?)
        };
        let unreadable = |error| format!("piece {index} could not be read: {error}");
        if !reads {
            if !spaces.extents.contains(&key).map_err(unreadable)? {
                return Err(format!("piece {index} is missing"));
            }
            report.pieces += 1;
            continue;
        }
        let piece = spaces
            .extents
            .get(&key)
            .map_err(unreadable)?
            .ok_or_else(|| format!("piece {index} is missing"))?;
        report.pieces += 1;
        let wanted = piece_len(head.size, index);
        if piece.len() as u64 != wanted {
            return Err(format!("piece {index} has {} bytes, not {wanted}", piece.len()));
        }
        for (block, bytes) in piece.chunks(BLOCK_BYTES as usize).enumerate() {
            let stored = sums.as_ref().and_then(|sums| sums.get(block));
            if stored.is_some_and(|&stored| stored != block_sum(&key, block as u32, bytes)) {
                return Err(format!("piece {index}, block {block}: {differs}"));
            }
        }
        sum = crc32c(sum, &piece);
    }
    if reads {
        if sum != head.crc32c {
            return Err(differs.to_owned());
        }
        report.verified_bytes += head.size;
    }
    Ok(())
}

/// Reports pieces that belong to no live file and no upload. It examines one of `passes` shares of the file
/// ids, so that they fit into memory.
fn check_owners(
    spaces: &DataKeyspaces,
    vid: VolumeId,
    passes: u64,
    pass: u64,
    report: &mut VolumeCheckReport,
) {
    let own = |fid: FileId| fid.0 % u128::from(passes) == u128::from(pass);
    let mut owners: HashSet<FileId> = HashSet::new();
    let range = keys::range(&keys::volume(vid), None);
    // Unreadable rows were reported before.
    let mut ignored = VolumeCheckReport::default();
    walk(&spaces.files, "", &range, false, &mut ignored, &mut |key, row, ignored| match FileHead::parse(
        key, &row,
    ) {
        Ok(head) if head.inline.is_none() && own(head.fid) => {
            owners.insert(head.fid);
        }
        Ok(_) => {}
        Err(error) => ignored.found(None, None, error.to_string()),
    });
    let heads_unread = !ignored.is_clean();
    walk(
        &spaces.uploads,
        &format!("the uploads of volume {vid}"),
        &range,
        false,
        report,
        &mut |key, row, report| {
            let fid = keys::split(key).and_then(|(_, rest)| keys::split_upload(rest));
            let Some(fid) = fid.filter(|&fid| own(fid)) else {
                return;
            };
            report.uploads += 1;
            owners.insert(fid);
            if let Err(error) = upload_started_ms(key, &row) {
                report.found(Some(vid), None, format!("the row of upload {fid}: {error}"));
            }
        },
    );
    if heads_unread {
        // The owner of a piece may be among the unreadable heads.
        return;
    }
    for (space, what) in [(&spaces.extents, "a piece"), (&spaces.sums, "checksums")] {
        let mut last = None;
        walk(space, &format!("{what} of volume {vid}"), &range, true, report, &mut |key, _, report| {
            let piece = keys::split(key).and_then(|(_, rest)| keys::split_piece(rest));
            let Some((fid, _)) = piece else {
                let what = format!("{what} has the key \"{}\"", key.escape_ascii());
                return report.found(Some(vid), None, what);
            };
            if own(fid) && !owners.contains(&fid) && last != Some(fid) {
                last = Some(fid);
                let what = format!("{what} of file {fid}, which does not exist, takes space");
                report.found(Some(vid), None, what);
            }
        });
    }
}

/// Reports rows of volumes that do not exist. Rows of a volume under removal are freed at the next opening.
pub(super) fn check_strays(spaces: &DataKeyspaces, volumes: &[VolumeId], report: &mut VolumeCheckReport) {
    let names = ["files", "pieces", "checksums", "uploads"];
    let all = keys::range(b"", None);
    for (space, what) in spaces.of_files().into_iter().zip(names) {
        let mut last = None;
        walk(space, what, &all, true, report, &mut |key, _, report| match keys::split(key) {
            Some((vid, _)) if volumes.binary_search(&vid).is_ok() || last == Some(vid) => {}
            Some((vid, _)) => {
                last = Some(vid);
                if !matches!(spaces.volumes.contains(&keys::volume(vid)), Ok(true)) {
                    let what = format!("{what} of a volume that does not exist take space");
                    report.found(Some(vid), None, what);
                }
            }
            None => {
                let what = format!("{what}: the key \"{}\"", key.escape_ascii());
                report.found(None, None, what);
            }
        });
    }
}
