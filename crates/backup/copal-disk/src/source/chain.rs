//! All files that a qcow2 image consists of: itself, its external data, the images behind it and theirs.
//!
//! QEMU reads zeros where a file below an image ends, and keeps reading a file that lost its name, so what
//! becomes of any of them is looked at here, as `file` does for a raw image.
//!
//! Not here: reading them (`qcow2`, through `qemu-nbd`).

use super::{SourceError, identity::Identity, programs};
use rustix::fs::SeekFrom;
use serde::Deserialize;
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// First bytes of a qcow2 image.
pub(super) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Longest chain that is watched; each file takes a handle.
const MAX_LINKS: usize = 500;

/// The files of an image, the image first, opened beside the server's handles.
pub(super) struct Chain {
    links: Vec<Link>,
    /// There is something behind the image, and nobody tells what.
    is_cut_short: bool,
}

/// One file, as it was when it was opened.
struct Link {
    identity: Identity,
    file: File,
    file_bytes: u64,
    /// As a qcow2 header says; 0: the bytes of the file are the bytes of the disk.
    disk_bytes: u64,
}

/// What `qemu-img` says of one image of a chain.
#[derive(Deserialize)]
struct Listed {
    filename: String,
    #[serde(rename = "format-specific")]
    specific: Option<Specific>,
}
#[derive(Deserialize)]
struct Specific {
    data: Option<Data>,
}
#[derive(Deserialize)]
struct Data {
    #[serde(rename = "data-file")]
    data_file: Option<String>,
}

impl Chain {
    /// Opens all files of an image for reading. To be called before anybody reads them: what happens from
    /// then on is noticed.
    ///
    /// # Errors
    /// The image, or a file behind it, cannot be opened.
    pub(super) fn open(image: &Path) -> Result<Chain, SourceError> {
        let mut links = vec![Link::open(image)?];
        let behind = programs::image_info(image, &["--backing-chain"]).and_then(|text| files_behind(&text));
        let is_cut_short = match &behind {
            Some(paths) => paths.len() > MAX_LINKS,
            None => links[0].leads_on().map_err(|error| links[0].identity.failed(error))?,
        };
        for path in behind.unwrap_or_default().iter().take(MAX_LINKS) {
            links.push(Link::open(path)?);
        }
        Ok(Chain { links, is_cut_short })
    }

    /// Looks at all of them once more; returns what a person should know.
    ///
    /// # Errors
    /// One of them is another file now, or has another size.
    pub(super) fn confirm(&self) -> Result<Option<String>, SourceError> {
        let mut said = Vec::new();
        for link in &self.links {
            said.extend(link.confirm()?);
        }
        if self.is_cut_short {
            said.push(
                "the files behind the image were not watched while they were read, as qemu-img does not name them all"
                    .into(),
            );
        }
        Ok((!said.is_empty()).then(|| said.join("; ")))
    }
}

/// Files behind the first image of a chain; what is no file, such as an export, is left out.
fn files_behind(text: &[u8]) -> Option<Vec<PathBuf>> {
    let listed: Vec<Listed> = serde_json::from_slice(text).ok()?;
    let mut files = Vec::new();
    for (at, image) in listed.into_iter().enumerate() {
        let path = PathBuf::from(image.filename);
        let data = image.specific.and_then(|specific| specific.data?.data_file);
        // A data file is named from where its image lies.
        files.extend(data.map(|data| path.parent().unwrap_or(Path::new("/")).join(data)));
        if at > 0 {
            files.push(path);
        }
    }
    // `nbd://...`, `json:{...}` and the like never begin at the root.
    files.retain(|path| path.is_absolute());
    Some(files)
}

impl Link {
    fn open(path: &Path) -> Result<Link, SourceError> {
        let failed = |error| SourceError::Io { action: "open", what: path.display().to_string(), error };
        let file = File::open(path).map_err(failed)?;
        Ok(Link {
            identity: Identity::new(path, &file.metadata().map_err(failed)?),
            file_bytes: length(&file).map_err(failed)?,
            disk_bytes: size_in_header(&file).map_err(failed)?,
            file,
        })
    }

    /// Whether the header names a file behind it, or beside it.
    fn leads_on(&self) -> std::io::Result<bool> {
        const HAS_DATA_FILE: u8 = 1 << 2;
        let mut header = [0; 80];
        match self.file.read_exact_at(&mut header, 0) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        // The offset of the name at byte 8; in version 3 the incompatible features end at byte 79.
        let is_newer = header[7] > 2;
        Ok(header[8..16] != [0; 8] || (is_newer && header[79] & HAS_DATA_FILE != 0))
    }

    fn confirm(&self) -> Result<Option<String>, SourceError> {
        let failed = |error| self.identity.failed(error);
        let file_bytes = length(&self.file).map_err(failed)?;
        let disk_bytes = size_in_header(&self.file).map_err(failed)?;
        // An image may grow by what is written to it; what it loses, or a raw disk gains, is another disk.
        if file_bytes < self.file_bytes || self.disk_bytes == 0 {
            self.identity.expect_size(self.file_bytes, file_bytes)?;
        }
        self.identity.expect_size(self.disk_bytes, disk_bytes)?;
        self.identity.confirm(&self.file)
    }
}

fn length(file: &File) -> std::io::Result<u64> {
    // Metadata of a block device says 0.
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?)
}

/// Size of the disk in an image, which stands at byte 24 in every version of the format; 0 in what is no
/// image.
fn size_in_header(file: &File) -> std::io::Result<u64> {
    let mut header = [0; 32];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(0),
        read => read?,
    }
    let [.., a, b, c, d, e, f, g, h] = header;
    let is_image = header.starts_with(&MAGIC);
    Ok(if is_image { u64::from_be_bytes([a, b, c, d, e, f, g, h]) } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_chain_are_what_qemu_img_names() {
        let text = br#"[
            {"filename":"/a/top.qcow2","format":"qcow2","format-specific":{"type":"qcow2","data":{"data-file":"top.data"}}},
            {"filename":"/b/mid.qcow2","format":"qcow2","format-specific":{"type":"qcow2","data":{}}},
            {"filename":"nbd://host/export","format":"raw"},
            {"filename":"/c/base.raw","format":"raw"}]"#;
        let files = files_behind(text).unwrap();
        assert_eq!(files, ["/a/top.data", "/b/mid.qcow2", "/c/base.raw"].map(PathBuf::from));
        assert_eq!(files_behind(b"{}"), None);
    }
}
