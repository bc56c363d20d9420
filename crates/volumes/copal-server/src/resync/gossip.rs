//! Gossip: members exchange seals and digests. Each learns from them the stable point and the operations that
//! it lacks.
//!
//! Every three seconds a server seals due buckets of groups with a journal. Then it exchanges seals and
//! digests of sealed buckets with every other member that is up. From these reports it computes the stable
//! point, and cuts its journal 30 s below that. If a bucket differs that all participating members have
//! sealed, `roll_forward` copies the missing operations. A group without writes has no journal, and costs
//! nothing.
//!
//! Design: docs/design/cluster.md#rules VOL-17, VOL-18
//! Invariants
//! - A report counts only in the epoch that it names.
//! - A report of a disk is accepted only from the server of that disk, which its certificate proves.

use crate::net::messages::{blocking, encoded};
use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use crate::replica::host::ReplicaHost;
use crate::resync::roll_forward;
use bytes::Bytes;
use copal_client::name_of_server;
use copal_proto::{
    CallClass, Method, id,
    messages::{self, failure::Code},
    of_id, role, role_of,
};
use copal_volume::group::{
    Bucket, BucketSeal, DiskId, Epoch, GroupId, OperationDigest, PeerStatus, SealReport, View, stable_point,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Interval of rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(3);
/// Time limit of one exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Groups in one message.
const MAX_GROUPS: usize = 200;
/// Digests of one group in one message. Later buckets follow once these are below the stable point.
const MAX_DIGESTS: usize = 400;

/// The stable point of a group, from the reports of all members. If a member has sent no report, or is not
/// covered, the result is the highest stable point that this member or a covered one has reported.
fn stable(view: &View, own: (DiskId, &PeerStatus), reports: &BTreeMap<DiskId, PeerStatus>) -> Bucket {
    // Another member's stable point is also right for this one: it was raised only when all members had equal
    // sealed buckets below it. Sealed buckets grow only toward the union, so they stay equal.
    let report = reports.values().filter(|report| report.is_covered);
    let from = report.map(|report| report.stable_point).fold(own.1.stable_point, Bucket::max);
    let all = view.members.iter().map(|(disk, _)| match *disk == own.0 {
        true => Some(own.1),
        false => reports.get(disk),
    });
    let covered = all.map(|report| report.filter(|report| report.is_covered));
    let Some(all) = covered.collect::<Option<Vec<&PeerStatus>>>() else {
        return from;
    };
    let all = all.into_iter().map(|report| SealReport { seal: report.seal, digests: report.digests.clone() });
    stable_point(from, &all.collect::<Vec<SealReport>>())
}

/// Seals due buckets and exchanges gossip, until the task is dropped.
pub(crate) async fn run(host: Arc<ReplicaHost>) {
    loop {
        tokio::time::sleep(ROUND_INTERVAL).await;
        if let Err(error) = run_round(Arc::clone(&host)).await {
            tracing::debug!(text = error.text(), "gossip round failed");
        }
    }
}

async fn run_round(host: Arc<ReplicaHost>) -> Result<(), Status> {
    let this = Arc::clone(&host);
    let groups = blocking(move || {
        let with_journal = this.store.seal_due(&this.peer_status.highest_seals())?;
        let mut groups: BTreeSet<GroupId> = with_journal.into_iter().collect();
        groups.extend(this.peer_status.with_digests());
        Ok(groups)
    });
    let groups = groups.await?;
    let mut by_disk: BTreeMap<DiskId, Vec<GroupId>> = BTreeMap::new();
    for &group in &groups {
        let Some(view) = host.map.view(group) else {
            continue;
        };
        let others = view.members.iter().filter(|(disk, role)| *disk != host.disk() && role.is_up());
        for (disk, _) in others {
            by_disk.entry(*disk).or_default().push(group);
        }
    }
    for (disk, of_disk) in by_disk {
        for part in of_disk.chunks(MAX_GROUPS) {
            if let Err(error) = exchange(&host, disk, part).await {
                tracing::debug!(%disk, %error, "gossip exchange failed");
            }
        }
    }
    for group in groups {
        if let Err(error) = advance_group(Arc::clone(&host), group).await {
            tracing::debug!(%group, text = error.text(), "stable point not raised");
        }
    }
    Ok(())
}

/// Exchanges reports of some groups with a member.
async fn exchange(
    host: &ReplicaHost,
    disk: DiskId,
    groups: &[GroupId],
) -> Result<(), copal_client::CallError> {
    let own = own_reports(host, groups.to_vec()).await;
    let own = own.map_err(|status| copal_client::CallError::Failed(Box::new(status.into())))?;
    let Some(place) = host.map.place(disk) else {
        return Ok(());
    };
    let name = name_of_server(&place.server_uuid);
    let connection = host.connections.connect(&place.address, name, CallClass::Control).await?;
    let gossip = messages::Gossip { disk: host.disk().0, groups: own };
    let answer: messages::Gossip = connection.call(Method::Gossip, &gossip, EXCHANGE_TIMEOUT).await?;
    if DiskId(answer.disk) == disk {
        record_reports(host, disk, answer.groups);
    }
    Ok(())
}

async fn own_reports(host: &ReplicaHost, groups: Vec<GroupId>) -> Result<Vec<messages::GroupGossip>, Status> {
    let (store, seed) = (host.store.clone(), host.digest_seed());
    blocking(move || {
        let mut all = Vec::new();
        for group in groups {
            let report = store.peer_status(group, seed)?;
            all.extend(report.map(|report| report_message(group, &report)));
        }
        Ok(all)
    })
    .await
}

fn record_reports(host: &ReplicaHost, from: DiskId, groups: Vec<messages::GroupGossip>) {
    for message in groups {
        let group = GroupId(message.group);
        let is_member = host.map.view(group).is_some_and(|view| {
            let mut members = view.members.iter();
            members.any(|(disk, _)| *disk == from)
        });
        // A report is dropped if its seal lies in the future: a wrong clock has made that seal. The member
        // that sent it withdraws the seal when it enters the next view (VOL-43).
        let is_believed = |report: &PeerStatus| !host.store.is_seal_in_future(report.seal);
        if let Some(report) = report_of(message).filter(|report| is_member && is_believed(report)) {
            host.peer_status.record(group, from, report);
        }
    }
}

/// Records the reports of another member, and replies with this member's reports of the same groups.
pub(crate) async fn answer_gossip(
    host: &ReplicaHost,
    peer: &PeerIdentity,
    request: messages::Gossip,
) -> Result<Bytes, Status> {
    let from = DiskId(request.disk);
    let place = host.map.place(from);
    if !place.is_some_and(|place| peer.is(&name_of_server(&place.server_uuid))) {
        return Err(Status::new(Code::Denied, "gossip of a disk comes from its own server only"));
    }
    let groups: Vec<GroupId> = request.groups.iter().map(|report| GroupId(report.group)).collect();
    if groups.len() > MAX_GROUPS {
        return Err(Status::new(Code::TooLarge, "a gossip message has at most 200 groups"));
    }
    record_reports(host, from, request.groups);
    Ok(encoded(&messages::Gossip { disk: host.disk().0, groups: own_reports(host, groups).await? }))
}

/// Raises the stable point of a group, and rolls forward the sealed buckets above it.
async fn advance_group(host: Arc<ReplicaHost>, group: GroupId) -> Result<(), Status> {
    let this = Arc::clone(&host);
    let seed = host.digest_seed();
    let own = blocking(move || Ok(this.store.peer_status(group, seed)?));
    let (Some(own), Some(view)) = (own.await?, host.map.view(group)) else {
        return Ok(());
    };
    if view.epoch != own.epoch || !own.is_covered {
        return Ok(());
    }
    let reports = host.peer_status.in_epoch(group, own.epoch);
    let stable = stable(&view, (host.disk(), &own), &reports);
    // The call also cuts the journal. If no sealed operation is left to compare, it is made even if the
    // stable point does not rise. An error or a power loss may have left rows to cut.
    if stable > own.stable_point || own.digests.is_empty() {
        let this = Arc::clone(&host);
        blocking(move || Ok(this.store.raise_stable_point(group, stable)?)).await?;
    }
    roll_forward::roll_forward_group(&host, group, &view, &own, &reports).await
}

fn report_message(group: GroupId, report: &PeerStatus) -> messages::GroupGossip {
    let digests = report.digests.iter().take(MAX_DIGESTS);
    let digest = |(bucket, digest): (&Bucket, &OperationDigest)| messages::BucketDigest {
        bucket: bucket.0,
        count: digest.count,
        sum: Some(of_id(digest.sum)),
    };
    // Buckets whose digests do not fit are reported as not sealed. Otherwise a bucket without a digest would
    // count as empty.
    let below = match report.digests.keys().nth(MAX_DIGESTS) {
        Some(&first_omitted) => first_omitted,
        None => report.seal.below,
    };
    messages::GroupGossip {
        group: group.0,
        epoch: report.epoch.0,
        role: role_of(report.role).into(),
        closed_below: below.0,
        horizon: report.stable_point.0,
        covered: report.is_covered,
        digests: digests.map(digest).collect(),
    }
}

/// The report in a message. `None`: its role is unknown, or is that of a member that is down.
fn report_of(message: messages::GroupGossip) -> Option<PeerStatus> {
    let role = role(message.role).filter(|role| role.is_up())?;
    let digest = |digest: messages::BucketDigest| {
        let value = OperationDigest { count: digest.count, sum: id(digest.sum) };
        (Bucket(digest.bucket), value)
    };
    Some(PeerStatus {
        epoch: Epoch(message.epoch),
        role,
        seal: BucketSeal { below: Bucket(message.closed_below) },
        stable_point: Bucket(message.horizon),
        is_covered: message.covered,
        digests: message.digests.into_iter().map(digest).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::member_scene::{EPOCH, GROUP, MemberScene, NOW, OTHER};
    use crate::net::status::Status;
    use crate::replica::peer_status::sealed_by_all;
    use copal_volume::group::{BUCKET_MS, Role};

    const ME: DiskId = DiskId(1);

    fn view(roles: &[Role]) -> View {
        let members = roles.iter().enumerate();
        View {
            group: GroupId(3),
            epoch: Epoch(7),
            members: members.map(|(at, role)| (DiskId(at as u32 + 1), *role)).collect(),
            replicas: 3,
            min_ack: 2,
        }
    }

    fn report(below: u64, stable_point: u64, buckets: &[(u64, u64)]) -> PeerStatus {
        let digest =
            |&(bucket, count): &(u64, u64)| (Bucket(bucket), OperationDigest { count, sum: count.into() });
        PeerStatus {
            epoch: Epoch(7),
            role: Role::Normal,
            seal: BucketSeal { below: Bucket(below) },
            stable_point: Bucket(stable_point),
            is_covered: true,
            digests: buckets.iter().map(digest).collect(),
        }
    }

    fn reports(others: &[PeerStatus]) -> BTreeMap<DiskId, PeerStatus> {
        let others = others.iter().enumerate();
        others.map(|(at, report)| (DiskId(at as u32 + 2), report.clone())).collect()
    }

    #[test]
    fn a_member_that_is_down_or_new_holds_back_the_stable_point() {
        let own = report(9, 2, &[(4, 1)]);
        let all = view(&[Role::Normal; 3]);
        let of = |others: &[PeerStatus]| stable(&all, (ME, &own), &reports(others));
        assert_eq!(of(&[own.clone(), own.clone()]), Bucket(9));
        assert_eq!(of(std::slice::from_ref(&own)), Bucket(2), "one member sent no gossip");
        let mut new = own.clone();
        new.is_covered = false;
        assert_eq!(of(&[own.clone(), new]), Bucket(2));
        assert_eq!(of(&[own.clone(), report(9, 2, &[(4, 2)])]), Bucket(4), "they differ");
    }

    #[test]
    fn a_higher_stable_point_of_another_member_is_adopted() {
        let own = report(9, 2, &[(4, 1)]);
        let all = view(&[Role::Normal; 3]);
        // The other member has cut the buckets without a digest.
        assert_eq!(stable(&all, (ME, &own), &reports(&[report(9, 6, &[])])), Bucket(6));
    }

    #[test]
    fn a_member_without_gossip_has_sealed_nothing() {
        let seals = |reports: &BTreeMap<DiskId, PeerStatus>| {
            sealed_by_all(
                &view(&[Role::Normal, Role::Recovering, Role::Failed]),
                (ME, BucketSeal { below: Bucket(9) }),
                reports,
            )
        };
        let none = seals(&BTreeMap::new());
        assert_eq!(none, [BucketSeal { below: Bucket(9) }, BucketSeal::default()]);
        let two = seals(&reports(&[report(8, 0, &[])]));
        assert_eq!(two[1], BucketSeal { below: Bucket(8) }, "a member that is down does not take part");
    }

    #[test]
    fn buckets_beyond_the_message_limit_are_not_reported_as_sealed() {
        let buckets: Vec<(u64, u64)> = (0..500).map(|bucket| (bucket, 1)).collect();
        let message = report_message(GroupId(3), &report(600, 0, &buckets));
        assert_eq!((message.closed_below, message.digests.len()), (400, 400));
        let small = report_message(GroupId(3), &report(9, 2, &[(4, 1)]));
        assert_eq!(report_of(small), Some(report(9, 2, &[(4, 1)])));
    }

    /// Symptom: a server could accept another member's seal from the future of the cluster's clock, and no
    /// test noticed. Fix: this test; the member withdraws the seal in the next view (VOL-43).
    #[tokio::test]
    async fn a_reported_seal_counts_unless_it_lies_in_the_future() {
        let script = |_, _| Err(Status::new(Code::Denied, "nothing is asked"));
        let scene = MemberScene::new((Role::Normal, Role::Normal), script).await;
        let reports = |from, below_ms: u64| {
            let report = PeerStatus { epoch: EPOCH, ..report(below_ms / BUCKET_MS, 0, &[]) };
            record_reports(&scene.host, from, vec![report_message(GROUP, &report)]);
            let reports = scene.host.peer_status.in_epoch(GROUP, EPOCH);
            reports.get(&from).map(|report| report.seal.below)
        };
        assert_eq!(reports(DiskId(9), NOW - 60_000), None, "it is no member");
        assert_eq!(reports(OTHER, NOW + 3_600_000), None);
        let below = Bucket((NOW - 60_000) / BUCKET_MS);
        assert_eq!(reports(OTHER, NOW - 60_000), Some(below));
        assert_eq!(reports(OTHER, NOW + 3_600_000), Some(below), "its earlier report stays");
    }
}
