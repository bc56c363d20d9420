//! `copal key`: role keys of a repository.
//!
//! Invariant: a secret is written into its own file only, and an existing file is never overwritten.

use super::{CommandContext, close};
use crate::{
    arguments::{KeyAdd, KeyCommand, KeyRm, RoleWord},
    failure::{Failure, Outcome, exit},
    human,
    repository::{OpenRepository, create_private},
};
use copal_backup::{ListedKey, Role, RoleKey};
use copal_node::Access;
use serde_json::json;
use std::{
    fs::File,
    io::{self, ErrorKind, Write},
    path::Path,
};

pub(super) fn run(context: &CommandContext<'_>, verb: &KeyCommand) -> Outcome<()> {
    match verb {
        KeyCommand::Add(words) => add(context, words),
        KeyCommand::Ls => list(context),
        KeyCommand::Rm(words) => remove(context, words),
    }
}

fn add(context: &CommandContext<'_>, words: &KeyAdd) -> Outcome<()> {
    let role = match words.role {
        RoleWord::Backup => Role::Backup,
        RoleWord::Delete => Role::Delete,
        RoleWord::Admin => Role::Admin,
    };
    let opened = context.open(Access::Write)?;
    let added = draw(&opened, role, &words.out);
    let key = close(opened, added)?;
    let (id, file) = (key.id().to_string(), words.out.display().to_string());
    let fields = json!({ "command": "key add", "id": id, "role": role, "file": file });
    context.output.summary(fields, || {
        format!("key {id} for {role} is in {file}, for its owner alone; use it with --key\n")
    });
    Ok(())
}

/// Creates a key. The file is written first: a key in the repository without a file could not be used.
fn draw(opened: &OpenRepository, role: Role, out: &Path) -> Outcome<RoleKey> {
    let key = opened.repository().draw_key(role)?;
    let mut file = create_private(out).map_err(|error| not_written(out, &error))?;
    let written = file
        .write_all(key.text().as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_directory_of(out))
        .map_err(|error| not_written(out, &error));
    let added = written.and_then(|()| opened.repository().add_key(&key).map_err(Failure::from));
    if added.is_err() {
        // The file opens nothing; a failure to remove it must not hide the original error.
        let _ = std::fs::remove_file(out);
    }
    added.map(|()| key)
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn not_written(out: &Path, error: &io::Error) -> Failure {
    let out = out.display();
    match error.kind() {
        ErrorKind::AlreadyExists => {
            let sentence = format!("{out} exists; name a new file for the key, nothing was changed");
            Failure::new(exit::DENIED, "denied", sentence)
        }
        _ => {
            Failure::plain("key", format!("the key cannot be written into {out}: {error}; no key was added"))
        }
    }
}

fn list(context: &CommandContext<'_>) -> Outcome<()> {
    let opened = context.open(Access::Read)?;
    let listed = opened.repository().list_keys().map_err(Failure::from);
    let keys = close(opened, listed)?;
    context.output.answer(json!({ "command": "key ls", "keys": keys }), || {
        let rows: Vec<Vec<String>> = keys.iter().map(row).collect();
        human::table(&["Key", "Role", "Opened by", "Since", "Notes"], &rows)
    });
    Ok(())
}

fn row(key: &ListedKey) -> Vec<String> {
    let notes = match (key.is_own, key.role, key.is_genuine) {
        (true, _, _) => "in use now",
        (_, None, _) => "cannot be read",
        (_, _, Some(false)) => "not made by an admin: remove it",
        _ => "",
    };
    vec![
        key.id.clone(),
        key.role.map_or("-", Role::name).to_owned(),
        key.opened_by().to_owned(),
        human::local_time(key.created_ms),
        notes.to_owned(),
    ]
}

fn remove(context: &CommandContext<'_>, words: &KeyRm) -> Outcome<()> {
    let opened = context.open(Access::Write)?;
    let removed = opened.repository().remove_key(&words.id).map_err(Failure::from);
    let key = close(opened, removed)?;
    let fields = json!({ "command": "key rm", "id": key.id, "role": key.role });
    context.output.summary(fields, || format!("key {} no longer opens the repository\n", key.id));
    Ok(())
}
