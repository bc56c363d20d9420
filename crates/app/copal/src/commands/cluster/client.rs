//! `copal client`.

use super::Context;
use crate::{
    arguments::Client,
    cluster,
    failure::{Failure, Outcome, exit},
    human,
};
use copal_server::SigningRequest;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(crate) fn run(context: &Context<'_>, verb: &Client) -> Outcome<()> {
    match verb {
        Client::Add { name, path, rights, out } => add(context, name, path, rights, out),
        Client::Ls => {
            let store = cluster::connect(&context.arguments.common)?;
            let told = cluster::ask(&store, "client", r#"{"verb":"ls"}"#)?;
            let rows = rows(&told);
            context.output.answer(told, || human::table(&["Name", "Path", "Rights", "Since"], &rows));
            Ok(())
        }
        Client::Renew { name, out } => renew(context, name, out.as_deref()),
        Client::Rm { name, dry_run } => {
            let store = cluster::connect(&context.arguments.common)?;
            if *dry_run {
                let told = cluster::ask(&store, "client", r#"{"verb":"ls"}"#)?;
                if !rows(&told).iter().any(|row| row[0] == *name) {
                    return Err(no_client(name));
                }
                let told = json!({ "removed": name, "dry_run": true });
                context.output.answer(told, || format!("client {name} would be taken away\n"));
                return Ok(());
            }
            let order = json!({ "verb": "rm", "name": name });
            let told = cluster::ask(&store, "client", &order.to_string()).map_err(|failure| match failure
                .exit_code
            {
                exit::NOT_FOUND => no_client(name),
                _ => failure,
            })?;
            let minutes = told["minutes"].as_u64().unwrap_or_default();
            context.output.answer(told, || {
                format!(
                    "client {name} is taken away; data servers hear of it within seconds, and what it was permitted ends within \
                     {minutes} minutes in any case\n"
                )
            });
            Ok(())
        }
    }
}

/// As [`add`], for a client that is there.
fn renew(context: &Context<'_>, name: &str, out: Option<&Path>) -> Outcome<()> {
    let mut profile = cluster::profile(&context.arguments.common)?;
    let default = PathBuf::from(format!("{name}.json"));
    let out = out.unwrap_or(&default);
    let is_own = |present: &copal_client::Profile| {
        present.client.as_deref() == Some(name) && present.cluster == profile.cluster
    };
    if out.exists() && !copal_client::Profile::read(out).is_ok_and(|present| is_own(&present)) {
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
    let order = json!({ "verb": "renew", "name": name, "signing_request": drawn.request });
    let told =
        cluster::ask(&store, "client", &order.to_string()).map_err(|failure| match failure.exit_code {
            exit::NOT_FOUND => no_client(name),
            _ => failure,
        })?;
    profile.masters = store.cluster().masters();
    profile.certificate = told["certificate"].as_str().unwrap_or_default().to_owned();
    profile.key = drawn.key;
    profile.client = Some(name.to_owned());
    profile
        .write(out)
        .map_err(|error| Failure::plain("profile", format!("{error}; try again where there is room")))?;
    let told = json!({ "name": name, "profile": out.display().to_string() });
    context.output.answer(told, || {
        format!("the new profile of client {name} is {}, for its owner alone\n", out.display())
    });
    Ok(())
}

fn no_client(name: &str) -> Failure {
    let sentence = format!("there is no client {name}; `copal client ls` lists them");
    Failure::new(exit::NOT_FOUND, "not_found", sentence)
}

fn rows(told: &Value) -> Vec<Vec<String>> {
    let clients = told["clients"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row = |client: &Value| {
        vec![
            text(&client["name"]),
            format!("/{}", text(&client["path"])),
            text(&client["rights"]),
            human::local_time(client["made_ms"].as_u64().unwrap_or_default()),
        ]
    };
    clients.iter().map(row).collect()
}

/// The key is drawn here and goes nowhere else; the master signs who the client is.
fn add(context: &Context<'_>, name: &str, path: &str, rights: &str, out: &Path) -> Outcome<()> {
    let mut profile = cluster::profile(&context.arguments.common)?;
    if out.exists() {
        return Err(Failure::new(
            exit::DENIED,
            "denied",
            format!("{} exists; name a new file for the client's profile", out.display()),
        ));
    }
    let store = cluster::connect(&context.arguments.common)?;
    let failed = |error: &dyn std::fmt::Display| Failure::plain("key", error.to_string());
    let drawn = SigningRequest::draw().map_err(|error| failed(&error))?;
    let order = json!({
        "verb": "add", "name": name, "path": path, "rights": rights, "signing_request": drawn.request,
    });
    let told = cluster::ask(&store, "client", &order.to_string())?;
    let certificate = told["certificate"].as_str().unwrap_or_default();
    profile.masters = store.cluster().masters();
    profile.certificate = certificate.to_owned();
    profile.key = drawn.key;
    profile.client = Some(name.to_owned());
    profile.write(out).map_err(|error| {
        Failure::plain(
            "profile",
            format!("{error}; `copal client rm {name}`, then try again where there is room"),
        )
    })?;
    let told = json!({ "name": name, "path": path, "rights": rights, "profile": out.display().to_string() });
    context.output.answer(told, || {
        format!(
            "client {name} may {} below /{path}; its profile is {}, for its owner alone\n",
            rights.replace(',', ", "),
            out.display()
        )
    });
    Ok(())
}
