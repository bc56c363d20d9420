//! Source of the password or key: a file, the environment, or a prompt at the terminal.
//!
//! Order: `--key` (or `COPAL_KEY_FILE`), `--password-file` (or `COPAL_PASSWORD_FILE`), `COPAL_PASSWORD`, a
//! prompt. Never the command line itself, which every process of the machine can read.

use crate::{
    arguments::CommonArgs,
    failure::{Failure, Outcome, exit},
    signals::text_file,
};
use copal_backup::{RoleKey, Unlock};
use parking_lot::Mutex;
use std::{io::IsTerminal, path::Path};
use zeroize::Zeroizing;

/// The password that was typed for the first repository of this command; a second one is tried with it.
static TYPED: Mutex<Option<Zeroizing<String>>> = Mutex::new(None);

/// Longest password file.
const FILE_BYTES: usize = 64 << 10;

fn failure(sentence: impl Into<String>) -> Failure {
    Failure::new(exit::PASSWORD, "password_needed", sentence)
}

/// The first password of a new repository.
pub(crate) fn for_init(common: &CommonArgs) -> Outcome<Unlock> {
    if common.key.is_some() {
        return Err(Failure::usage(
            "a new repository begins with a password: leave --key and COPAL_KEY_FILE out, and add keys with `copal key add`",
        ));
    }
    if common.insecure_no_password {
        return Ok(Unlock::Insecure);
    }
    if let Some(password) = configured(common)? {
        return Ok(Unlock::Password(password));
    }
    if !std::io::stdin().is_terminal() {
        return Err(failure(
            "a new repository needs a password: give --password-file or COPAL_PASSWORD_FILE, or \
             --insecure-no-password for a repository that anyone can read",
        ));
    }
    let password = prompt("password of the new repository: ")?;
    if *password != *prompt("the same again: ")? {
        return Err(failure("the two passwords differ; nothing was made, try again"));
    }
    Ok(Unlock::Password(refuse_empty(password)?))
}

/// The credential for an existing repository; `encrypted` comes from the store.
pub(crate) fn for_open(common: &CommonArgs, encrypted: bool) -> Outcome<Unlock> {
    if common.key.is_some() && common.insecure_no_password {
        return Err(Failure::usage(
            "--key is for an encrypted repository, --insecure-no-password for one that is not; give one of them",
        ));
    }
    if common.insecure_no_password {
        return Ok(Unlock::Insecure);
    }
    // A user with a password must not use a store that an attacker replaced by an unencrypted one: the next
    // backup would be readable in it.
    if !encrypted {
        return Err(Failure::new(
            exit::PASSWORD,
            "not_encrypted",
            "this repository is not encrypted: if it was made so, give --insecure-no-password; if it had a password, \
             another one has taken its place, and nothing of it should be trusted",
        ));
    }
    if let Some(path) = &common.key {
        return read_key(path).map(Unlock::Key);
    }
    if let Some(password) = configured(common)? {
        return Ok(Unlock::Password(password));
    }
    if !std::io::stdin().is_terminal() {
        return Err(failure(
            "this repository is encrypted: give its password with --password-file or COPAL_PASSWORD_FILE, or a key with \
             --key",
        ));
    }
    let mut typed = TYPED.lock();
    let password = match typed.take() {
        Some(password) => password,
        None => prompt("password of the repository: ")?,
    };
    Ok(Unlock::Password(typed.insert(password).clone()))
}

/// The configured password, without a prompt.
fn configured(common: &CommonArgs) -> Outcome<Option<Zeroizing<String>>> {
    if let Some(path) = &common.password_file {
        return read_file(path).and_then(refuse_empty).map(Some);
    }
    match std::env::var("COPAL_PASSWORD") {
        Ok(password) => refuse_empty(Zeroizing::new(password)).map(Some),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(failure("COPAL_PASSWORD is not UTF-8")),
    }
}

fn refuse_empty(password: Zeroizing<String>) -> Outcome<Zeroizing<String>> {
    if password.is_empty() {
        return Err(failure("the password is empty; give one, or --insecure-no-password for none"));
    }
    Ok(password)
}

/// The first line of the file.
fn read_file(path: &Path) -> Outcome<Zeroizing<String>> {
    let text = text_file::read(path, FILE_BYTES).map_err(|error| {
        failure(format!(
            "cannot read the password from {}: {error}; check --password-file or COPAL_PASSWORD_FILE",
            path.display()
        ))
    })?;
    let text = text.ok_or_else(|| Failure::interrupted_read(path))?;
    Ok(Zeroizing::new(text.lines().next().unwrap_or_default().to_owned()))
}

fn read_key(path: &Path) -> Outcome<RoleKey> {
    let failed = |reason: String| {
        let path = path.display();
        let sentence = format!("cannot read the key from {path}: {reason}; check --key or COPAL_KEY_FILE");
        Failure::new(exit::PASSWORD, "bad_key", sentence)
    };
    let text = text_file::read(path, FILE_BYTES).map_err(|error| failed(error.to_string()))?;
    let text = text.ok_or_else(|| Failure::interrupted_read(path))?;
    RoleKey::parse(&text).map_err(|error| failed(error.to_string()))
}

fn prompt(question: &str) -> Outcome<Zeroizing<String>> {
    let answer = rpassword::prompt_password(question);
    answer.map(Zeroizing::new).map_err(|error| failure(format!("cannot ask for the password: {error}")))
}
