//! `copal client`.

use super::{CommandContext, answer};
use crate::{
    arguments::ClientCommand,
    cluster::{self, administer},
    failure::{Failure, Outcome, exit},
    human,
};
use copal_client::{
    ClientProfile, ClusterStore,
    administration::{AdminRequest, ClientList, ClientRights, requests},
};
use copal_server::SigningRequest;
use serde_json::json;
use std::path::{Path, PathBuf};

pub(crate) fn run(context: &CommandContext<'_>, verb: &ClientCommand) -> Outcome<()> {
    match verb {
        ClientCommand::Add { name, path, rights, out } => add(context, name, path, rights, out),
        ClientCommand::Ls => {
            let store = cluster::connect(&context.arguments.common)?;
            let list = administer(&store, &requests::ListClients {})?;
            answer(context, &list, || as_table(&list))
        }
        ClientCommand::Renew { name, out } => renew(context, name, out.as_deref()),
        ClientCommand::Rm { name, dry_run } => remove(context, name, *dry_run),
    }
}

fn remove(context: &CommandContext<'_>, name: &str, dry_run: bool) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    if dry_run {
        let list = administer(&store, &requests::ListClients {})?;
        if !list.clients.iter().any(|client| client.name == name) {
            return Err(no_client(name));
        }
        let fields = json!({ "removed": name, "dry_run": true });
        context.output.answer(fields, || format!("client {name} would be removed\n"));
        return Ok(());
    }
    let report = order(&store, name, &requests::RemoveClient { name: name.to_owned() })?;
    answer(context, &report, || {
        format!(
            "client {name} is removed; data servers refuse it within seconds, and its permits expire within {} minutes in any case\n",
            report.minutes
        )
    })
}

/// Like [`add`], for an existing client.
fn renew(context: &CommandContext<'_>, name: &str, out: Option<&Path>) -> Outcome<()> {
    let mut profile = cluster::profile(&context.arguments.common)?;
    let default = PathBuf::from(format!("{name}.json"));
    let out = out.unwrap_or(&default);
    let is_own = |present: &ClientProfile| {
        present.client.as_deref() == Some(name) && present.cluster == profile.cluster
    };
    if out.exists() && !ClientProfile::read(out).is_ok_and(|present| is_own(&present)) {
        return Err(Failure::new(
            exit::DENIED,
            "denied",
            format!(
                "{} exists, and is no profile of client {name}; name another file with --out",
                out.display()
            ),
        ));
    }
    let store = cluster::connect(&context.arguments.common)?;
    let drawn = SigningRequest::draw().map_err(|error| Failure::plain("key", error.to_string()))?;
    let request = requests::RenewClient { name: name.to_owned(), signing_request: drawn.request };
    let signed = order(&store, name, &request)?;
    profile.masters = store.cluster().masters();
    profile.certificate = signed.certificate;
    profile.key = drawn.key;
    profile.client = Some(name.to_owned());
    profile.write(out).map_err(|error| {
        Failure::plain("profile", format!("{error}; try again where there is free space"))
    })?;
    let fields = json!({ "name": name, "profile": out.display().to_string() });
    context.output.answer(fields, || {
        format!("the new profile of client {name} is {}, for its owner alone\n", out.display())
    });
    Ok(())
}

/// Sends a request about an existing client.
fn order<R: AdminRequest>(store: &ClusterStore, name: &str, request: &R) -> Outcome<R::Reply> {
    administer(store, request).map_err(|failure| match failure.exit_code {
        exit::NOT_FOUND => no_client(name),
        _ => failure,
    })
}

fn no_client(name: &str) -> Failure {
    let sentence = format!("there is no client {name}; `copal client ls` lists them");
    Failure::new(exit::NOT_FOUND, "not_found", sentence)
}

fn as_table(list: &ClientList) -> String {
    let row = |client: &ClientRights| {
        vec![
            client.name.clone(),
            format!("/{}", client.path),
            client.rights.clone(),
            human::local_time(client.made_ms),
        ]
    };
    let rows: Vec<Vec<String>> = list.clients.iter().map(row).collect();
    human::table(&["Name", "Path", "Rights", "Since"], &rows)
}

/// Creates a client. The key is created here and never leaves this machine; the master signs the client's
/// name.
fn add(context: &CommandContext<'_>, name: &str, path: &str, rights: &str, out: &Path) -> Outcome<()> {
    let mut profile = cluster::profile(&context.arguments.common)?;
    if out.exists() {
        return Err(Failure::new(
            exit::DENIED,
            "denied",
            format!("{} exists; name a new file for the client's profile", out.display()),
        ));
    }
    let store = cluster::connect(&context.arguments.common)?;
    let drawn = SigningRequest::draw().map_err(|error| Failure::plain("key", error.to_string()))?;
    let request = requests::AddClient {
        name: name.to_owned(),
        path: path.to_owned(),
        rights: rights.to_owned(),
        signing_request: drawn.request,
    };
    let signed = administer(&store, &request)?;
    profile.masters = store.cluster().masters();
    profile.certificate = signed.certificate;
    profile.key = drawn.key;
    profile.client = Some(name.to_owned());
    profile.write(out).map_err(|error| {
        Failure::plain(
            "profile",
            format!("{error}; run `copal client rm {name}`, then try again where there is free space"),
        )
    })?;
    let fields =
        json!({ "name": name, "path": path, "rights": rights, "profile": out.display().to_string() });
    context.output.answer(fields, || {
        format!(
            "client {name} may {} below /{path}; its profile is {}, for its owner alone\n",
            rights.replace(',', ", "),
            out.display()
        )
    });
    Ok(())
}
