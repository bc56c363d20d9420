//! Copies that are to lie elsewhere: one group that an administrator moves, a plan for all disks, what leaves
//! a disk that is too full.
//!
//! What an administrator moves is kept in the database until it has ended (`tasks_kept`); what the master
//! moves by itself is found again by the next reign.
//!
//! Paper: beanfs §5.3 (migration, by hand and by watermarks)
//! Invariants
//! - A plan is carried out as it is or refused as a whole; nothing else moves for it.
//! - No move fills its target above the low watermark, or brings two members of a group closer to each other,
//!   by racks and zones.
//!
//! Not here: which moves are worth making (`copal_volume::group::rebalance`), how a copy is made
//! (`replacing`).

use crate::master::{Master, MasterError, Mastered, Reign};
use crate::recovery::recovery_state::{Move, Need};
use crate::tables::meta_store::{MemberKind, ServerRow};
use copal_proto::administration::{
    CancelReport, DiskForecast, MoveReport, PauseReport, PlannedMove, RebalancePlan,
};
use copal_volume::{
    VolumeError,
    group::{
        DiskId, GroupId, Role,
        placement::{self, DiskFacts, HARD_STOP_PERCENT, NoPlace},
        rebalance::{self, Fill, Goal, GroupFacts, Plan},
    },
};

/// Between two looks at which disks are too full; what has left one is not given back at once.
const LOOK_MS: u64 = 60_000;

/// A move as an administrator or a plan says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedMove {
    /// The group.
    pub group: GroupId,
    /// Name of the server that it leaves.
    pub from: String,
    /// Name of the server that it goes to.
    pub to: String,
}

/// What of a plan is still to do.
struct Checked {
    moves: Vec<(GroupId, Move)>,
    /// Moves that are made, or under way.
    done: usize,
    bytes: u64,
}

impl Master {
    /// Moves a copy of a group. The one that leaves stays whole until the other is.
    /// # Errors
    /// `NotFound`: there is no such group. `Denied`: what is wrong with the move. `Meta`.
    pub fn move_group(&self, wanted: &WantedMove, dry_run: bool, now_ms: u64) -> Mastered<MoveReport> {
        if !self.reign.lock().map.groups.contains_key(&wanted.group) {
            return Err(VolumeError::NotFound.into());
        }
        self.rebalance_apply(std::slice::from_ref(wanted), dry_run, now_ms)
    }

    /// Ends the move of a group, or what a server that is emptied has begun with it: the copy that was to
    /// leave stays, and what was half copied goes.
    /// # Errors
    /// `NotFound`: there is no such group. `Denied`: its server is being emptied. `Meta`.
    pub fn cancel_move(&self, group: GroupId, dry_run: bool, now_ms: u64) -> Mastered<CancelReport> {
        let mut reign = self.reign.lock();
        let row = reign.map.groups.get(&group).ok_or(VolumeError::NotFound)?;
        let leaving =
            row.members.iter().find(|(_, kind)| *kind == MemberKind::Leaving).map(|(disk, _)| *disk);
        let is_wanted = reign.recovery.moves.contains_key(&group);
        if leaving.is_none() && !is_wanted {
            return Ok(CancelReport { group: group.0, moves: false, has_begun: None, dry_run });
        }
        let drains =
            leaving.and_then(|disk| reign.map.servers.get(&disk)).filter(|server| server.is_draining);
        if let Some(server) = drains {
            let name = &server.name;
            let reason = format!(
                "group {group} leaves {name}, which is being emptied; `copal node drain {name} --undo` ends that"
            );
            return Err(MasterError::Denied(reason));
        }
        if !dry_run {
            reign.recovery.moves.remove(&group);
            if let Some(disk) = leaving {
                reign.stay(disk, Some(group))?;
            }
            reign.note(now_ms, "move", &format!("group {group} stays where it is after all"))?;
            reign.replace(self.options.permanent_after_ms, now_ms)?;
            self.changed.notify_all();
        }
        Ok(CancelReport { group: group.0, moves: true, has_begun: Some(leaving.is_some()), dry_run })
    }

    /// What would bring full disks down and make all about equally full. Moves nothing.
    pub fn rebalance_plan(&self) -> RebalancePlan {
        let reign = self.reign.lock();
        let (facts, groups) = (reign.disk_facts(), reign.group_facts());
        let rate = reign.slowest_rate();
        drop(reign);
        // Without the lock: in a large cluster it takes its time.
        let plan = rebalance::plan(&facts, &groups, Goal::Even);
        self.reign.lock().named_plan(&plan, rate)
    }

    /// Carries a plan out, and nothing else; what of it is done already is skipped.
    /// # Errors
    /// `Denied`: a move of it cannot be, or would fill a disk or bring members into one rack: nothing was
    /// begun. `Meta`.
    pub fn rebalance_apply(&self, wanted: &[WantedMove], dry_run: bool, now_ms: u64) -> Mastered<MoveReport> {
        let mut reign = self.reign.lock();
        let Checked { moves, done, bytes } = reign.checked(wanted).map_err(MasterError::Denied)?;
        let groups = moves.len();
        if !dry_run {
            reign.pause_moves(false)?;
            for &(group, wanted) in &moves {
                reign.recovery.moves.insert(group, wanted);
            }
            if let [only] = wanted {
                let (group, from, to) = (only.group, &only.from, &only.to);
                reign.note(now_ms, "move", &format!("group {group} moves from {from} to {to}"))?;
            } else {
                reign.note(now_ms, "rebalance", &format!("{groups} groups move by a plan"))?;
            }
            reign.replace(self.options.permanent_after_ms, now_ms)?;
            self.changed.notify_all();
        }
        Ok(MoveReport { groups, done, bytes, dry_run, ends_in_s: reign.seconds_for(bytes, groups) })
    }

    /// Begins no more moves, of plans or by itself, until a plan is carried out again. Those that have begun
    /// go on.
    /// # Errors
    /// `Meta`.
    pub fn rebalance_pause(&self, dry_run: bool, now_ms: u64) -> Mastered<PauseReport> {
        let mut reign = self.reign.lock();
        let has_begun = |group: &GroupId| {
            let row = reign.map.groups.get(group);
            row.is_some_and(|row| row.members.iter().any(|(_, kind)| *kind == MemberKind::Leaving))
        };
        let (running, waiting): (Vec<GroupId>, Vec<GroupId>) =
            reign.recovery.moves.keys().copied().partition(has_begun);
        if !dry_run {
            reign.pause_moves(true)?;
            for group in &waiting {
                reign.recovery.moves.remove(group);
            }
            let text =
                format!("no more moves begin: {} are left out, {} go on", waiting.len(), running.len());
            reign.note(now_ms, "rebalance", &text)?;
            reign.replace(self.options.permanent_after_ms, now_ms)?;
            self.changed.notify_all();
        }
        Ok(PauseReport { left_out: waiting.len(), running: running.len(), dry_run })
    }
}

impl Reign {
    fn group_facts(&self) -> Vec<GroupFacts> {
        let facts = self.map.groups.values().map(|row| {
            let view = self.map.view(row);
            let is_whole = |&(disk, role): &(DiskId, Role)| self.role(&view, disk.0, role).is_in_sync();
            let is_full = row.members.iter().all(|(_, kind)| *kind == MemberKind::Full);
            GroupFacts {
                group: row.group,
                bytes: self.group_bytes(row.group),
                members: row.members.iter().map(|(disk, _)| DiskId(*disk)).collect(),
                is_whole: is_full
                    && view.members.iter().all(is_whole)
                    && !self.recovery.moves.contains_key(&row.group),
            }
        });
        facts.collect()
    }

    /// Bytes a second of the slowest disk, by what servers are given.
    fn slowest_rate(&self) -> Option<u64> {
        let rates = self.watches.values().map(|watch| watch.recovery_bytes_per_s);
        rates.filter(|rate| *rate > 0).min()
    }

    fn name_of(&self, disk: DiskId) -> String {
        let server = self.map.servers.get(&disk.0);
        server.map_or_else(|| format!("disk {disk}"), |server| server.name.clone())
    }

    /// A plan with the names of servers.
    fn named_plan(&self, plan: &Plan, rate: Option<u64>) -> RebalancePlan {
        let moves = plan.moves.iter().map(|next| PlannedMove {
            group: next.group.0,
            from: self.name_of(next.source),
            to: self.name_of(next.target),
            bytes: next.bytes,
        });
        let disk = |fill: &Fill| DiskForecast {
            name: self.name_of(fill.disk),
            capacity_bytes: fill.capacity_bytes,
            before_bytes: fill.before_bytes,
            after_bytes: fill.after_bytes,
            before_groups: fill.before_groups,
            after_groups: fill.after_groups,
        };
        // One copy in and one out per disk: the busiest disk is done last.
        let hours = rate.map(|rate| plan.busiest_bytes() as f64 / rate as f64 / 3600.0);
        RebalancePlan {
            v: RebalancePlan::VERSION,
            moves: moves.collect(),
            disks: plan.disks.iter().map(disk).collect(),
            bytes: plan.moved_bytes(),
            hours,
            refused: self.refusals(plan),
        }
    }

    /// Why disks stay too full, a sentence each.
    fn refusals(&self, plan: &Plan) -> Vec<String> {
        let refused = plan.refused.iter();
        refused.map(|refusal| format!("{} {refusal}", self.name_of(refusal.disk()))).collect()
    }

    /// The moves of a plan that are still to make, how many are made, and their bytes; or what is wrong with
    /// one of them.
    fn checked(&self, wanted: &[WantedMove]) -> Result<Checked, String> {
        let mut facts = self.disk_facts();
        let (mut moves, mut done, mut bytes) = (Vec::new(), 0, 0_u64);
        for WantedMove { group, from, to } in wanted {
            let refused = |why: String| {
                Err(format!("group {group} cannot move from {from} to {to}: {why}; nothing was begun"))
            };
            let Some(row) = self.map.groups.get(group) else {
                return refused("there is no such group".to_owned());
            };
            let server = |name: &str| self.map.server_named(name).ok_or_else(|| name.to_owned());
            let (source, target) = match (server(from), server(to)) {
                (Ok(source), Ok(target)) => (source.disk, target.disk),
                (Err(name), _) | (_, Err(name)) => {
                    return refused(format!("there is no server {name}; `copal node ls` lists them"));
                }
            };
            let kind_of =
                |disk: u32| row.members.iter().find(|(member, _)| *member == disk).map(|(_, kind)| *kind);
            match (kind_of(source), kind_of(target)) {
                (None, Some(_)) => {
                    done += 1;
                    continue;
                }
                (None, None) => return refused(format!("{from} does not hold it")),
                (Some(_), Some(_)) => return refused(format!("{to} holds it, too")),
                (Some(MemberKind::Full), None) => {}
                (Some(_), None) => return refused("its members change already".to_owned()),
            }
            if let Some(present) = self.recovery.moves.get(group) {
                if (present.from, present.to) == (source, target) {
                    done += 1;
                    continue;
                }
                return refused(
                    "another move of it is under way; `copal group move GROUP --cancel` ends it".to_owned(),
                );
            }
            if moves.iter().any(|(other, _)| other == group) {
                return refused("the plan moves it twice".to_owned());
            }
            let size = self.group_bytes(*group);
            let members: Vec<DiskId> = row.members.iter().map(|(disk, _)| DiskId(*disk)).collect();
            if let Err(reason) = place_at(*group, &members, size, &facts, source, target) {
                return refused(format!("{to} cannot take it ({reason})"));
            }
            for disk in facts.iter_mut().filter(|facts| facts.disk.0 == target) {
                disk.used_bytes = disk.used_bytes.saturating_add(size);
            }
            bytes = bytes.saturating_add(size);
            let made = Move { from: source, to: target, is_ordered: true };
            moves.push((*group, made));
        }
        Ok(Checked { moves, done, bytes })
    }

    /// Lets groups leave disks that are too full, if nobody has paused that; looks each minute, and not
    /// before what it moved last has arrived.
    pub(crate) fn relieve_full_disks(&mut self, now_ms: u64) -> Mastered<()> {
        let facts = self.disk_facts();
        let is_full = |facts: &DiskFacts| !facts.stays_within(0, placement::HIGH_WATERMARK_PERCENT);
        if !facts.iter().any(is_full) {
            self.recovery.stay_full.clear();
            return Ok(());
        }
        let recovery = &self.recovery;
        let is_busy = recovery.moves.values().any(|wanted| !wanted.is_ordered);
        let is_due = now_ms >= recovery.relieved_ms + LOOK_MS;
        if recovery.is_paused || is_busy || !is_due || recovery.queue.hold().is_some() {
            if is_busy {
                self.recovery.relieved_ms = now_ms;
            }
            return Ok(());
        }
        self.recovery.relieved_ms = now_ms;
        let plan = rebalance::plan(&facts, &self.group_facts(), Goal::Watermarks);
        for next in &plan.moves {
            let wanted = Move { from: next.source.0, to: next.target.0, is_ordered: false };
            self.recovery.moves.insert(next.group, wanted);
        }
        if !plan.moves.is_empty() {
            let groups = plan.moves.len();
            self.note(now_ms, "rebalance", &format!("{groups} groups leave disks that are too full"))?;
        }
        self.recovery.stay_full = self.refusals(&plan);
        Ok(())
    }

    /// Ends moves whose target cannot take them any more.
    pub(crate) fn drop_moves_without_place(&mut self, now_ms: u64) -> Mastered<()> {
        let recovery = &self.recovery;
        let blocked =
            recovery.without_place.iter().filter_map(|(group, reason)| match recovery.needs.get(group) {
                Some(Need::Move(_)) => Some((*group, reason.to_string())),
                _ => None,
            });
        let blocked: Vec<(GroupId, String)> = blocked.collect();
        for (group, reason) in blocked {
            self.recovery.moves.remove(&group);
            self.recovery.without_place.remove(&group);
            self.recovery.needs.remove(&group);
            self.recovery.queue.withdraw(group);
            self.note(now_ms, "move", &format!("group {group} stays where it is: {reason}"))?;
        }
        Ok(())
    }

    /// Disks that take no creates any more, and those that cannot be brought down, a sentence each.
    pub(crate) fn full_disks(&self) -> Vec<String> {
        let servers = self.map.servers.values().filter(|server| self.is_full(server));
        let stopped = servers.map(|server| self.of_full(server));
        stopped.chain(self.recovery.stay_full.iter().cloned()).collect()
    }

    /// Whether a server that is there takes no new files, by its own word or by what it uses; one whose host
    /// is full is shown as full also while its groups go on without it.
    pub(crate) fn is_full(&self, server: &ServerRow) -> bool {
        let Some(watch) = self.watches.get(&server.disk) else {
            return false;
        };
        if server.is_away() {
            return watch.is_host_full && !server.state.is_lost();
        }
        let used = u128::from(watch.used_bytes) * 100;
        watch.is_full || used >= u128::from(server.capacity_bytes.max(1)) * u128::from(HARD_STOP_PERCENT)
    }

    fn of_full(&self, server: &ServerRow) -> String {
        let name = &server.name;
        let watch = self.watches.get(&server.disk);
        if watch.is_some_and(|watch| watch.is_host_full) {
            return format!(
                "{name} takes no operations, since its host has no space left; free some there, then start it again"
            );
        }
        let used = watch.map_or(0, |watch| watch.used_bytes);
        let percent = u128::from(used) * 100 / u128::from(server.capacity_bytes.max(1));
        format!(
            "{name} is full ({percent} %) and takes no new files; delete some, add a server, or give its store more space"
        )
    }

    /// Writes down that a disk takes no new files any more, or takes them again.
    pub(crate) fn note_room(&mut self, server: &ServerRow, now_ms: u64) -> Mastered<()> {
        let is_full = self.watches.get(&server.disk).is_some_and(|watch| watch.is_full);
        let text = match is_full {
            true => self.of_full(server),
            false => format!("{} takes new files again", server.name),
        };
        self.note(now_ms, "full", &text)
    }
}

/// Whether a copy of a group may go from `source`, one of its members, to `target`.
pub(crate) fn place_at(
    group: GroupId,
    members: &[DiskId],
    bytes: u64,
    facts: &[DiskFacts],
    source: u32,
    target: u32,
) -> Result<DiskId, NoPlace> {
    let concerned = facts.iter().filter(|facts| facts.disk.0 == target || members.contains(&facts.disk));
    let concerned: Vec<DiskFacts> = concerned.cloned().collect();
    placement::choose_for_move(group, members, DiskId(source), bytes, &concerned)
}
