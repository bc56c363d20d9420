//! Whether an object store has the properties that a repository needs.
//!
//! Invariant: the probe leaves nothing, also when it fails or the command is stopped in the middle.

use crate::{
    error::{RemoteError, RemoteFailure},
    keys::{PROBES, hex},
    retry::RetryRules,
    service::{ObjectService, ServiceError},
};
use bytes::Bytes;

/// Bytes of the body that the upload in parts sends: more than one part.
const UPLOAD_BYTES: usize = 9 << 20;
/// Objects that the check of lists makes and deletes.
const LISTED: usize = 3;

/// Answer to one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The store does so.
    Yes,
    /// It does not.
    No,
    /// These credentials do not permit to ask.
    Denied,
}

/// Properties of an object store, and rights of the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// A second create of a key is refused.
    pub create_is_exclusive: ProbeOutcome,
    /// A second upload in parts to a key is refused.
    pub upload_is_exclusive: ProbeOutcome,
    /// A list shows each object that was just created, and none that was just deleted.
    pub list_is_current: ProbeOutcome,
    /// These credentials may delete.
    pub may_delete: ProbeOutcome,
    /// A delete of an object that was replaced is refused.
    pub delete_has_condition: ProbeOutcome,
    /// These credentials may overwrite.
    pub may_overwrite: ProbeOutcome,
    /// Deleted objects stay as old versions, which Object Lock needs too; `None`: the store does not tell.
    pub keeps_versions: Option<bool>,
    /// Time of the store minus that of this machine, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// Keys that the credentials could not delete again.
    pub left_behind: Vec<String>,
}

impl ProbeReport {
    /// The property that a repository needs and the store lacks, as a sentence; `None`: it is usable.
    pub fn unsuitable(&self) -> Option<&'static str> {
        if self.create_is_exclusive == ProbeOutcome::No {
            return Some(
                "it ignores the condition of a create (If-None-Match): two hosts could write one file, and one would lose it",
            );
        }
        if self.upload_is_exclusive == ProbeOutcome::No {
            return Some(
                "it ignores the condition at the end of an upload in parts: two hosts could write one file, and one would lose it",
            );
        }
        if self.list_is_current == ProbeOutcome::No {
            return Some("its lists are late: a host could miss a backup of another and free its chunks");
        }
        None
    }
}

/// Objects of one probe, removed at its end.
struct ProbeObjects<'a> {
    service: &'a dyn ObjectService,
    rules: &'a RetryRules,
    prefix: String,
    made: Vec<String>,
}

impl ProbeObjects<'_> {
    fn key(&mut self, name: &str) -> String {
        let key = format!("{}{name}", self.prefix);
        self.made.push(key.clone());
        key
    }

    fn create(&self, key: &str, body: &Bytes) -> Result<(), ServiceError> {
        match self.rules.repeat(|| self.service.create(key, body.clone())) {
            // Nobody else has the key: the answer to an earlier try was lost.
            Ok(_) | Err(ServiceError::Taken) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes all objects; returns the keys that stay.
    fn remove(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for key in self.made.drain(..) {
            // One try each once the command is stopped, so that it ends.
            let removed = match (self.rules.stop)() {
                true => self.service.delete(&key, None),
                false => self.rules.repeat(|| self.service.delete(&key, None)),
            };
            match removed {
                Ok(()) | Err(ServiceError::NotFound) => {}
                Err(_) => left.push(key),
            }
        }
        left
    }
}

impl Drop for ProbeObjects<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Asks the store. Blocks for about twenty requests.
/// # Errors
/// No credentials, no bucket, no network.
pub(crate) fn run(service: &dyn ObjectService, rules: &RetryRules) -> Result<ProbeReport, RemoteError> {
    let random = getrandom::u64().map_err(|error| {
        RemoteError::new(RemoteFailure::Usage, format!("the system gives no random bits: {error}"))
    })?;
    let prefix = format!("{PROBES}{}/", hex(&random.to_be_bytes()));
    let mut objects = ProbeObjects { service, rules, prefix, made: Vec::new() };
    let answered = ask(&mut objects);
    let left_behind = objects.remove();
    let mut report = answered.map_err(|error| error.give_up())?;
    report.left_behind = left_behind;
    let observed = service.observation();
    report.keeps_versions = observed.keeps_versions;
    report.clock_offset_ms = observed.clock_offset.map(|(amount, is_ahead)| {
        let amount = amount.as_millis() as i64;
        if is_ahead { amount } else { -amount }
    });
    Ok(report)
}

fn ask(objects: &mut ProbeObjects<'_>) -> Result<ProbeReport, ServiceError> {
    let (first, second) = (Bytes::from(vec![1; 600]), Bytes::from(vec![2; 600]));
    let single = objects.key("single");
    objects.create(&single, &first)?;
    let create_is_exclusive =
        refused(objects.rules.repeat(|| objects.service.create(&single, second.clone())).map(drop))?;
    let upload_is_exclusive = ask_upload(objects)?;
    let list_is_current = ask_list(objects)?;
    let deleted = objects.key("deleted");
    objects.create(&deleted, &first)?;
    let may_delete = permitted(objects.rules.repeat(|| objects.service.delete(&deleted, None)))?;
    let may_overwrite = ask_overwrite(objects, &single, &second)?;
    let delete_has_condition = match may_delete {
        ProbeOutcome::Yes => ask_condition(objects)?,
        other => other,
    };
    Ok(ProbeReport {
        create_is_exclusive,
        upload_is_exclusive,
        list_is_current,
        may_delete,
        delete_has_condition,
        may_overwrite,
        keeps_versions: None,
        clock_offset_ms: None,
        left_behind: Vec::new(),
    })
}

/// Whether a request that should be refused was.
fn refused(outcome: Result<(), ServiceError>) -> Result<ProbeOutcome, ServiceError> {
    match outcome {
        Ok(()) => Ok(ProbeOutcome::No),
        Err(ServiceError::Taken | ServiceError::Conflict) => Ok(ProbeOutcome::Yes),
        Err(error) => denied(error),
    }
}

/// Whether a request is permitted.
fn permitted(outcome: Result<(), ServiceError>) -> Result<ProbeOutcome, ServiceError> {
    match outcome {
        Ok(()) | Err(ServiceError::NotFound) => Ok(ProbeOutcome::Yes),
        Err(error) => denied(error),
    }
}

fn denied(error: ServiceError) -> Result<ProbeOutcome, ServiceError> {
    match error {
        ServiceError::Final(error) if error.failure == RemoteFailure::Denied => Ok(ProbeOutcome::Denied),
        error => Err(error),
    }
}

fn ask_upload(objects: &mut ProbeObjects<'_>) -> Result<ProbeOutcome, ServiceError> {
    let key = objects.key("upload");
    objects.create(&key, &Bytes::from(vec![1; 600]))?;
    let mut upload = objects.rules.repeat(|| objects.service.upload(&key))?;
    upload.append(Bytes::from(vec![2; UPLOAD_BYTES]))?;
    let outcome = refused(upload.complete().map(drop));
    upload.abort();
    outcome
}

fn ask_list(objects: &mut ProbeObjects<'_>) -> Result<ProbeOutcome, ServiceError> {
    let body = Bytes::from(vec![3; 600]);
    let prefix = format!("{}list/", objects.prefix);
    let mut keys = Vec::new();
    let listed = |objects: &ProbeObjects<'_>| {
        let page = objects.rules.repeat(|| objects.service.list(&prefix, None, 100))?;
        Ok::<Vec<String>, ServiceError>(page.objects.into_iter().map(|object| object.key).collect())
    };
    for number in 0..LISTED {
        let key = objects.key(&format!("list/{number}"));
        objects.create(&key, &body)?;
        keys.push(key);
        if listed(objects)? != keys {
            return Ok(ProbeOutcome::No);
        }
    }
    let first = keys.remove(0);
    if permitted(objects.rules.repeat(|| objects.service.delete(&first, None)))? == ProbeOutcome::Yes
        && listed(objects)? != keys
    {
        return Ok(ProbeOutcome::No);
    }
    Ok(ProbeOutcome::Yes)
}

fn ask_overwrite(objects: &ProbeObjects<'_>, key: &str, body: &Bytes) -> Result<ProbeOutcome, ServiceError> {
    match objects.rules.repeat(|| objects.service.overwrite(key, body.clone())) {
        Ok(()) => Ok(ProbeOutcome::Yes),
        // A policy may ask for the condition.
        Err(ServiceError::Taken) => Ok(ProbeOutcome::Denied),
        Err(error) => denied(error),
    }
}

fn ask_condition(objects: &mut ProbeObjects<'_>) -> Result<ProbeOutcome, ServiceError> {
    let key = objects.key("replaced");
    let body = Bytes::from(vec![4; 600]);
    let old = match objects.rules.repeat(|| objects.service.create(&key, body.clone())) {
        // The answer to an earlier try was lost.
        Err(ServiceError::Taken) => objects.rules.repeat(|| objects.service.front(&key, 512))?.tag,
        created => created?,
    };
    objects.rules.repeat(|| objects.service.delete(&key, None))?;
    objects.create(&key, &Bytes::from(vec![5; 700]))?;
    let _ = objects.service.delete(&key, Some(&old));
    match objects.rules.repeat(|| objects.service.front(&key, 512)) {
        Ok(_) => Ok(ProbeOutcome::Yes),
        Err(ServiceError::NotFound) => Ok(ProbeOutcome::No),
        Err(error) => Err(error),
    }
}
