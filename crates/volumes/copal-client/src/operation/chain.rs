//! Chain transfer: bytes pass from replica to replica, and calls are relayed to replicas that only others reach.
//!
//! The client sends the bytes once. Each hop answers for itself, in any order. A hop without an answer is called
//! directly, with the same ids. Whether the operation is complete is decided from these answers like from any
//! others (`copal_volume::group::ClientOp`).
//!
//! Rule: VOL-32, docs/design/cluster.md
//! Paper: beanfs §3.4.4 (parallel or serial multicast, chosen at run time)

use crate::{
    net::{
        connection::{CallError, EncodedRequest, StreamedCall},
        machine,
    },
    operation::{
        delivery::DeliveryRecord,
        transfer::{TransferMode, TransferSetting},
    },
    routing::router::CallRouter,
};
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

/// How long a chain may go without an answer of any of its remaining hops.
const SILENCE: Duration = Duration::from_secs(2);

/// Receives a hop's answer: its role, 0 for a piece. Closed without an answer: the hop is to be called directly.
pub(crate) type HopReceiver = oneshot::Receiver<Result<i32, CallError>>;
type HopSenders = BTreeMap<DiskId, oneshot::Sender<Result<i32, CallError>>>;

/// A chain to be sent, and the senders of its hops' answers.
pub(crate) struct ChainPlan {
    order: Vec<DiskId>,
    senders: HopSenders,
}

impl ChainPlan {
    /// A chain to these replicas. `turn` selects the first one, so that calls rotate.
    pub(crate) fn new(mut order: Vec<DiskId>, turn: usize) -> (ChainPlan, BTreeMap<DiskId, HopReceiver>) {
        let by = turn % order.len().max(1);
        order.rotate_left(by);
        let (mut senders, mut receivers) = (HopSenders::new(), BTreeMap::new());
        for disk in &order {
            let (sender, receiver) = oneshot::channel();
            senders.insert(*disk, sender);
            receivers.insert(*disk, receiver);
        }
        (ChainPlan { order, senders }, receivers)
    }
}

/// Sends chains to replicas.
pub(crate) struct ChainSender {
    router: CallRouter,
    transfer: TransferSetting,
}

impl ChainSender {
    pub(crate) fn new(router: CallRouter) -> ChainSender {
        ChainSender { router, transfer: TransferSetting::default() }
    }

    pub(crate) fn router(&self) -> &CallRouter {
        &self.router
    }

    /// Sets how bytes are sent to replicas from now on.
    pub(crate) fn set_transfer(&self, transfer: TransferMode) {
        self.transfer.set(transfer);
    }

    /// Whether a body of so many bytes is sent to `copies` replicas as a chain.
    pub(crate) fn is_faster(&self, bytes: usize, copies: usize) -> bool {
        let fits = copies >= 2 && (1..=CHAIN_BYTES).contains(&bytes);
        let network = self.router.connections().network_estimate();
        fits && match self.transfer.get() {
            TransferMode::Parallel => false,
            TransferMode::Chain => true,
            TransferMode::Auto => bytes as u64 >= network.chain_threshold(copies),
        }
    }

    /// Sends a chain, and passes on its hops' answers. Returns when all hops have answered or the chain has
    /// ended; the receivers of the other hops are then closed.
    pub(crate) async fn send(
        &self,
        head: PutChain,
        body: Bytes,
        chain: ChainPlan,
        delivery: &DeliveryRecord,
        end: Instant,
    ) {
        let ChainPlan { order, mut senders } = chain;
        let Some((_, behind)) = order.split_first() else {
            return;
        };
        let head =
            PutChain { len: body.len() as u64, hops: behind.iter().map(|disk| disk.0).collect(), ..head };
        if let Ok(call) = self.send_frames(&order, &head, &body, delivery, end).await {
            receive_answers(call, &mut senders).await;
        }
    }

    async fn send_frames(
        &self,
        order: &[DiskId],
        head: &PutChain,
        body: &Bytes,
        delivery: &DeliveryRecord,
        end: Instant,
    ) -> Result<StreamedCall, CallError> {
        let message = Bytes::from(head.encode_to_vec());
        let first = order.first().copied().ok_or(CallError::Deadline)?;
        let connect = self.router.connect(first, Method::PutChain, &message, end);
        let connection = tokio::time::timeout(SILENCE, connect).await.map_err(|_| CallError::Deadline)??;
        let permit = self.router.permit_for(head.volume().unwrap_or_default(), end).await?;
        if !delivery.begin(order.iter().copied()) {
            return Err(CallError::Deadline);
        }
        let request = EncodedRequest { message, permit };
        let commit = ChainCommit { len: body.len() as u64, crc32c: crc32c(0, body), drop: false };
        let abort = ChainCommit { drop: true, ..commit };
        let abort = (Method::ChainCommit, abort.encode_to_vec().into());
        let left = end.saturating_duration_since(machine::now());
        let mut call = connection.begin(Method::PutChain, request, abort, left).await?;
        for part in ChainBody::parts(body) {
            let part = part.encode_to_vec().into();
            call.send(Method::ChainData, part, SILENCE).await?;
        }
        let commit = commit.encode_to_vec().into();
        call.finish(Method::ChainCommit, commit, SILENCE).await?;
        Ok(call)
    }

    /// Has another replica that is up pass a call on to a replica that this client does not reach.
    /// # Errors
    /// As that replica refuses. `Unreachable`: the other replica does not reach it either.
    pub(crate) async fn relay(
        &self,
        group: GroupId,
        disk: DiskId,
        head: PutChain,
        body: Bytes,
        delivery: &DeliveryRecord,
        end: Instant,
    ) -> Result<i32, CallError> {
        let view = self.router.map().view(group);
        let others: Vec<DiskId> =
            view.iter().flat_map(|view| view.up()).filter(|other| *other != disk).collect();
        let unreachable = || CallError::Unreachable {
            address: format!("disk {disk}"),
            reason: "no other replica reaches it".to_owned(),
        };
        let Some(&via) = others.get(self.router.next_turn() % others.len().max(1)) else {
            return Err(unreachable());
        };
        let (mut chain, mut receivers) = ChainPlan::new(vec![disk], 0);
        chain.order = vec![via, disk];
        let head = PutChain { pass: true, ..head };
        self.send(head, body, chain, delivery, end).await;
        match receivers.remove(&disk) {
            Some(answer) => answer.await.unwrap_or_else(|_| Err(unreachable())),
            None => Err(unreachable()),
        }
    }
}

/// Passes hops' answers on, until all have answered or none answers within `SILENCE`.
async fn receive_answers(mut call: StreamedCall, senders: &mut HopSenders) {
    while !senders.is_empty() {
        match call.next::<ChainAck>(SILENCE).await {
            Some(Ok(ack)) => ack.hops.into_iter().for_each(|hop| pass_on(hop, senders)),
            Some(Err(CallError::Failed(failure))) => {
                // The chain as a whole was refused before any hop acted. A newer view concerns all hops.
                let failure = match failure.view.is_some() {
                    true => *failure,
                    false => Failure { code: Code::Busy.into(), text: failure.text, ..Failure::default() },
                };
                for (_, sender) in std::mem::take(senders) {
                    // The receiver may have given up.
                    let _ = sender.send(Err(CallError::Failed(Box::new(failure.clone()))));
                }
            }
            Some(Err(_)) | None => return,
        }
    }
}

fn pass_on(hop: messages::HopAnswer, senders: &mut HopSenders) {
    let Some(sender) = senders.remove(&DiskId(hop.disk)) else {
        return;
    };
    let answer = match hop.failure {
        _ if hop.unreached => return,
        Some(failure) => Err(CallError::Failed(Box::new(failure))),
        None => Ok(hop.role),
    };
    // The receiver may have given up.
    let _ = sender.send(answer);
}
