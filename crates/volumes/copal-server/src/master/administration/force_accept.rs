//! The order of a forced accept: checked, recorded, sent to the member.
//!
//! Paper:  beanfs §6 (dead volumes are repaired by hand)
//! Design: docs/design/cluster.md#rules VOL-35
//! Invariant: the order itself names the time since which updates may be lost, at least as far back as the
//! member reports.

use crate::master::server::MasterServer;
use crate::net::messages::blocking;
use crate::net::status::Status;
use copal_client::name_of_server;
use copal_master::RemainingMember;
use copal_proto::{
    CallClass, Method,
    administration::AcceptReport,
    is_in_sync,
    messages::{self, failure::Code},
};
use copal_volume::group::{Epoch, GroupId};
use std::{sync::Arc, time::Duration};

/// Time limit of the member: it enters the view, and deletes second files.
const PATIENCE: Duration = Duration::from_secs(20);

/// Carries out `group force-accept`.
pub(super) async fn force_accept(
    server: Arc<MasterServer>,
    order: messages::ForceAccept,
) -> Result<AcceptReport, Status> {
    let group = GroupId(order.group);
    let remaining = remaining_member(&server, group, &order.from).await?;
    let found = order_member(&server, group, &remaining, remaining.epoch, true).await?;
    // Below the stable point every member has every operation. A member that is not covered may lack any.
    let since_ms = if found.covered { found.horizon_ms } else { 0 };
    let mut report = AcceptReport {
        group: order.group,
        from: order.from.clone(),
        may_lack_since_ms: since_ms,
        covered: found.covered,
        second_files: found.second_files,
        away: remaining.away.clone(),
        dry_run: order.dry_run,
        whole: None,
        epoch: None,
    };
    if order.dry_run {
        return Ok(report);
    }
    if order.lose_since_ms.is_none_or(|since| since > since_ms) {
        let reason = format!(
            "updates acknowledged since {since_ms} ms may be lost: confirm with lose_since_ms of at most that"
        );
        return Err(Status::new(Code::Invalid, reason));
    }
    let lost = match since_ms {
        0 => "since the group began".to_owned(),
        since => format!("in the {} s before", server.now_ms().saturating_sub(since) / 1000),
    };
    let text = format!(
        "group {group} goes on from what {} has, by order: what was acknowledged {lost} may be lost, and {} second files \
         of names go",
        order.from, found.second_files
    );
    let (this, from) = (Arc::clone(&server), order.from);
    let accepted = blocking(move || Ok(this.master.force_accept(group, &from, &text, this.now_ms())?));
    let epoch = accepted.await?;
    let became = order_member(&server, group, &remaining, epoch, false).await?;
    report.whole = Some(is_in_sync(became.role));
    report.epoch = Some(became.epoch);
    Ok(report)
}

async fn remaining_member(
    server: &Arc<MasterServer>,
    group: GroupId,
    from: &str,
) -> Result<RemainingMember, Status> {
    let (this, from) = (Arc::clone(server), from.to_owned());
    blocking(move || Ok(this.master.remaining_member(group, &from)?)).await
}

async fn order_member(
    server: &MasterServer,
    group: GroupId,
    remaining: &RemainingMember,
    epoch: Epoch,
    dry_run: bool,
) -> Result<messages::AcceptAllReply, Status> {
    let member = &remaining.server;
    let request = messages::AcceptAll { group: group.0, epoch: epoch.0, term: server.master.term(), dry_run };
    let called = async {
        let name = name_of_server(&member.server_uuid);
        let connection = server.connections.connect(&member.address, name, CallClass::Control).await?;
        connection.call(Method::AcceptAll, &request, PATIENCE).await
    };
    called.await.map_err(|error| {
        let name = &member.name;
        Status::new(
            Code::Unavailable,
            format!("{name} did not carry out the order: {error}; repeat the order"),
        )
    })
}
