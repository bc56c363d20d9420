//! `copal init`.

use super::{CommandContext, close, new_store};
use crate::{
    arguments::{ChunkingWord, InitArgs},
    failure::Outcome,
    repository,
};
use copal_backup::{ChunkProfile, Layout};
use copal_object::BackendKind;
use serde_json::json;
use std::path::Path;

pub(super) fn run(context: &CommandContext<'_>, init: &InitArgs) -> Outcome<()> {
    let profile = match init.chunking {
        ChunkingWord::Default => ChunkProfile::Default,
        ChunkingWord::Paper => ChunkProfile::Paper,
        ChunkingWord::Clone => ChunkProfile::Clone,
    };
    let choice = init.backend.choice(BackendKind::Cow);
    let plan = |named: &Path| new_store::plan(context, named, choice, init.new_store());
    let opened = repository::init(&context.arguments.common, init, profile, &plan, &context.patience())?;
    let info = opened.repository().info();
    close(opened, Ok(()))?;
    let dir =
        context.arguments.common.repo.as_deref().map(|dir| dir.display().to_string()).unwrap_or_default();
    let (layout, popular) = match info.layout {
        Layout::Solo => ("solo", None),
        Layout::Fleet { popular_millionths } => ("fleet", Some(popular_millionths)),
    };
    let fields = json!({
        "command": "init",
        "repository": dir,
        "domain": info.domain.to_string(),
        "encrypted": info.encrypted,
        "layout": layout,
        "pds_fraction": popular.map(|millionths| f64::from(millionths) / 1e6),
        "created_ms": info.created_ms,
    });
    context.output.summary(fields, || {
        let mut text = format!("created a repository in {dir}\n");
        if info.layout.is_fleet() {
            text.push_str("Its layout is fleet: each VM has its own chunks and shares popular ones.\n");
        }
        text.push_str(if info.encrypted {
            "Keep the password safe: without it the backups cannot be read.\n\
             For timers and agents, `copal key add` makes a key file, which needs no password hash; older programs then \
             refuse the repository.\n"
        } else {
            "It is not encrypted: every reader of its files can read the disks.\n"
        });
        text
    });
    Ok(())
}
