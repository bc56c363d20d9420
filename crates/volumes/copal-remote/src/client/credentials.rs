//! Credentials of a file that the user names, and the operators that use them.
//!
//! Without such a file they come from the environment and from the files of the providers' tools. Each new operator reads
//! its source again, which renews expired ones.
//!
//! Invariant: no error and no log repeats a word of a file of credentials.
//! Not here: signatures (`opendal`).

use crate::{
    error::{RemoteError, RemoteFailure},
    url::{CloudKind, RemoteUrl},
};
use opendal::{Operator, services};
use std::{fs::File, io::Read, os::unix::fs::PermissionsExt, path::Path};

/// Longest file of credentials.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Permissions of others than the owner.
const OTHERS: u32 = 0o077;

/// Keys of S3.
#[derive(PartialEq, Eq)]
struct S3Keys {
    id: String,
    secret: String,
    token: Option<String>,
}

fn refused(file: &Path, why: &str) -> RemoteError {
    RemoteError::new(RemoteFailure::Credentials, format!("{}: {why}", file.display()))
}

/// The text of a file of credentials that only its owner can read.
fn read_file(file: &Path) -> Result<String, RemoteError> {
    let unreadable =
        |error: std::io::Error| refused(file, &format!("the credentials cannot be read: {error}"));
    let opened = File::open(file).map_err(unreadable)?;
    let mode = opened.metadata().map_err(unreadable)?.permissions().mode();
    if mode & OTHERS != 0 {
        let why = format!(
            "others may read or change these credentials (mode {:04o}); run `chmod 600` on the file, and replace the keys if \
             somebody else may have read them",
            mode & 0o7777
        );
        return Err(refused(file, &why));
    }
    let mut text = String::new();
    match opened.take(MAX_FILE_BYTES + 1).read_to_string(&mut text) {
        Ok(bytes) if bytes as u64 > MAX_FILE_BYTES => {
            Err(refused(file, "too long for a file of credentials"))
        }
        Ok(_) => Ok(text),
        Err(error) => Err(unreadable(error)),
    }
}

/// The keys of a profile in a file like `~/.aws/credentials`; `None`: the profile is missing or lacks a key.
fn keys_of_profile(text: &str, profile: &str) -> Option<S3Keys> {
    let (mut is_meant, mut id, mut secret, mut token) = (false, None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_meant = name.trim() == profile;
        } else if let (true, Some((name, value))) = (is_meant, line.split_once('=')) {
            let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
            match name.trim() {
                "aws_access_key_id" => id = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    Some(S3Keys { id: id?, secret: secret?, token })
}

fn s3_keys(file: &Path) -> Result<S3Keys, RemoteError> {
    let named = std::env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty());
    let profile = named.as_deref().unwrap_or("default");
    keys_of_profile(&read_file(file)?, profile).ok_or_else(|| {
        let why = format!(
            "no aws_access_key_id and aws_secret_access_key below [{profile}]; write them as in ~/.aws/credentials, or name \
             another profile with AWS_PROFILE"
        );
        refused(file, &why)
    })
}

/// Prefix of all keys, as OpenDAL takes it.
fn root_of(url: &RemoteUrl) -> String {
    format!("/{}/", url.prefix)
}

/// S3 without keys.
pub(super) fn s3_builder(url: &RemoteUrl) -> services::S3 {
    // Named always: OpenDAL would take another one from variables, and the address says where data goes.
    let endpoint = url.endpoint.as_deref().unwrap_or("https://s3.amazonaws.com");
    let region = url.region.clone().or_else(|| std::env::var("AWS_REGION").ok());
    let region = region.or_else(|| std::env::var("AWS_DEFAULT_REGION").ok());
    let mut builder = services::S3::default()
        .root(&root_of(url))
        .bucket(&url.bucket)
        .endpoint(endpoint)
        .region(region.as_deref().unwrap_or("us-east-1"));
    if url.virtual_host {
        builder = builder.enable_virtual_host_style();
    }
    if !url.instance_credentials {
        builder = builder.disable_ec2_metadata();
    }
    builder
}

fn s3(url: &RemoteUrl, file: Option<&Path>) -> Result<opendal::Result<Operator>, RemoteError> {
    let mut builder = s3_builder(url);
    if let Some(file) = file {
        let keys = s3_keys(file)?;
        builder = builder.access_key_id(&keys.id).secret_access_key(&keys.secret).disable_config_load();
        if let Some(token) = &keys.token {
            builder = builder.session_token(token);
        }
    }
    Ok(Operator::new(builder))
}

/// Azure with a key or a signature: OpenDAL's own search would end at the metadata service of the machine.
fn azure(url: &RemoteUrl, file: Option<&Path>) -> Result<opendal::Result<Operator>, RemoteError> {
    let account = url.account.as_deref().unwrap_or_default();
    let own = format!("https://{account}.blob.core.windows.net");
    let builder = services::Azblob::default()
        .root(&root_of(url))
        .container(&url.bucket)
        .account_name(account)
        .endpoint(url.endpoint.as_deref().unwrap_or(&own));
    let named = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    if let Some(file) = file {
        let text = read_file(file)?;
        let key = text.lines().map(str::trim).find(|line| !line.is_empty());
        let key =
            key.ok_or_else(|| refused(file, "the file is empty; write the account key in its first line"))?;
        return Ok(Operator::new(builder.account_key(key)));
    }
    match (named("AZURE_STORAGE_ACCOUNT_KEY"), named("AZURE_STORAGE_SAS_TOKEN")) {
        (Some(key), _) => Ok(Operator::new(builder.account_key(&key))),
        (None, Some(token)) => Ok(Operator::new(builder.sas_token(&token))),
        (None, None) => Err(RemoteError::new(
            RemoteFailure::Credentials,
            format!(
                "{url}: no credentials found; set AZURE_STORAGE_ACCOUNT_KEY, or name a file with --credentials"
            ),
        )),
    }
}

fn google(url: &RemoteUrl, file: Option<&Path>) -> Result<opendal::Result<Operator>, RemoteError> {
    let mut builder = services::Gcs::default().root(&root_of(url)).bucket(&url.bucket);
    if let Some(endpoint) = &url.endpoint {
        builder = builder.endpoint(endpoint);
    }
    if !url.instance_credentials {
        builder = builder.disable_vm_metadata();
    }
    if let Some(file) = file {
        // Looked at here, and read by OpenDAL.
        read_file(file)?;
        builder =
            builder.credential_path(&file.to_string_lossy()).disable_config_load().disable_vm_metadata();
    } else if is_emulator(url) {
        builder = builder.skip_signature();
    }
    Ok(Operator::new(builder))
}

/// A server of this machine without TLS is an emulator, which takes requests without a signature.
fn is_emulator(url: &RemoteUrl) -> bool {
    let is_local =
        url.endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://")) && !url.is_plain();
    is_local && std::env::var_os("GOOGLE_APPLICATION_CREDENTIALS").is_none()
}

/// An operator with the credentials that `file` or the environment holds now.
/// # Errors
/// `Credentials`: the file cannot be used, or there are none. `Usage`: the address cannot be used.
pub(super) fn operator_of(url: &RemoteUrl, file: Option<&Path>) -> Result<Operator, RemoteError> {
    let built = match url.kind {
        CloudKind::S3 => s3(url, file)?,
        CloudKind::Azure => azure(url, file)?,
        CloudKind::Google => google(url, file)?,
        CloudKind::Hdfs => return Err(super::usage(url, "HDFS is not reached by HTTP")),
    };
    built.map_err(|_| match url.kind {
        CloudKind::Azure => RemoteError::new(
            RemoteFailure::Credentials,
            format!("{url}: the account key is not valid base64; copy it again from the provider"),
        ),
        _ => super::usage(url, "the address cannot be used; check bucket, region and endpoint"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn keys_of_a_profile() {
        let text = "# mine\n[default]\naws_access_key_id = AK\naws_secret_access_key=S=K\n\n[ci]\naws_access_key_id=CI\n\
                    aws_secret_access_key = hush\naws_session_token = tok\nregion = x\n[empty]\naws_access_key_id =\n";
        let keys = keys_of_profile(text, "default").unwrap();
        assert_eq!((keys.id.as_str(), keys.secret.as_str(), keys.token), ("AK", "S=K", None));
        let keys = keys_of_profile(text, "ci").unwrap();
        assert_eq!((keys.id.as_str(), keys.token.as_deref()), ("CI", Some("tok")));
        assert!(keys_of_profile(text, "empty").is_none() && keys_of_profile(text, "other").is_none());
        assert!(keys_of_profile("", "default").is_none());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("keys");
        fs::write(&file, "hush").unwrap();
        for (mode, is_good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o622, false)]
        {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            match read_file(&file) {
                Ok(text) => assert!(is_good && text == "hush", "{mode:o}"),
                Err(error) => {
                    let sentence = error.to_string();
                    assert!(
                        !is_good && sentence.contains("chmod 600") && !sentence.contains("hush"),
                        "{sentence}"
                    );
                    assert_eq!(error.failure, RemoteFailure::Credentials);
                }
            }
        }
        assert!(read_file(&scratch.path().join("missing")).is_err());
    }
}
