//! Chain of a qcow2 image: its files, its external data files and its backing files, watched while they are
//! read.
//!
//! QEMU reads zeros where a backing file ends, and goes on reading a file that was renamed or removed. So
//! each file is checked here again after the read, as `file` does for a raw image.
//!
//! Not here: reading the disk (`qcow2`, through `qemu-nbd`).

use super::{SourceError, identity::FileIdentity, programs};
use rustix::fs::SeekFrom;
use serde::Deserialize;
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// First bytes of a qcow2 image.
pub(super) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Longest chain that is watched; each file needs a file descriptor.
const MAX_FILES: usize = 500;

/// The files of an image, the image first. They are opened in addition to the server's own descriptors.
pub(super) struct ImageChain {
    files: Vec<ChainFile>,
    /// The image has further files, and `qemu-img` did not name all of them.
    is_incomplete: bool,
}

/// State of one file at the time it was opened.
struct ChainFile {
    identity: FileIdentity,
    file: File,
    file_bytes: u64,
    /// Size of the disk from the qcow2 header; 0 for a raw file.
    disk_bytes: u64,
}

/// One image of a chain in the output of `qemu-img`.
#[derive(Deserialize)]
struct ListedImage {
    filename: String,
    #[serde(rename = "format-specific")]
    specific: Option<FormatInfo>,
}
#[derive(Deserialize)]
struct FormatInfo {
    data: Option<DataFileInfo>,
}
#[derive(Deserialize)]
struct DataFileInfo {
    #[serde(rename = "data-file")]
    data_file: Option<String>,
}

impl ImageChain {
    /// Opens all files of an image for reading. It is called before the first read, so that every later
    /// change is detected.
    ///
    /// # Errors
    /// The image, or a file behind it, cannot be opened.
    pub(super) fn open(image: &Path) -> Result<ImageChain, SourceError> {
        let mut files = vec![ChainFile::open(image)?];
        let behind = programs::image_info(image, &["--backing-chain"]).and_then(|text| backing_files(&text));
        let is_incomplete = match &behind {
            Some(paths) => paths.len() > MAX_FILES,
            None => files[0].names_more_files().map_err(|error| files[0].identity.failed(error))?,
        };
        for path in behind.unwrap_or_default().iter().take(MAX_FILES) {
            files.push(ChainFile::open(path)?);
        }
        Ok(ImageChain { files, is_incomplete })
    }

    /// Checks each file again; returns warnings.
    ///
    /// # Errors
    /// A file was replaced, or its size has changed.
    pub(super) fn confirm(&self) -> Result<Option<String>, SourceError> {
        let mut warnings = Vec::new();
        for file_of_chain in &self.files {
            warnings.extend(file_of_chain.confirm()?);
        }
        if self.is_incomplete {
            warnings.push(
                "the files behind the image were not watched while they were read, as qemu-img does not name them all"
                    .into(),
            );
        }
        Ok((!warnings.is_empty()).then(|| warnings.join("; ")))
    }
}

/// Files of a chain except the first image; addresses such as exports are left out.
fn backing_files(text: &[u8]) -> Option<Vec<PathBuf>> {
    let listed: Vec<ListedImage> = serde_json::from_slice(text).ok()?;
    let mut files = Vec::new();
    for (at, image) in listed.into_iter().enumerate() {
        let path = PathBuf::from(image.filename);
        let data = image.specific.and_then(|specific| specific.data?.data_file);
        // The path of a data file is relative to the directory of its image.
        files.extend(data.map(|data| path.parent().unwrap_or(Path::new("/")).join(data)));
        if at > 0 {
            files.push(path);
        }
    }
    // `nbd://...`, `json:{...}` and other addresses do not start with a slash.
    files.retain(|path| path.is_absolute());
    Some(files)
}

impl ChainFile {
    fn open(path: &Path) -> Result<ChainFile, SourceError> {
        let failed = |error| SourceError::Io { action: "open", what: path.display().to_string(), error };
        let file = File::open(path).map_err(failed)?;
        Ok(ChainFile {
            identity: FileIdentity::new(path, &file.metadata().map_err(failed)?),
            file_bytes: length(&file).map_err(failed)?,
            disk_bytes: size_in_header(&file).map_err(failed)?,
            file,
        })
    }

    /// Whether the header names a backing file or a data file.
    fn names_more_files(&self) -> std::io::Result<bool> {
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
        // Writes may grow an image. A smaller image, or a raw disk of another size, is another disk.
        if file_bytes < self.file_bytes || self.disk_bytes == 0 {
            self.identity.expect_size(self.file_bytes, file_bytes)?;
        }
        self.identity.expect_size(self.disk_bytes, disk_bytes)?;
        self.identity.confirm(&self.file)
    }
}

fn length(file: &File) -> std::io::Result<u64> {
    // The metadata of a block device reports size 0.
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?)
}

/// Size of the disk, at byte 24 of the header in every version of qcow2; 0 if the file is not an image.
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
    fn the_files_of_a_chain_are_those_that_qemu_img_lists() {
        let text = br#"[
            {"filename":"/a/top.qcow2","format":"qcow2","format-specific":{"type":"qcow2","data":{"data-file":"top.data"}}},
            {"filename":"/b/mid.qcow2","format":"qcow2","format-specific":{"type":"qcow2","data":{}}},
            {"filename":"nbd://host/export","format":"raw"},
            {"filename":"/c/base.raw","format":"raw"}]"#;
        let files = backing_files(text).unwrap();
        assert_eq!(files, ["/a/top.data", "/b/mid.qcow2", "/c/base.raw"].map(PathBuf::from));
        assert_eq!(backing_files(b"{}"), None);
    }
}
