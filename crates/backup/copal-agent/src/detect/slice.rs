//! Slice of a spool: the complete batches that are compared at once, sorted by id, with their answers.
//!
//! Invariants
//! - All memory of a comparison per request is counted here: a slice uses no more than its bytes, but always
//!   holds at least one batch.

use super::batch::{BatchHeader, MAX_BATCH_IDS};
use super::format::BatchHead;
use super::spool_reader::SpoolReader;
use copal_backup::peers::{Answer, ShortId};
use std::collections::HashMap;

/// One id that a VM asks for.
#[derive(Clone, Copy)]
pub(crate) struct SliceRequest {
    pub(crate) id: ShortId,
    pub(crate) vm: u32,
    /// Position of its answer.
    pub(crate) at: u32,
}

/// Candidate that more than one VM asks for and that is not granted.
#[derive(Clone, Copy)]
pub(crate) struct WantedId {
    /// First of its requests.
    pub(crate) first: u32,
    /// VMs that ask now or asked before.
    pub(crate) vms: u32,
}

struct SliceBatch {
    header: BatchHeader,
    ids: u32,
}

/// Bytes of a request: itself, its answer, and the entry of its id if it is wanted.
const REQUEST_BYTES: usize = size_of::<SliceRequest>() + size_of::<Answer>() + size_of::<WantedId>();
/// Bytes of a batch; the vector of them may be half empty.
const BATCH_BYTES: usize = 2 * size_of::<SliceBatch>();

/// Bytes of batches in a slice.
pub(crate) fn slice_bytes(batches: usize, ids: usize) -> usize {
    batches * BATCH_BYTES + ids * REQUEST_BYTES
}

/// Requests of complete batches; answers are in the order of arrival.
pub(crate) struct RequestSlice {
    batches: Vec<SliceBatch>,
    /// Ascending by id, then VM, then position.
    pub(crate) requests: Vec<SliceRequest>,
    pub(crate) answers: Vec<Answer>,
    /// Filled by the comparison; it has capacity for all ids.
    pub(crate) wanted: Vec<WantedId>,
    /// Ids that a VM was granted and has not stored, with that VM.
    pub(crate) declined: HashMap<ShortId, u32>,
}

/// Number of a question: a round of a job.
fn question(header: &BatchHeader) -> u32 {
    let [a, b, c, d, ..] = header.job;
    u32::from_le_bytes([a, b, c, d]) ^ header.round.rotate_left(16)
}

impl RequestSlice {
    /// The questions of each VM.
    pub(crate) fn questions(&self) -> HashMap<u32, Vec<u32>> {
        let mut asked: HashMap<u32, Vec<u32>> = HashMap::new();
        for batch in &self.batches {
            let (of_vm, question) = (asked.entry(batch.header.vm).or_default(), question(&batch.header));
            if !of_vm.contains(&question) {
                of_vm.push(question);
            }
        }
        asked
    }

    /// Reads the batches that fit `most_bytes`; `None` at the end of the spool.
    pub(crate) fn read(spool: &mut SpoolReader, most_bytes: usize) -> Option<RequestSlice> {
        spool.peek()?;
        let left = usize::try_from(spool.left_bytes()).unwrap_or(usize::MAX) / size_of::<ShortId>();
        let room = left.min((most_bytes / REQUEST_BYTES).max(MAX_BATCH_IDS));
        let mut requests: Vec<SliceRequest> = Vec::with_capacity(room);
        let mut batches: Vec<SliceBatch> = Vec::new();
        while let Some(head) = spool.peek() {
            let (ids, vm, before) = (head.ids, head.header.vm, requests.len());
            let bytes = slice_bytes(batches.len() + 1, before + ids as usize);
            if bytes > most_bytes && !batches.is_empty() {
                break;
            }
            let mut at = before as u32;
            let taken = spool.take(|id| {
                requests.push(SliceRequest { id, vm, at });
                at += 1;
            });
            match taken {
                Some(BatchHead { header, ids, .. }) => batches.push(SliceBatch { header, ids }),
                None => requests.truncate(before),
            }
        }
        batches.shrink_to_fit();
        requests.shrink_to_fit();
        let answers = vec![Answer::NEW; requests.len()];
        requests.sort_unstable_by_key(|request| (request.id, request.vm, request.at));
        let wanted = Vec::with_capacity(requests.len());
        Some(RequestSlice { batches, requests, answers, wanted, declined: HashMap::new() })
    }

    /// Resets the answers after an interrupted comparison.
    pub(crate) fn clear(&mut self) {
        self.answers.fill(Answer::NEW);
        self.wanted.clear();
    }

    /// The requests of one id, from the first.
    pub(crate) fn group(&self, first: usize) -> &[SliceRequest] {
        let id = self.requests[first].id;
        let len = self.requests[first..].iter().take_while(|request| request.id == id).count();
        &self.requests[first..first + len]
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.batches.capacity() * size_of::<SliceBatch>()
            + self.requests.capacity() * size_of::<SliceRequest>()
            + self.answers.capacity() * size_of::<Answer>()
            + self.wanted.capacity() * size_of::<WantedId>()
    }

    pub(crate) fn batches(&self) -> usize {
        self.batches.len()
    }

    /// Passes on the answers of each batch.
    pub(crate) fn reply(&self, reply: &mut dyn FnMut(&BatchHeader, &[Answer])) {
        let mut rest = self.answers.as_slice();
        for batch in &self.batches {
            let (answers, behind) = rest.split_at(batch.ids as usize);
            reply(&batch.header, answers);
            rest = behind;
        }
    }
}
