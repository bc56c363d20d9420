//! `copal disk`.

use super::Context;
use crate::{arguments::Disk, cluster, failure::Outcome, human};
use serde_json::Value;

pub(crate) fn run(context: &Context<'_>, verb: &Disk) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    match verb {
        Disk::Ls => {
            let told = cluster::ask(&store, "disks", "")?;
            let text = as_table(&told);
            context.output.answer(told, || text);
        }
    }
    Ok(())
}

/// Disks in a line each.
fn as_table(told: &Value) -> String {
    let disks = told["disks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let bytes = |value: &Value| human::bytes(value.as_u64().unwrap_or_default());
    let row = |disk: &Value| {
        let when = |flag: &str, said: &'static str| if disk[flag] == true { said } else { "" };
        vec![
            text(&disk["name"]),
            super::site_as_text(disk),
            text(&disk["state"]) + when("draining", ", draining") + when("full", ", full"),
            text(&disk["medium"]),
            bytes(&disk["used_bytes"]),
            bytes(&disk["capacity_bytes"]),
            format!("{:.1} %", disk["used_percent"].as_f64().unwrap_or_default()),
            disk["groups"].to_string(),
            bytes(&disk["copies_take_bytes"]),
            bytes(&disk["files_take_bytes"]),
        ]
    };
    let rows: Vec<Vec<String>> = disks.iter().map(row).collect();
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
    let full = disks.iter().filter(|disk| disk["full"] == true);
    let names: Vec<String> = full.map(|disk| text(&disk["name"])).collect();
    let what_to_do = match &names[..] {
        [] => String::new(),
        names => format!(
            "\nfull: {} take no new files; delete some, add a server, or give their stores more space: a larger --limit, or space below it\n",
            names.join(", ")
        ),
    };
    human::table(&titles, &rows) + &what_to_do
}
