//! `copal init`.

use super::{Context, close};
use crate::{
    arguments::{Chunking, Init},
    failure::Outcome,
    repository,
};
use copal_backup::Profile;
use serde_json::json;

pub(super) fn run(context: &Context<'_>, init: &Init) -> Outcome<()> {
    let profile = match init.chunking {
        Chunking::Default => Profile::Default,
        Chunking::Paper => Profile::Paper,
        Chunking::Clone => Profile::Clone,
    };
    let opened = repository::init(&context.arguments.common, init, profile, &context.patience())?;
    let info = opened.repository().info();
    close(opened, Ok(()))?;
    let dir = context
        .arguments
        .common
        .repo
        .as_deref()
        .map(|dir| dir.display().to_string())
        .unwrap_or_default();
    let fields = json!({
        "command": "init",
        "repository": dir,
        "domain": info.domain.to_string(),
        "encrypted": info.encrypted,
        "created_ms": info.created_ms,
    });
    context.output.summary(fields, || {
        let mut text = format!("made a repository in {dir}\n");
        text.push_str(if info.encrypted {
            "Keep the password safe: without it the backups cannot be read by anybody.\n"
        } else {
            "It is not encrypted: whoever reads the file reads the disks.\n"
        });
        text
    });
    Ok(())
}
