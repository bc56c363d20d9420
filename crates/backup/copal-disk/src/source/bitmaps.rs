//! Persistent dirty bitmaps of a qcow2 image, as `qemu-img` lists them, and whether each is usable.
//!
//! Not here: reading the dirty extents (`nbd`), comparing a bitmap with the base snapshot (`backup::plan`).

use super::programs;
use serde::Deserialize;
use std::path::Path;

/// One bitmap of an image.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(super) struct ListedBitmap {
    name: String,
    /// `auto`: the bitmap records writes; `in-use`: the image was not closed, so the bitmap is inconsistent.
    flags: Vec<String>,
}

#[derive(Deserialize)]
struct ImageInfo {
    #[serde(rename = "format-specific")]
    specific: Option<FormatInfo>,
}
#[derive(Deserialize)]
struct FormatInfo {
    data: Option<BitmapInfo>,
}
#[derive(Deserialize)]
struct BitmapInfo {
    #[serde(default)]
    bitmaps: Vec<ListedBitmap>,
}

/// Returns the bitmaps of an image, or `None` if `qemu-img` is missing or fails.
pub(super) fn list(image: &Path) -> Option<Vec<ListedBitmap>> {
    parse(&programs::image_info(image, &[])?)
}

fn parse(text: &[u8]) -> Option<Vec<ListedBitmap>> {
    let info: ImageInfo = serde_json::from_slice(text).ok()?;
    Some(info.specific?.data?.bitmaps)
}

/// Returns the reason why a bitmap is unusable, or `None` if it records writes.
pub(super) fn unusable_reason(listed: &[ListedBitmap], name: &str) -> Option<String> {
    let Some(bitmap) = listed.iter().find(|bitmap| bitmap.name == name) else {
        return Some(format!("the image has no dirty bitmap {name:?} (`qemu-img bitmap --add` makes one)"));
    };
    let has = |flag: &str| bitmap.flags.iter().any(|other| other == flag);
    if has("in-use") {
        Some(format!(
            "the dirty bitmap {name:?} is inconsistent: the last writer did not close the image (`qemu-img bitmap --remove`, \
             then begin a new one)"
        ))
    } else if !has("auto") {
        Some(format!("the dirty bitmap {name:?} is disabled: it does not record what is written"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_recording_bitmap_is_usable() {
        let listed = parse(
            br#"{"virtual-size":1,"format-specific":{"type":"qcow2","data":{"bitmaps":[
                {"flags":["auto"],"name":"good","granularity":65536},
                {"flags":["in-use","auto"],"name":"torn","granularity":65536},
                {"flags":[],"name":"off","granularity":65536}]}}}"#,
        )
        .unwrap();
        assert_eq!(unusable_reason(&listed, "good"), None);
        for (name, sentence) in [("torn", "inconsistent"), ("off", "disabled"), ("goo", "no dirty bitmap")] {
            let reason = unusable_reason(&listed, name).unwrap();
            assert!(reason.contains(sentence), "{reason}");
        }
        assert_eq!(parse(br#"{"format-specific":{"data":{}}}"#), Some(Vec::new()));
        assert_eq!(parse(br#"{"format":"raw"}"#), None);
        assert_eq!(parse(b"no JSON"), None);
    }
}
