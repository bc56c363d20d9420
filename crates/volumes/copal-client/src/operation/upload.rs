//! Upload: pieces of a large body, staged on the replicas before the create that makes them visible.
//!
//! A piece is sent to all replicas that are up, and is not kept in the client. A replica may lack pieces when
//! the file is created, because it was down or joined later. It gets them from a replica that has them.

use crate::{
    net::{connection::CallError, errors::volume_error, machine},
    operation::{
        chain::{ChainPlan, ChainSender},
        delivery::DeliveryRecord,
    },
    routing::router::{CallRouter, RETRY_PAUSE},
};
use bytes::Bytes;
use copal_codec::crc32c;
use copal_proto::{
    Method,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{FileId, VolumeError, VolumeId, group::DiskId};
use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Bytes of a piece; the last piece of a file may be shorter.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// The staged pieces of one file, by replica.
pub(crate) struct StagedUpload {
    vid: VolumeId,
    fid: FileId,
    /// Indexes of the pieces that each replica has.
    staged: Mutex<BTreeMap<DiskId, BTreeSet<u32>>>,
    /// Pieces that enough replicas have.
    pieces: Mutex<u32>,
}

/// Whether a replica's refusal of a piece ends the upload.
fn ends_upload(error: &VolumeError) -> bool {
    matches!(
        error,
        VolumeError::NoSpace
            | VolumeError::VolumeGone
            | VolumeError::QuotaExceeded { .. }
            | VolumeError::Denied { .. }
    )
}

/// A piece cannot be fetched now. As a busy failure, it makes the protocol call the replica again later.
fn busy_failure(error: &CallError) -> CallError {
    CallError::Failed(Box::new(messages::Failure {
        code: Code::Busy.into(),
        text: format!("no replica has a piece of the upload now: {error}"),
        ..messages::Failure::default()
    }))
}

impl StagedUpload {
    pub(crate) fn new(vid: VolumeId, fid: FileId) -> StagedUpload {
        StagedUpload { vid, fid, staged: Mutex::default(), pieces: Mutex::new(0) }
    }

    /// Sends the next piece to all replicas that are up. Returns once as many have it as an operation needs.
    /// # Errors
    /// `NoSpace`, `VolumeGone`, `QuotaExceeded`, `Denied`, `Degraded`.
    pub(crate) async fn stage(
        &self,
        chains: &ChainSender,
        bytes: Bytes,
        end: Instant,
    ) -> Result<(), VolumeError> {
        let router = chains.router();
        let index = *self.pieces.lock();
        loop {
            let view = router.view(self.vid, end).await?;
            let lacking: Vec<DiskId> = view.up().filter(|disk| !self.has(*disk, index)).collect();
            let lacking = self.stage_by_chain(chains, lacking, index, &bytes, end).await;
            let calls = lacking.into_iter().map(|disk| {
                let call = self.send_piece(chains, disk, index, bytes.clone(), end);
                async move { (disk, call.await) }
            });
            let mut calls: FuturesUnordered<_> = calls.collect();
            let mut refusal = None;
            while let Some((disk, outcome)) = calls.next().await {
                match outcome {
                    Ok(()) => self.mark_staged(disk, index),
                    // The server answers: another client deleted the file by settling it, or the server copies
                    // from a donor.
                    Err(CallError::Failed(failure)) => {
                        let error = volume_error(CallError::Failed(failure));
                        if ends_upload(&error) {
                            refusal = Some(error);
                        }
                    }
                    Err(_) => router.suspect(disk),
                }
            }
            if let Some(error) = refusal {
                return Err(error);
            }
            let have = self.staged.lock().values().filter(|staged| staged.contains(&index)).count();
            let need = view.needed();
            if have >= need {
                *self.pieces.lock() = index + 1;
                return Ok(());
            }
            if machine::now() >= end {
                return Err(VolumeError::Degraded { have, need });
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Sends a piece as a chain, where that is faster. Returns the replicas that do not have it afterwards.
    async fn stage_by_chain(
        &self,
        chains: &ChainSender,
        lacking: Vec<DiskId>,
        index: u32,
        bytes: &Bytes,
        end: Instant,
    ) -> Vec<DiskId> {
        if !chains.is_faster(bytes.len(), lacking.len()) {
            return lacking;
        }
        let (chain, receivers) = ChainPlan::new(lacking, chains.router().next_turn());
        let head = self.chain_head(chains.router(), index, bytes);
        // A piece is not an operation: its outcome does not depend on the replicas that it reached.
        let delivery = DeliveryRecord::default();
        chains.send(head, bytes.clone(), chain, &delivery, end).await;
        let mut left = Vec::new();
        for (disk, answer) in receivers {
            match answer.await {
                Ok(Ok(_)) => self.mark_staged(disk, index),
                // The direct call that follows gets the same refusal, and evaluates it.
                Ok(Err(_)) => left.push(disk),
                Err(_) => {
                    chains.router().suspect(disk);
                    left.push(disk);
                }
            }
        }
        left
    }

    fn chain_head(&self, router: &CallRouter, index: u32, bytes: &Bytes) -> messages::PutChain {
        let piece = messages::PutPiece { bytes: Bytes::new(), ..self.piece(router, index, bytes) };
        messages::PutChain { piece: Some(piece), ..messages::PutChain::default() }
    }

    fn piece(&self, router: &CallRouter, index: u32, bytes: &Bytes) -> messages::PutPiece {
        let (group, epoch) = router.group_and_epoch(self.vid);
        messages::PutPiece {
            group,
            epoch,
            volume: self.vid.0,
            fid: Some(of_id(self.fid.0)),
            index,
            crc32c: crc32c(0, bytes),
            bytes: bytes.clone(),
        }
    }

    fn has(&self, disk: DiskId, index: u32) -> bool {
        self.staged.lock().get(&disk).is_some_and(|staged| staged.contains(&index))
    }

    fn mark_staged(&self, disk: DiskId, index: u32) {
        self.staged.lock().entry(disk).or_default().insert(index);
    }

    /// Forgets the staged pieces of a replica that has lost them.
    pub(crate) fn forget_replica(&self, disk: DiskId) {
        self.staged.lock().remove(&disk);
    }

    /// Copies to a replica the pieces that it lacks.
    /// # Errors
    /// No replica that is reached has a piece, or this replica is not reached.
    pub(crate) async fn complete_replica(
        &self,
        chains: &ChainSender,
        disk: DiskId,
        end: Instant,
    ) -> Result<(), CallError> {
        let pieces = *self.pieces.lock();
        for index in (0..pieces).filter(|index| !self.has(disk, *index)) {
            // Failures to fetch a piece say nothing about the file itself, so they count as busy.
            let fetched = self.fetch_piece(chains.router(), disk, index, end).await;
            let bytes = fetched.map_err(|error| busy_failure(&error))?;
            self.send_piece(chains, disk, index, bytes, end).await?;
            self.mark_staged(disk, index);
        }
        Ok(())
    }

    /// Fetches a piece from a replica that has it, but not from `target`.
    async fn fetch_piece(
        &self,
        router: &CallRouter,
        target: DiskId,
        index: u32,
        end: Instant,
    ) -> Result<Bytes, CallError> {
        let holders: Vec<DiskId> = {
            let staged = self.staged.lock();
            let has = staged.iter().filter(|(disk, staged)| **disk != target && staged.contains(&index));
            has.map(|(disk, _)| *disk).collect()
        };
        let mut last = CallError::Deadline;
        for disk in holders {
            let (group, epoch) = router.group_and_epoch(self.vid);
            let request =
                messages::GetPiece { group, epoch, volume: self.vid.0, fid: Some(of_id(self.fid.0)), index };
            match router.call::<messages::Piece>(disk, Method::GetPiece, &request, end).await {
                Ok(piece) => return Ok(piece.bytes),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn send_piece(
        &self,
        chains: &ChainSender,
        disk: DiskId,
        index: u32,
        bytes: Bytes,
        end: Instant,
    ) -> Result<(), CallError> {
        let router = chains.router();
        let request = self.piece(router, index, &bytes);
        let done: Result<messages::Done, _> = router.call(disk, Method::PutPiece, &request, end).await;
        match done {
            Ok(messages::Done {}) => Ok(()),
            Err(CallError::Unreachable { .. } | CallError::Broken { .. }) => {
                // Another replica may reach it.
                let head = self.chain_head(router, index, &bytes);
                let group = self.vid.birth_group();
                let delivery = DeliveryRecord::default();
                chains.relay(group, disk, head, bytes, &delivery, end).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }
}
