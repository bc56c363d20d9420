//! `copal disk`.

use super::{CommandContext, answer};
use crate::{
    arguments::DiskCommand,
    cluster::{self, administer},
    failure::Outcome,
    human,
};
use copal_client::administration::{DiskList, DiskUsage, requests};

pub(crate) fn run(context: &CommandContext<'_>, verb: &DiskCommand) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    match verb {
        DiskCommand::Ls => {
            let list = administer(&store, &requests::ListDisks {})?;
            answer(context, &list, || as_table(&list))
        }
    }
}

/// A table with one disk per line.
fn as_table(list: &DiskList) -> String {
    let row = |disk: &DiskUsage| {
        let draining = if disk.draining { ", draining" } else { "" };
        let full = if disk.full { ", full" } else { "" };
        vec![
            disk.name.clone(),
            super::site_as_text(&disk.zone, &disk.rack),
            format!("{}{draining}{full}", disk.state),
            disk.medium.clone().unwrap_or_else(|| "-".to_owned()),
            human::bytes(disk.used_bytes),
            human::bytes(disk.capacity_bytes),
            format!("{:.1} %", disk.used_percent),
            disk.groups.to_string(),
            human::bytes(disk.copies_take_bytes),
            human::bytes(disk.files_take_bytes),
        ]
    };
    let rows: Vec<Vec<String>> = list.disks.iter().map(row).collect();
    let titles = [
        "Server",
        "Rack",
        "State",
        "Medium",
        "Used",
        "Capacity",
        "Full",
        "Groups",
        "For copies",
        "For files",
    ];
    let full = list.disks.iter().filter(|disk| disk.full);
    let names: Vec<&str> = full.map(|disk| disk.name.as_str()).collect();
    let what_to_do = match &names[..] {
        [] => String::new(),
        names => format!(
            "\nfull: {} take no new files; delete some, add a server, or give their stores more space: a larger --limit, or space below it\n",
            names.join(", ")
        ),
    };
    human::table(&titles, &rows) + &what_to_do
}
