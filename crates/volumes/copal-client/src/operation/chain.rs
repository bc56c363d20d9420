//! Bytes that go from member to member instead of from here to each, and calls to a member that only others
//! reach.
//!
//! From here go the bytes of one copy. Each hop answers for itself, in whatever order; a hop that does not is
//! served directly, with the same ids. When an operation holds is decided on these answers as on any
//! (`copal_volume::group::ClientOp`). Rule: VOL-32, docs/design/cluster.md
//! Paper: beanfs §3.4.4 (parallel or serial multicast, chosen at run time)

use crate::api::cluster::Cluster;
use crate::net::connection::{CallError, EncodedRequest, StreamedCall};
use crate::operation::delivery::HandedOver;
use crate::operation::transfer::TransferMode;
use bytes::Bytes;
use copal_codec::crc32c;
use copal_proto::{
    CHAIN_BYTES, ChainBody, Method,
    messages::{self, ChainAck, ChainCommit, Failure, PutChain, failure::Code},
};
use copal_volume::group::{DiskId, GroupId};
use prost::Message;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// How long all that are left of a chain may be silent.
const SILENCE: Duration = Duration::from_secs(2);

/// What a hop said: its role, 0 for a piece. Dropped unanswered: it is to be served directly.
pub(crate) type HopTold = oneshot::Receiver<Result<i32, CallError>>;
type Tell = BTreeMap<DiskId, oneshot::Sender<Result<i32, CallError>>>;

/// A chain to be sent, and where its hops' answers come.
pub(crate) struct Chain {
    order: Vec<DiskId>,
    tell: Tell,
}

impl Chain {
    /// To these members; the first to be asked is another each time.
    pub(crate) fn new(mut order: Vec<DiskId>, turn: usize) -> (Chain, BTreeMap<DiskId, HopTold>) {
        let by = turn % order.len().max(1);
        order.rotate_left(by);
        let (mut tell, mut told) = (Tell::new(), BTreeMap::new());
        for disk in &order {
            let (to, from) = oneshot::channel();
            tell.insert(*disk, to);
            told.insert(*disk, from);
        }
        (Chain { order, tell }, told)
    }
}

impl Cluster {
    /// How bytes go to members from here on.
    pub fn set_transfer(&self, transfer: TransferMode) {
        self.inner.transfer.set(transfer);
    }

    /// Bytes of frames that this client has sent.
    pub fn sent_bytes(&self) -> u64 {
        self.inner.connections.link().sent_bytes()
    }

    /// Whether a body goes to so many members as a chain.
    pub(crate) fn chains(&self, bytes: usize, copies: usize) -> bool {
        let fits = copies >= 2 && (1..=CHAIN_BYTES).contains(&bytes);
        let link = self.inner.connections.link();
        fits && match self.inner.transfer.get() {
            TransferMode::Parallel => false,
            TransferMode::Chain => true,
            TransferMode::Auto => bytes as u64 >= link.chain_from(copies),
        }
    }

    /// Sends a chain to its end; hops that have not answered then are dropped unanswered.
    pub(crate) async fn run_chain(
        &self,
        head: PutChain,
        body: Bytes,
        chain: Chain,
        handed: &HandedOver,
        end: Instant,
    ) {
        let Chain { order, mut tell } = chain;
        let Some((_, behind)) = order.split_first() else {
            return;
        };
        let head =
            PutChain { len: body.len() as u64, hops: behind.iter().map(|disk| disk.0).collect(), ..head };
        if let Ok(streamed) = self.send_chain(&order, &head, &body, handed, end).await {
            hear(streamed, &mut tell).await;
        }
    }

    async fn send_chain(
        &self,
        order: &[DiskId],
        head: &PutChain,
        body: &Bytes,
        handed: &HandedOver,
        end: Instant,
    ) -> Result<StreamedCall, CallError> {
        let message = Bytes::from(head.encode_to_vec());
        let first = order.first().copied().ok_or(CallError::Deadline)?;
        let reached = self.reach(first, Method::PutChain, &message, end);
        let connection = tokio::time::timeout(SILENCE, reached).await.map_err(|_| CallError::Deadline)??;
        let permit = self.permit_for(head.volume().unwrap_or_default(), end).await?;
        if !handed.begin(order.iter().copied()) {
            return Err(CallError::Deadline);
        }
        let request = EncodedRequest { message, permit };
        let commit = ChainCommit { len: body.len() as u64, crc32c: crc32c(0, body), drop: false };
        let farewell = ChainCommit { drop: true, ..commit };
        let farewell = (Method::ChainCommit, farewell.encode_to_vec().into());
        let left = end.saturating_duration_since(crate::net::machine::now());
        let begun = connection.begin(Method::PutChain, request, farewell, left);
        let mut streamed = begun.await?;
        for part in ChainBody::parts(body) {
            let part = part.encode_to_vec().into();
            streamed.send(Method::ChainData, part, SILENCE).await?;
        }
        let commit = commit.encode_to_vec().into();
        streamed.finish(Method::ChainCommit, commit, SILENCE).await?;
        Ok(streamed)
    }

    /// Asks another member that is up to pass something on to one that is not reached from here.
    /// # Errors
    /// As that one refuses; `Unreachable`: nobody else reaches it either.
    pub(crate) async fn ask_through(
        &self,
        group: GroupId,
        disk: DiskId,
        head: PutChain,
        body: Bytes,
        handed: &HandedOver,
        end: Instant,
    ) -> Result<i32, CallError> {
        let view = self.map().view(group);
        let others: Vec<DiskId> =
            view.iter().flat_map(|view| view.up()).filter(|other| *other != disk).collect();
        let nobody = || CallError::Unreachable {
            address: format!("disk {disk}"),
            reason: "no other member reaches it".to_owned(),
        };
        let Some(&via) = others.get(self.next_turn() % others.len().max(1)) else {
            return Err(nobody());
        };
        let (mut chain, mut told) = Chain::new(vec![disk], 0);
        chain.order = vec![via, disk];
        let head = PutChain { pass: true, ..head };
        self.run_chain(head, body, chain, handed, end).await;
        match told.remove(&disk) {
            Some(told) => told.await.unwrap_or_else(|_| Err(nobody())),
            None => Err(nobody()),
        }
    }
}

/// Tells what hops answer, until all have or nobody says anything any more.
async fn hear(mut streamed: StreamedCall, tell: &mut Tell) {
    while !tell.is_empty() {
        match streamed.next::<ChainAck>(SILENCE).await {
            Some(Ok(ack)) => ack.hops.into_iter().for_each(|hop| tell_of(hop, tell)),
            Some(Err(CallError::Failed(failure))) => {
                // Of the chain as a whole, before anybody did anything: what it says of the view is so for
                // all.
                let failure = match failure.view.is_some() {
                    true => *failure,
                    false => Failure { code: Code::Busy.into(), text: failure.text, ..Failure::default() },
                };
                for (_, told) in std::mem::take(tell) {
                    // Whoever waited may have given up.
                    let _ = told.send(Err(CallError::Failed(Box::new(failure.clone()))));
                }
            }
            Some(Err(_)) | None => return,
        }
    }
}

fn tell_of(hop: messages::HopAnswer, tell: &mut Tell) {
    let Some(told) = tell.remove(&DiskId(hop.disk)) else {
        return;
    };
    let said = match hop.failure {
        _ if hop.unreached => return,
        Some(failure) => Err(CallError::Failed(Box::new(failure))),
        None => Ok(hop.role),
    };
    // Whoever waited may have given up.
    let _ = told.send(said);
}
