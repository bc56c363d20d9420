//! Requests of operators, each with a typed reply.
//!
//! Not here: which clients may send them (`permits`), their effects (`copal_master`).

mod clients;
mod force_accept;

use crate::master::membership;
use crate::master::server::MasterServer;
use crate::net::messages::{blocking, encoded, read};
use crate::net::status::Status;
use crate::security::token::JoinRole;
use bytes::Bytes;
use copal_master::MoveOrder;
use copal_proto::{
    Method,
    administration::{AdminRequest, EventList, JoinSecret, LossReport, reply_message},
    messages::{self, failure::Code},
};
use copal_volume::group::GroupId;
use std::sync::Arc;

/// Events in one reply.
const EVENTS: usize = 1000;
/// Lifetime of a token, minutes.
const TOKEN_MINUTES: u32 = 10;

/// Encodes the reply to a request.
fn replied<R: AdminRequest>(reply: &R::Reply) -> Result<Bytes, Status> {
    let message = reply_message::<R>(reply);
    let message = message.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(encoded(&message))
}

/// Reads a request, carries it out and encodes its reply.
fn answer<R: AdminRequest>(
    message: Bytes,
    carry_out: impl FnOnce(R) -> Result<R::Reply, Status>,
) -> Result<Bytes, Status> {
    replied::<R>(&carry_out(read(message)?)?)
}

/// The move of an order.
fn wanted(order: messages::WantedMove) -> MoveOrder {
    MoveOrder { group: GroupId(order.group), from: order.from, to: order.to }
}

fn no_group(group: u32) -> Status {
    Status::new(Code::NotFound, format!("there is no group {group}"))
}

/// Answers a call of [`Method::ADMINISTRATION`].
pub(crate) async fn administer(
    server: Arc<MasterServer>,
    method: Method,
    message: Bytes,
) -> Result<Bytes, Status> {
    match method {
        Method::LoseServer => {
            let messages::LoseServer { name } = read(message)?;
            membership::lose(server, name.clone()).await?;
            replied::<messages::LoseServer>(&LossReport { lost: name })
        }
        Method::ForceAccept => {
            let report = force_accept::force_accept(server, read(message)?).await?;
            replied::<messages::ForceAccept>(&report)
        }
        Method::ListClients | Method::AddClient | Method::RenewClient | Method::RemoveClient => {
            blocking(move || clients::change_clients(&server, method, message)).await
        }
        Method::ShowStatus
        | Method::ListGroups
        | Method::ShowGroup
        | Method::ExplainGroup
        | Method::ListDisks
        | Method::ListEvents
        | Method::PlanRebalance => blocking(move || answer_query(&server, method, message)).await,
        _ => blocking(move || carry_out(&server, method, message)).await,
    }
}

/// Answers a request that changes nothing.
fn answer_query(server: &MasterServer, method: Method, message: Bytes) -> Result<Bytes, Status> {
    let master = &server.master;
    match method {
        Method::ListGroups => answer(message, |_: messages::ListGroups| Ok(master.groups())),
        Method::ShowGroup => answer(message, |messages::ShowGroup { group }| {
            master.group(GroupId(group)).ok_or_else(|| no_group(group))
        }),
        Method::ExplainGroup => answer(message, |messages::ExplainGroup { group }| {
            master.why_degraded(GroupId(group), server.now_ms())?.ok_or_else(|| no_group(group))
        }),
        Method::ListDisks => answer(message, |_: messages::ListDisks| Ok(master.disks())),
        Method::ListEvents => answer(message, |messages::ListEvents { after }| {
            let events = master.events(after, EVENTS)?;
            Ok(EventList { events: events.into_iter().map(Into::into).collect() })
        }),
        Method::PlanRebalance => answer(message, |_: messages::PlanRebalance| Ok(master.rebalance_plan())),
        _ => answer(message, |_: messages::ShowStatus| Ok(server.status())),
    }
}

/// Carries out an order that changes servers, copies or moves.
fn carry_out(server: &MasterServer, method: Method, message: Bytes) -> Result<Bytes, Status> {
    let (master, now_ms) = (&server.master, server.now_ms());
    match method {
        Method::DrawToken => answer(message, |order: messages::DrawToken| {
            let joins = if order.master { JoinRole::Master } else { JoinRole::DataServer };
            let token = server.draw_token(joins).map_err(|error| Status::new(Code::Internal, error))?;
            Ok(JoinSecret { token: token.to_string(), minutes: TOKEN_MINUTES })
        }),
        Method::DrainServer => answer(message, |order: messages::DrainServer| {
            Ok(master.drain(&order.name, order.undo, order.dry_run, now_ms)?)
        }),
        Method::RemoveServer => answer(message, |order: messages::RemoveServer| {
            Ok(master.remove_server(&order.name, order.dry_run, now_ms)?)
        }),
        Method::AnnounceAbsence => answer(message, |order: messages::AnnounceAbsence| {
            Ok(master.announce_absence(&order.name, order.for_ms, order.dry_run, now_ms)?)
        }),
        Method::BoostGroup => {
            answer(message, |order: messages::BoostGroup| Ok(master.boost(GroupId(order.group), now_ms)?))
        }
        Method::MoveGroup => answer(message, |messages::MoveGroup { r#move, dry_run }| {
            let order = r#move.ok_or_else(|| Status::new(Code::Invalid, "an order without a move"))?;
            Ok(master.move_group(&wanted(order), dry_run, now_ms)?)
        }),
        Method::CancelMove => answer(message, |order: messages::CancelMove| {
            Ok(master.cancel_move(GroupId(order.group), order.dry_run, now_ms)?)
        }),
        Method::ApplyRebalance => answer(message, |order: messages::ApplyRebalance| {
            let moves: Vec<MoveOrder> = order.moves.into_iter().map(wanted).collect();
            Ok(master.rebalance_apply(&moves, order.dry_run, now_ms)?)
        }),
        Method::PauseRebalance => answer(message, |order: messages::PauseRebalance| {
            Ok(master.rebalance_pause(order.dry_run, now_ms)?)
        }),
        _ => Err(Status::new(Code::Invalid, "a master does not answer that")),
    }
}
