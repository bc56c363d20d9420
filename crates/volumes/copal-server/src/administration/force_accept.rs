//! The order to go on from what one member of a group has: looked at, written down, told to the member.
//!
//! Paper:  beanfs §6 (dead volumes are repaired by hand)
//! Design: docs/design/cluster.md#rules VOL-35
//! Invariant: what may be lost is named by whoever orders it, as far back as the member itself says.

use crate::{answers::blocking, master_server::MasterServer, status::Status};
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

/// How long the member may take: it enters the view, and buries second files.
const PATIENCE: Duration = Duration::from_secs(20);

impl MasterServer {
    /// Carries out `group force-accept`.
    pub(super) async fn force_accept(
        self: Arc<Self>,
        order: messages::ForceAccept,
    ) -> Result<AcceptReport, Status> {
        let group = GroupId(order.group);
        let remaining = self.look(group, &order.from).await?;
        let found = self.tell(group, &remaining, remaining.epoch, true).await?;
        // Before the horizon every member has every operation; a member that is not covered may lack any.
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
                "what was acknowledged since {since_ms} ms may be lost: say so with lose_since_ms, that or less"
            );
            return Err(Status::new(Code::Invalid, reason));
        }
        let lost = match since_ms {
            0 => "since the group began".to_owned(),
            since => format!("in the {} s before", self.now_ms().saturating_sub(since) / 1000),
        };
        let text = format!(
            "group {group} goes on from what {} has, by order: what was acknowledged {lost} may be lost, and {} second files \
             of names go",
            order.from, found.second_files
        );
        let (this, from) = (Arc::clone(&self), order.from);
        let accepted = blocking(move || Ok(this.master.force_accept(group, &from, &text, this.now_ms())?));
        let epoch = accepted.await?;
        let became = self.tell(group, &remaining, epoch, false).await?;
        report.whole = Some(is_in_sync(became.role));
        report.epoch = Some(became.epoch);
        Ok(report)
    }

    async fn look(self: &Arc<Self>, group: GroupId, from: &str) -> Result<RemainingMember, Status> {
        let (this, from) = (Arc::clone(self), from.to_owned());
        blocking(move || Ok(this.master.remaining_member(group, &from)?)).await
    }

    async fn tell(
        &self,
        group: GroupId,
        remaining: &RemainingMember,
        epoch: Epoch,
        dry_run: bool,
    ) -> Result<messages::AcceptAllReply, Status> {
        let server = &remaining.server;
        let request =
            messages::AcceptAll { group: group.0, epoch: epoch.0, term: self.master.term(), dry_run };
        let told = async {
            let name = name_of_server(&server.server_uuid);
            let connection = self.connections.connect(&server.address, name, CallClass::Control).await?;
            connection.call(Method::AcceptAll, &request, PATIENCE).await
        };
        told.await.map_err(|error| {
            let name = &server.name;
            Status::new(Code::Unavailable, format!("{name} has not done it: {error}; give the order again"))
        })
    }
}
