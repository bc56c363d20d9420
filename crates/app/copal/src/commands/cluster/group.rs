//! `copal group`.

use super::{
    Context,
    force_accept::{self, Wanted},
};
use crate::{
    arguments::Group,
    cluster,
    failure::{Failure, Outcome, exit},
    human,
};
use copal_client::{ClusterStore, Difference, GroupReport};
use copal_volume::group::GroupId;
use serde_json::{Value, json};

pub(crate) fn run(context: &Context<'_>, verb: &Group) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    match verb {
        Group::Ls { degraded } => {
            let told = cluster::ask(&store, "groups", "")?;
            let groups = told["groups"].as_array().cloned().unwrap_or_default();
            let lacks = |group: &&Value| {
                let members = group["members"].as_array().map(Vec::as_slice).unwrap_or_default();
                members.iter().any(|member| member["role"] != "N")
            };
            let shown: Vec<Value> =
                groups.iter().filter(|group| !degraded || lacks(group)).cloned().collect();
            context.output.answer(json!({ "groups": shown }), || as_table(&shown));
        }
        Group::Show { group } => {
            let told = cluster::ask(&store, "group", &group.to_string())?;
            let rows = [told.clone()];
            context.output.answer(told, || as_table(&rows));
        }
        Group::WhyDegraded { group } => {
            let told = cluster::ask_of_group(&store, *group, "why_degraded", &json!(group))?;
            let text = story_as_text(&told);
            context.output.answer(told, || text);
        }
        Group::Boost { group } => {
            let told = cluster::ask_of_group(&store, *group, "boost", &json!({ "group": group }))?;
            let (lacks, ahead) = (told["lacks"] == true, told["ahead"].as_u64());
            context.output.answer(told, || match ahead {
                _ if !lacks => format!("group {group} has all its copies\n"),
                Some(0) => format!("the copy of group {group} is the next\n"),
                Some(ahead) => format!("the copy of group {group} waits, {ahead} go before it\n"),
                None => format!("group {group} is being copied\n"),
            });
        }
        Group::Move { group, from, to, cancel, dry_run } => {
            let text = if *cancel {
                let argument = json!({ "group": group, "dry_run": dry_run });
                let told = cluster::ask_of_group(&store, *group, "cancel_move", &argument)?;
                let text = match dry_run {
                    _ if told["moves"] != true => format!("group {group} does not move\n"),
                    true => format!("group {group} would stay where it is\n"),
                    false => format!("group {group} stays where it is\n"),
                };
                (told, text)
            } else {
                let argument = json!({ "group": group, "from": from, "to": to, "dry_run": dry_run });
                let told = cluster::ask_of_group(&store, *group, "move", &argument)?;
                let text = super::rebalance::applied_as_text(&told);
                (told, text)
            };
            let (told, text) = text;
            context.output.answer(told, || text);
        }
        Group::ForceAccept { group, from, lose_since, dry_run } => force_accept::run(
            context,
            &store,
            &Wanted { group: *group, from, lose_since: *lose_since, dry_run: *dry_run },
        )?,
        Group::Verify { group, deep, .. } => {
            let groups = match group {
                Some(group) => vec![GroupId(*group)],
                None => store.cluster().map().groups(),
            };
            verify(context, &store, &groups, *deep)?;
        }
    }
    Ok(())
}

/// Why a group lacks a copy: a sentence, its members that are not whole, what is done, what blocks it, what
/// happened.
fn story_as_text(told: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut said = format!("{}\n", text(&told["sentence"]));
    for member in list(&told["members"]) {
        let Some(why) = member["why"].as_str() else {
            continue;
        };
        let since = match member["since_ms"].as_u64() {
            Some(at_ms) => format!(", since {}", human::local_time(at_ms)),
            None => String::new(),
        };
        said.push_str(&format!("  {why}{since}\n"));
    }
    if let Some(next) = told["next"].as_str() {
        said.push_str(&format!("next: {next}\n"));
    }
    for blocked in list(&told["blocked"]) {
        said.push_str(&format!("blocked: {}\n", text(&blocked)));
    }
    let events = list(&told["events"]);
    if !events.is_empty() {
        said.push_str("what happened:\n");
    }
    for event in events {
        let at = human::local_time(event["at_ms"].as_u64().unwrap_or_default());
        said.push_str(&format!("  {at}  {}\n", text(&event["text"])));
    }
    said
}

/// Groups with their members in a line each.
pub(super) fn as_table(groups: &[Value]) -> String {
    let row = |group: &Value| {
        let members = group["members"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let members: Vec<String> = members
            .iter()
            .map(|member| {
                format!("{} {} {}", text(&member["name"]), text(&member["address"]), text(&member["role"]))
            })
            .collect();
        vec![group["group"].to_string(), group["epoch"].to_string(), members.join(", ")]
    };
    let rows: Vec<Vec<String>> = groups.iter().map(row).collect();
    human::table(&["Group", "Epoch", "Members"], &rows)
}

fn verify(context: &Context<'_>, store: &ClusterStore, groups: &[GroupId], deep: bool) -> Outcome<()> {
    let (mut files, mut bytes) = (0, 0);
    let mut wrong: Vec<Value> = Vec::new();
    for group in groups {
        if context.is_ended() {
            return Err(Failure::new(exit::INTERRUPTED, "cancelled", "interrupted"));
        }
        let report: GroupReport =
            store.wait(store.cluster().verify(*group, deep, store.end())).map_err(cluster::of_volume)?;
        files += report.files;
        bytes += report.bytes;
        for difference in report.differences {
            let sentence = match &difference {
                Difference::Differs { server, from } => {
                    format!("group {group}: {server} has other files than {from}")
                }
                Difference::Damaged { server, what } => format!("group {group}: {server}: {what}"),
                Difference::NotWhole { server } => format!("group {group}: {server} is not whole yet"),
                Difference::Unreached { server, why } => format!("group {group}: {server}: {why}"),
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
            format!("{count} members differ from others, or are damaged; see above"),
        )),
    }
}
