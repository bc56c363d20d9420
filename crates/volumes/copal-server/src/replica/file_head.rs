//! Heads of files in requests, and the size of pieces.

use crate::net::status::Status;
use copal_data::NewHead;
use copal_proto::{
    id,
    messages::{self, failure::Code},
};
use copal_volume::{FileId, OpId, check_metadata};

/// Bytes of a piece, and of the longest body inside a create.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// The checked head of a request, from a client or another member.
pub(crate) fn new_head(head: Option<messages::FileHead>) -> Result<NewHead, Status> {
    let head = head.ok_or_else(|| Status::new(Code::Invalid, "the head of the file is missing"))?;
    check_metadata(&head.metadata)?;
    if head.size > copal_volume::MAX_FILE_BYTES {
        return Err(Status::new(Code::TooLarge, "a file has at most 64 GiB"));
    }
    Ok(NewHead {
        fid: FileId(id(head.fid)),
        op: OpId(id(head.op)),
        size: head.size,
        crc32c: head.crc32c,
        metadata: head.metadata,
    })
}
