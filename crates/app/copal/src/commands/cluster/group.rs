//! `copal group`.

use super::{CommandContext, answer, force_accept};
use crate::{
    arguments::GroupCommand,
    cluster::{self, administer, administer_group},
    failure::{Failure, Outcome, exit},
    human,
};
use copal_client::{
    ClusterStore, GroupComparison, ReplicaDifference,
    administration::{BoostReport, GroupMembers, GroupStory, MemberRole, requests},
};
use copal_volume::group::GroupId;
use serde_json::{Value, json};

pub(crate) fn run(context: &CommandContext<'_>, verb: &GroupCommand) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    match verb {
        GroupCommand::Ls { degraded } => {
            let mut groups = administer(&store, &requests::ListGroups {})?.groups;
            groups.retain(|group| !degraded || group.members.iter().any(|member| member.role != "N"));
            context.output.answer(json!({ "groups": groups }), || as_table(&groups));
            Ok(())
        }
        GroupCommand::Show { group } => {
            let found = administer(&store, &requests::ShowGroup { group: *group })?;
            answer(context, &found, || as_table(std::slice::from_ref(&found)))
        }
        GroupCommand::WhyDegraded { group } => {
            let story = administer_group(&store, *group, &requests::ExplainGroup { group: *group })?;
            answer(context, &story, || story_as_text(&story))
        }
        GroupCommand::Boost { group } => {
            let report = administer_group(&store, *group, &requests::BoostGroup { group: *group })?;
            answer(context, &report, || boost_as_text(&report))
        }
        GroupCommand::Move { group, cancel: true, dry_run, .. } => {
            let cancel = requests::CancelMove { group: *group, dry_run: *dry_run };
            let report = administer_group(&store, *group, &cancel)?;
            answer(context, &report, || match (report.moves, dry_run) {
                (false, _) => format!("group {group} does not move\n"),
                (true, true) => format!("group {group} would stay where it is\n"),
                (true, false) => format!("group {group} stays where it is\n"),
            })
        }
        GroupCommand::Move { group, from, to, dry_run, .. } => {
            let (Some(from), Some(to)) = (from.clone(), to.clone()) else {
                return Err(Failure::usage(
                    "the move has no servers: give --from NAME and --to NAME, or --cancel",
                ));
            };
            let wanted = requests::WantedMove { group: *group, from, to };
            let order = requests::MoveGroup { r#move: Some(wanted), dry_run: *dry_run };
            let report = administer_group(&store, *group, &order)?;
            answer(context, &report, || super::rebalance::moved_as_text(&report))
        }
        GroupCommand::ForceAccept { group, from, lose_since, dry_run } => {
            let order = requests::ForceAccept {
                group: *group,
                from: from.clone(),
                lose_since_ms: *lose_since,
                dry_run: *dry_run,
            };
            force_accept::run(context, &store, &order)
        }
        GroupCommand::Verify { group, deep, .. } => {
            let groups = match group {
                Some(group) => vec![GroupId(*group)],
                None => store.cluster().map().groups(),
            };
            verify(context, &store, &groups, *deep)
        }
    }
}

fn boost_as_text(report: &BoostReport) -> String {
    let group = report.group;
    match report.ahead.flatten() {
        _ if !report.lacks => format!("group {group} has all its replicas\n"),
        Some(0) => format!("the copy of group {group} is the next\n"),
        Some(ahead) => format!("the copy of group {group} waits, {ahead} come before it\n"),
        None => format!("group {group} is being copied\n"),
    }
}

/// The explanation of a degraded group: a sentence, its replicas that are not in sync, the next step,
/// obstacles, and events.
fn story_as_text(story: &GroupStory) -> String {
    let mut said = format!("{}\n", story.sentence);
    for member in &story.members {
        let Some(why) = &member.why else {
            continue;
        };
        let since = match member.since_ms {
            Some(at_ms) => format!(", since {}", human::local_time(at_ms)),
            None => String::new(),
        };
        said.push_str(&format!("  {why}{since}\n"));
    }
    if let Some(next) = &story.next {
        said.push_str(&format!("next: {next}\n"));
    }
    for blocked in &story.blocked {
        said.push_str(&format!("blocked: {blocked}\n"));
    }
    if !story.events.is_empty() {
        said.push_str("what happened:\n");
    }
    for event in &story.events {
        said.push_str(&format!("  {}  {}\n", human::local_time(event.at_ms), event.text));
    }
    said
}

/// A table with one group per line.
pub(super) fn as_table(groups: &[GroupMembers]) -> String {
    let member = |member: &MemberRole| format!("{} {} {}", member.name, member.address, member.role);
    let row = |group: &GroupMembers| {
        let members: Vec<String> = group.members.iter().map(member).collect();
        vec![group.group.to_string(), group.epoch.to_string(), members.join(", ")]
    };
    let rows: Vec<Vec<String>> = groups.iter().map(row).collect();
    human::table(&["Group", "Epoch", "Members"], &rows)
}

fn verify(context: &CommandContext<'_>, store: &ClusterStore, groups: &[GroupId], deep: bool) -> Outcome<()> {
    let (mut files, mut bytes) = (0, 0);
    let mut wrong: Vec<Value> = Vec::new();
    for group in groups {
        if context.is_ended() {
            return Err(Failure::new(exit::INTERRUPTED, "cancelled", "interrupted"));
        }
        let report: GroupComparison =
            store.wait(store.cluster().verify(*group, deep, store.end())).map_err(cluster::of_volume)?;
        files += report.files;
        bytes += report.bytes;
        for difference in report.differences {
            let sentence = match &difference {
                ReplicaDifference::OtherFiles { server, from } => {
                    format!("group {group}: {server} has other files than {from}")
                }
                ReplicaDifference::Damaged { server, what } => format!("group {group}: {server}: {what}"),
                ReplicaDifference::NotInSync { server } => {
                    format!("group {group}: {server} is not in sync yet")
                }
                ReplicaDifference::Unreached { server, why } => format!("group {group}: {server}: {why}"),
            };
            let fields = json!({ "code": "differs", "group": group.0, "message": sentence });
            context.output.error(fields.clone(), &sentence);
            wrong.push(fields);
        }
    }
    let fields = json!({
        "groups": groups.len(), "files": files, "bytes": bytes, "deep": deep, "differences": wrong.len(),
    });
    let read = if deep { ", every byte read" } else { "" };
    context.output.answer(fields, || {
        format!(
            "{} groups, {files} files, {}{read}: {} differences\n",
            groups.len(),
            human::bytes(bytes),
            wrong.len()
        )
    });
    match wrong.len() {
        0 => Ok(()),
        count => Err(Failure::new(
            exit::DAMAGED,
            "differs",
            format!("{count} replicas differ from others, or are damaged; see above"),
        )),
    }
}
