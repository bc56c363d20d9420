//! Bodies above one piece, staged on every member before the create that makes them visible.
//!
//! A piece goes to all members that are up, and is not kept here. A member that lacks some when the file is
//! created, because it was away or has come since, gets them from one that has them.

use crate::api::cluster::Cluster;
use crate::net::connection::CallError;
use crate::net::errors::volume_error;
use crate::net::machine;
use crate::operation::chain::Chain;
use crate::operation::delivery::HandedOver;
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
    time::{Duration, Instant},
};

/// Bytes of a piece; the last of a file may be shorter.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// The pieces of one file, and which member has which.
pub(crate) struct Upload {
    vid: VolumeId,
    fid: FileId,
    held: Mutex<BTreeMap<DiskId, BTreeSet<u32>>>,
    pieces: Mutex<u32>,
}

/// Whether a member's refusal of a piece ends the upload.
fn ends_upload(error: &VolumeError) -> bool {
    matches!(
        error,
        VolumeError::NoSpace
            | VolumeError::VolumeGone
            | VolumeError::QuotaExceeded { .. }
            | VolumeError::Denied { .. }
    )
}

/// A piece is not to be had now: the member is served later.
fn again_later(error: &CallError) -> CallError {
    CallError::Failed(Box::new(messages::Failure {
        code: Code::Busy.into(),
        text: format!("no member has a piece of the upload now: {error}"),
        ..messages::Failure::default()
    }))
}

impl Upload {
    pub(crate) fn new(vid: VolumeId, fid: FileId) -> Upload {
        Upload { vid, fid, held: Mutex::default(), pieces: Mutex::new(0) }
    }

    /// Brings the next piece to all members that are up; as many as an operation needs must have it.
    /// # Errors
    /// `NoSpace`, `VolumeGone`, `QuotaExceeded`, `Denied`, `Degraded`.
    pub(crate) async fn stage(
        &self,
        cluster: &Cluster,
        bytes: Bytes,
        end: Instant,
    ) -> Result<(), VolumeError> {
        let index = *self.pieces.lock();
        loop {
            let view = cluster.view(self.vid, end).await?;
            let lacking: Vec<DiskId> = view.up().filter(|disk| !self.has(*disk, index)).collect();
            let lacking = self.stage_by_chain(cluster, lacking, index, &bytes, end).await;
            let calls = lacking.into_iter().map(|disk| {
                let put = self.put(cluster, disk, index, bytes.clone(), end);
                async move { (disk, put.await) }
            });
            let mut calls: FuturesUnordered<_> = calls.collect();
            let mut refused = None;
            while let Some((disk, outcome)) = calls.next().await {
                match outcome {
                    Ok(()) => self.note(disk, index),
                    // Its file was deleted by whoever settled it, or this server takes it over: it is there.
                    Err(CallError::Failed(failure)) => {
                        let error = volume_error(CallError::Failed(failure));
                        if ends_upload(&error) {
                            refused = Some(error);
                        }
                    }
                    Err(_) => cluster.suspect(disk),
                }
            }
            if let Some(error) = refused {
                return Err(error);
            }
            let have = self.held.lock().values().filter(|held| held.contains(&index)).count();
            let need = view.needed();
            if have >= need {
                *self.pieces.lock() = index + 1;
                return Ok(());
            }
            if machine::now() >= end {
                return Err(VolumeError::Degraded { have, need });
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Passes a piece from member to member, where that is faster; returns who has not got it so.
    async fn stage_by_chain(
        &self,
        cluster: &Cluster,
        lacking: Vec<DiskId>,
        index: u32,
        bytes: &Bytes,
        end: Instant,
    ) -> Vec<DiskId> {
        if !cluster.chains(bytes.len(), lacking.len()) {
            return lacking;
        }
        let (chain, told) = Chain::new(lacking, cluster.next_turn());
        let head = self.piece_head(cluster, index, bytes);
        // A piece is no operation: nothing follows from where it has arrived.
        let handed = HandedOver::default();
        cluster.run_chain(head, bytes.clone(), chain, &handed, end).await;
        let mut left = Vec::new();
        for (disk, told) in told {
            match told.await {
                Ok(Ok(_)) => self.note(disk, index),
                // What it refuses it refuses again, and then it counts.
                Ok(Err(_)) => left.push(disk),
                Err(_) => {
                    cluster.suspect(disk);
                    left.push(disk);
                }
            }
        }
        left
    }

    fn piece_head(&self, cluster: &Cluster, index: u32, bytes: &Bytes) -> messages::PutChain {
        let piece = messages::PutPiece { bytes: Bytes::new(), ..self.piece(cluster, index, bytes) };
        messages::PutChain { piece: Some(piece), ..messages::PutChain::default() }
    }

    fn piece(&self, cluster: &Cluster, index: u32, bytes: &Bytes) -> messages::PutPiece {
        let (group, epoch) = cluster.place_of(self.vid);
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
        self.held.lock().get(&disk).is_some_and(|held| held.contains(&index))
    }

    fn note(&self, disk: DiskId, index: u32) {
        self.held.lock().entry(disk).or_default().insert(index);
    }

    /// A member has lost what it had staged.
    pub(crate) fn forget(&self, disk: DiskId) {
        self.held.lock().remove(&disk);
    }

    /// Brings a member the pieces that it lacks.
    /// # Errors
    /// Nobody reached has them, or the member is not reached.
    pub(crate) async fn complete(
        &self,
        cluster: &Cluster,
        disk: DiskId,
        end: Instant,
    ) -> Result<(), CallError> {
        let pieces = *self.pieces.lock();
        for index in (0..pieces).filter(|index| !self.has(disk, *index)) {
            // What holders say of a piece says nothing about the file.
            let found = self.find(cluster, disk, index, end).await;
            let bytes = found.map_err(|error| again_later(&error))?;
            self.put(cluster, disk, index, bytes, end).await?;
            self.note(disk, index);
        }
        Ok(())
    }

    async fn find(
        &self,
        cluster: &Cluster,
        but: DiskId,
        index: u32,
        end: Instant,
    ) -> Result<Bytes, CallError> {
        let holders: Vec<DiskId> = {
            let held = self.held.lock();
            let has = held.iter().filter(|(disk, held)| **disk != but && held.contains(&index));
            has.map(|(disk, _)| *disk).collect()
        };
        let mut last = CallError::Deadline;
        for disk in holders {
            let (group, epoch) = cluster.place_of(self.vid);
            let request =
                messages::GetPiece { group, epoch, volume: self.vid.0, fid: Some(of_id(self.fid.0)), index };
            match cluster.call::<messages::Piece>(disk, Method::GetPiece, &request, end).await {
                Ok(piece) => return Ok(piece.bytes),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn put(
        &self,
        cluster: &Cluster,
        disk: DiskId,
        index: u32,
        bytes: Bytes,
        end: Instant,
    ) -> Result<(), CallError> {
        let request = self.piece(cluster, index, &bytes);
        let done: Result<messages::Done, _> = cluster.call(disk, Method::PutPiece, &request, end).await;
        match done {
            Ok(messages::Done {}) => Ok(()),
            Err(CallError::Unreachable { .. } | CallError::Broken { .. }) => {
                // Others may reach it.
                let head = self.piece_head(cluster, index, &bytes);
                let group = self.vid.birth_group();
                let handed = HandedOver::default();
                let asked = cluster.ask_through(group, disk, head, bytes, &handed, end);
                asked.await.map(drop)
            }
            Err(error) => Err(error),
        }
    }
}
