//! The store over a server in this process that takes conditions, breaks answers and counts requests.

use super::*;
use crate::{ProbeOutcome, client::RemoteClient, service::ServiceError};
use copal_testkit::{MotoServer, NetworkFault, ObjectServer, RequestFacts};
use copal_volume::conformance;
use std::sync::atomic::Ordering::Relaxed;

mod bundles;

const BUCKET: &str = "b";

struct TestServer {
    server: ObjectServer,
}

impl TestServer {
    fn start() -> TestServer {
        let server = ObjectServer::start();
        server.create_bucket(BUCKET);
        TestServer { server }
    }

    fn store(&self, prefix: &str) -> RemoteStore {
        self.store_with(prefix, Duration::from_secs(20))
    }

    fn store_with(&self, prefix: &str, retry_for: Duration) -> RemoteStore {
        let text = format!("s3://{BUCKET}/{prefix}?endpoint={}&region=us-east-1", self.server.url());
        let url = RemoteUrl::parse(&text).unwrap().unwrap();
        let client = RemoteClient::with_keys(&url, "ak", "sk", Arc::new(|| false)).unwrap();
        RemoteStore::on(Arc::new(client), url.connections as usize, retry_for, Arc::new(|| false)).unwrap()
    }

    /// Keys of the objects of files, without volume records.
    fn files(&self) -> Vec<String> {
        let keys = self.server.objects(BUCKET).into_iter().map(|(key, _)| key);
        keys.filter(|key| key.contains("/f/")).collect()
    }
}

pub(crate) fn volume(store: &RemoteStore) -> VolumeId {
    store.create_volume("", "v", &VolumeOptions::default()).unwrap()
}

pub(crate) fn put(
    store: &RemoteStore,
    vid: VolumeId,
    name: &[u8],
    len: usize,
) -> Result<FileInfo, VolumeError> {
    store.put(vid, name, Bytes::from(vec![name[0]; len]), &PutOptions::default())
}

pub(crate) fn get(store: &RemoteStore, vid: VolumeId, name: &[u8]) -> Result<Bytes, VolumeError> {
    store.get(vid, name, 0..u64::MAX, &ReadOptions::STRICT)
}

/// A fault of the first requests that `is_meant`.
fn first(
    count: usize,
    fault: NetworkFault,
    is_meant: impl Fn(&RequestFacts) -> bool + Send + Sync + 'static,
) -> impl Fn(&RequestFacts) -> NetworkFault + Send + Sync + 'static {
    let left = std::sync::atomic::AtomicUsize::new(count);
    move |request| {
        let is_hit =
            is_meant(request) && left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if is_hit { fault.clone() } else { NetworkFault::None }
    }
}

fn is_put(request: &RequestFacts) -> bool {
    request.method == "PUT"
}

#[test]
fn the_suite_passes() {
    let server = TestServer::start();
    let number = std::cell::Cell::new(0);
    conformance::run(&|| {
        number.set(number.get() + 1);
        Box::new(server.store(&format!("p{}", number.get())))
    });
    assert_eq!(server.server.open_uploads(BUCKET), 0, "no upload in parts is left");
}

/// Symptom: on MinIO and SeaweedFS a long name was refused. On MinIO the list of the volumes of a volume was empty, so a
/// sweep would have deleted their files. Cause: they keep each key as the path of a file, with 255 bytes for a part, and
/// MinIO lists nothing below an object. Fix: long names have several parts, and no key lies below that of an object.
#[test]
fn the_suite_passes_where_keys_are_paths_of_files() {
    let server = TestServer::start();
    server.server.keep_as_files(BUCKET);
    let number = std::cell::Cell::new(0);
    conformance::run(&|| {
        number.set(number.get() + 1);
        Box::new(server.store(&format!("p{}", number.get())))
    });
    let store = server.store("nested");
    let parent = store.create_volume("", "a", &VolumeOptions::default()).unwrap();
    let child = store.create_volume("a", "b", &VolumeOptions::default()).unwrap();
    put(&store, child, b"n", 10).unwrap();
    let other = server.store("nested");
    assert_eq!(other.sweep().unwrap(), 0);
    assert_eq!(get(&other, child, b"n").unwrap().len(), 10);
    assert_eq!(other.remove_volume(parent, RemoveMode::WithFiles), Err(VolumeError::NotEmpty));
}

/// The suite over servers of others: moto, if it is installed, and on demand that of `COPAL_REMOTE_URL` with credentials in
/// the environment.
#[test]
fn servers_of_others_pass_the_suite() {
    let number = std::cell::Cell::new(0);
    let next = |text: &str| {
        number.set(number.get() + 1);
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let run = getrandom::u64().unwrap();
        RemoteUrl::parse(&format!("{base}/{run:x}/{}?{query}", number.get())).unwrap().unwrap()
    };
    if let Ok(text) = std::env::var("COPAL_REMOTE_URL") {
        return conformance::run(&|| {
            Box::new(RemoteStore::new(&next(&text), &RemoteOptions::default()).unwrap())
        });
    }
    let Some(moto) = MotoServer::start() else { return };
    let text = format!("s3://vms-bucket/p?endpoint={}&region=us-east-1", moto.url());
    moto.create_bucket("vms-bucket");
    conformance::run(&|| {
        let url = next(&text);
        let client = RemoteClient::with_keys(&url, "ak", "sk", Arc::new(|| false)).unwrap();
        let stop: StopSignal = Arc::new(|| false);
        Box::new(
            RemoteStore::on(Arc::new(client), url.connections as usize, Duration::from_secs(60), stop)
                .unwrap(),
        )
    });
}

/// Symptom, in other clients: a create whose answer was lost is sent again, and its own object refuses it. Fix: the
/// id of the object under the key decides.
#[test]
fn a_create_whose_answer_is_lost_is_told_as_won() {
    let server = TestServer::start();
    let store = server.store("p");
    let vid = volume(&store);
    for (number, fault) in
        [NetworkFault::LoseAnswer, NetworkFault::LoseRequest, NetworkFault::Twice].into_iter().enumerate()
    {
        let name = [b'a' + number as u8];
        server.server.set_faults(first(1, fault, is_put));
        let info = put(&store, vid, &name, 1000).unwrap();
        server.server.clear_faults();
        assert_eq!(store.stat(vid, &name, &ReadOptions::STRICT).unwrap(), info);
        assert_eq!(put(&store, vid, &name, 9), Err(VolumeError::Exists { fid: info.fid }));
    }
}

/// The same for a volume: the second try meets its own record.
#[test]
fn a_volume_whose_answer_is_lost_is_told_as_created() {
    let server = TestServer::start();
    let store = server.store("p");
    server.server.set_faults(first(1, NetworkFault::LoseAnswer, is_put));
    let vid = volume(&store);
    assert_eq!(store.open_volume("v"), Ok(vid));
}

#[test]
fn a_busy_store_is_asked_again_and_a_forbidden_one_is_not() {
    let server = TestServer::start();
    let store = server.store("p");
    let vid = volume(&store);
    let refuse = |status, code: &str| NetworkFault::Refuse { status, code: code.to_owned() };
    for fault in [
        refuse(503, "SlowDown"),
        refuse(500, "InternalError"),
        refuse(409, "ConditionalRequestConflict"),
        refuse(403, "SlowDown"),
    ] {
        server.server.set_faults(first(1, fault, is_put));
        let info = put(&store, vid, b"n", 10).unwrap();
        store.delete(vid, b"n", info.fid).unwrap();
    }
    server.server.set_faults(first(9, refuse(403, "AccessDenied"), is_put));
    server.server.take_requests();
    let refused = put(&store, vid, b"n", 10);
    assert!(matches!(refused, Err(VolumeError::Denied { .. })), "{refused:?}");
    assert_eq!(server.server.requests().len(), 1);
}

/// No answer comes at all: the outcome is unknown, and the caller settles it.
#[test]
fn an_unknown_create_is_settled_for_good() {
    let server = TestServer::start();
    let store = server.store_with("p", Duration::ZERO);
    let vid = volume(&store);
    for len in [100, 200_000] {
        for (fault, came) in [(NetworkFault::LoseAnswer, true), (NetworkFault::LoseRequest, false)] {
            let name = format!("{len}{came}");
            server.server.set_faults(first(1, fault, is_put));
            let Err(VolumeError::Unknown { fid }) = put(&store, vid, name.as_bytes(), len) else {
                panic!("the outcome of {name} is known")
            };
            server.server.clear_faults();
            // Short files are sent until they are answered, so that a log gets no hole.
            let expected = if came || len == 100 { SettleOutcome::Committed } else { SettleOutcome::Aborted };
            assert_eq!(store.settle(vid, fid, SettleChoice::Commit), Ok(expected), "{name}");
            let there = get(&store, vid, name.as_bytes());
            assert_eq!(there.is_ok(), expected == SettleOutcome::Committed, "{name}: {there:?}");
            // Final: the object that has the name refuses each later create.
            let late = put(&store, vid, name.as_bytes(), len);
            assert!(matches!(late, Err(VolumeError::Exists { .. })), "{name}: {late:?}");
            assert_eq!(store.settle(vid, fid, SettleChoice::Abort), Ok(expected), "{name}");
        }
    }
}

/// A create that arrives after it was settled as aborted finds the tombstone object, and stays without effect.
#[test]
fn a_late_create_has_no_effect_once_it_is_settled() {
    let server = TestServer::start();
    let store = server.store_with("p", Duration::ZERO);
    let vid = volume(&store);
    server.server.set_faults(first(1, NetworkFault::LoseRequest, is_put));
    let Err(VolumeError::Unknown { fid }) = put(&store, vid, b"n", 200_000) else { panic!("it is known") };
    assert_eq!(store.settle(vid, fid, SettleChoice::Commit), Ok(SettleOutcome::Aborted));
    let key = crate::keys::file_key(vid, b"n").unwrap();
    let info = FileInfo { fid, size: 3, crc32c: 0, created_ms: 1, metadata: Bytes::new() };
    let late = Bytes::from(crate::format::file_object(&key, &info, b"abc"));
    assert_eq!(store.shared.requests.service.create(&key, late), Err(ServiceError::Taken));
    assert_eq!(get(&store, vid, b"n"), Err(VolumeError::NotFound));
    assert_eq!(store.list(vid, b"", None, 9, &ReadOptions::STRICT).unwrap(), []);
}

#[test]
fn a_streamed_file_is_exclusive_and_its_lost_answer_is_read_from_the_object() {
    let server = TestServer::start();
    let store = server.store("p");
    let vid = volume(&store);
    let stream = |name: &[u8]| {
        let mut writer = store.writer(vid, name, &PutOptions::default())?;
        for _ in 0..5 {
            writer.append(Bytes::from(vec![7; 2 << 20]))?;
        }
        writer.commit()
    };
    let is_complete = |request: &RequestFacts| request.method == "POST" && request.query.contains("uploadId");
    server.server.set_faults(first(1, NetworkFault::LoseAnswer, is_complete));
    let info = stream(b"n").unwrap();
    server.server.clear_faults();
    assert_eq!(info.size, 10 << 20);
    assert_eq!(store.stat(vid, b"n", &ReadOptions::STRICT).unwrap(), info);
    assert!(get(&store, vid, b"n").unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(stream(b"n"), Err(VolumeError::Exists { fid: info.fid }));
    server.server.set_faults(first(1, NetworkFault::LoseRequest, is_complete));
    let Err(VolumeError::Unknown { fid }) = stream(b"m") else { panic!("it is known") };
    server.server.clear_faults();
    assert_eq!(store.settle(vid, fid, SettleChoice::Commit), Ok(SettleOutcome::Aborted));
    assert_eq!(get(&store, vid, b"m"), Err(VolumeError::NotFound));
}

/// Each changed byte of an object is noticed: by its head or by the checksum of a block.
#[test]
fn changed_and_exchanged_objects_are_damaged() {
    let server = TestServer::start();
    let store = server.store("p");
    let vid = volume(&store);
    put(&store, vid, b"a", 100_000).unwrap();
    put(&store, vid, b"c", 100_000).unwrap();
    let keys = server.files();
    let read = || {
        let fresh = server.store("p");
        let vid = fresh.open_volume("v").unwrap();
        get(&fresh, vid, b"a")
    };
    let whole = server.server.object(BUCKET, &keys[0]).unwrap();
    for at in [0, 40, 300, 515, 600, 70_000, whole.len() - 1] {
        server.server.change_object(BUCKET, &keys[0], |object| object[at] ^= 1);
        let damaged = read();
        assert!(matches!(damaged, Err(VolumeError::Corrupt { .. })), "byte {at}: {damaged:?}");
        server.server.change_object(BUCKET, &keys[0], |object| object[at] ^= 1);
    }
    assert_eq!(read().unwrap().len(), 100_000);
    server.server.change_object(BUCKET, &keys[0], |object| object.truncate(90_000));
    assert!(matches!(read(), Err(VolumeError::Corrupt { .. })), "it is cut");
    let other = server.server.object(BUCKET, &keys[1]).unwrap();
    server.server.put_object(BUCKET, &keys[0], other);
    assert!(matches!(read(), Err(VolumeError::Corrupt { .. })), "the object of another name");
    server.server.put_object(BUCKET, &keys[0], vec![1, 2, 3]);
    assert!(matches!(read(), Err(VolumeError::Corrupt { .. })), "a foreign object");
}

/// An answer that is cut in the middle is no damage: it is asked for again.
#[test]
fn cut_answers_are_read_again() {
    let server = TestServer::start();
    let store = server.store("p");
    let vid = volume(&store);
    put(&store, vid, b"n", 300_000).unwrap();
    for cut in [0, 100, 5000] {
        server.server.set_faults(first(2, NetworkFault::CutAnswer(cut), |request| request.method == "GET"));
        assert_eq!(get(&store, vid, b"n").unwrap().len(), 300_000, "cut after {cut} bytes");
        assert_eq!(store.list(vid, b"", None, 9, &ReadOptions::STRICT).unwrap().len(), 1);
    }
}

#[test]
fn a_store_that_ignores_conditions_or_lists_late_is_unsuitable() {
    let server = TestServer::start();
    let text = format!("s3://{BUCKET}/p?endpoint={}&region=us-east-1", server.server.url());
    let url = RemoteUrl::parse(&text).unwrap().unwrap();
    let client = RemoteClient::with_keys(&url, "ak", "sk", Arc::new(|| false)).unwrap();
    let rules = RetryRules { retry_for: Duration::from_secs(5), stop: Arc::new(|| false) };
    let probe = || probe::run(&client, &rules).unwrap();
    let report = probe();
    assert_eq!(report.unsuitable(), None, "{report:?}");
    assert_eq!((report.may_delete, report.delete_has_condition), (ProbeOutcome::Yes, ProbeOutcome::Yes));
    assert_eq!((report.may_overwrite, report.left_behind.len()), (ProbeOutcome::Yes, 0));
    server.server.ignore_put_conditions(true);
    assert!(probe().unsuitable().is_some_and(|why| why.contains("If-None-Match")));
    server.server.ignore_put_conditions(false);
    server.server.ignore_complete_conditions(true);
    assert!(probe().unsuitable().is_some_and(|why| why.contains("upload in parts")));
    server.server.ignore_complete_conditions(false);
    server.server.list_lag(Duration::from_millis(200));
    assert!(probe().unsuitable().is_some_and(|why| why.contains("lists are late")));
    server.server.list_lag(Duration::ZERO);
    server.server.set_clock_offset(3600);
    let offset = probe().clock_offset_ms.unwrap();
    assert!((3_590_000..3_610_000).contains(&offset), "{offset}");
    assert_eq!(server.server.objects(BUCKET).len(), 0, "a probe leaves nothing");
    assert_eq!(server.server.open_uploads(BUCKET), 0);
}

/// Symptom: a prune of a bucket with versions freed nothing, and no command told why. Cause: the probe did not ask
/// whether deleted objects stay. Fix: the answer to a write names the version of the object in such a bucket.
#[test]
fn a_bucket_with_versions_is_told_from_one_without() {
    let server = TestServer::start();
    let probe = || {
        let text = format!("s3://{BUCKET}/p?endpoint={}&region=us-east-1", server.server.url());
        let url = RemoteUrl::parse(&text).unwrap().unwrap();
        let client = RemoteClient::with_keys(&url, "ak", "sk", Arc::new(|| false)).unwrap();
        let rules = RetryRules { retry_for: Duration::from_secs(5), stop: Arc::new(|| false) };
        probe::run(&client, &rules).unwrap()
    };
    assert_eq!(probe().keeps_versions, Some(false));
    server.server.name_versions(true);
    let report = probe();
    assert_eq!((report.keeps_versions, report.unsuitable()), (Some(true), None));
}

/// Each failure has its own sentence and kind, and no sentence repeats the words of the server or a secret.
#[test]
fn failures_are_told_apart() {
    let server = TestServer::start();
    let refuse = |status, code: &str| NetworkFault::Refuse { status, code: code.to_owned() };
    let probe_at = |text: String| {
        let url = RemoteUrl::parse(&text).unwrap().unwrap();
        let client = RemoteClient::with_keys(&url, "ak", "hush", Arc::new(|| false)).unwrap();
        let rules = RetryRules { retry_for: Duration::ZERO, stop: Arc::new(|| false) };
        probe::run(&client, &rules).unwrap_err()
    };
    let here = format!("?endpoint={}&region=us-east-1", server.server.url());
    let mut sentences = std::collections::BTreeSet::new();
    let mut expect = |error: RemoteError, failure: crate::RemoteFailure, part: &str| {
        let sentence = error.to_string();
        assert_eq!(error.failure, failure, "{sentence}");
        assert!(sentence.contains(part) && !sentence.contains("hush"), "{sentence}");
        assert!(sentences.insert(sentence.clone()), "said twice: {sentence}");
    };
    use crate::RemoteFailure::{Archived, Bucket, Credentials, Denied, Network};
    for (status, code, failure, part) in [
        (403, "InvalidAccessKeyId", Credentials, "does not know this access key"),
        (403, "SignatureDoesNotMatch", Credentials, "secret does not belong"),
        (403, "RequestTimeTooSkewed", Credentials, "set the clock"),
        (400, "ExpiredToken", Credentials, "token has expired"),
        (301, "PermanentRedirect", Bucket, "region"),
        (403, "AccessDenied", Denied, "do not permit"),
        (403, "InvalidObjectState", Archived, "archive"),
    ] {
        // An expired token is sent once more.
        server.server.set_faults(first(2, refuse(status, code), |_| true));
        expect(probe_at(format!("s3://{BUCKET}/p{here}")), failure, part);
    }
    server.server.clear_faults();
    expect(probe_at(format!("s3://missing/p{here}")), Bucket, "there is no bucket `missing`");
    expect(
        probe_at(format!("s3://{BUCKET}/p?endpoint=http://127.0.0.1:1&region=x")),
        Network,
        "refuses the connection",
    );
    expect(
        probe_at(format!("s3://{BUCKET}/p?endpoint=https://no-such-host.invalid&region=x")),
        Network,
        "does not resolve",
    );
}

/// Credentials that have expired are read again from their file, once for each request.
#[test]
fn expired_credentials_are_read_again_once() {
    let server = TestServer::start();
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("keys");
    let write = |id: &str| {
        let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = hush\n");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    let text = format!("s3://{BUCKET}/p?endpoint={}&region=us-east-1", server.server.url());
    let url = RemoteUrl::parse(&text).unwrap().unwrap();
    let options = RemoteOptions {
        retry_for: Duration::ZERO,
        credentials: Some(file.clone()),
        ..RemoteOptions::default()
    };
    server.server.allow("old", copal_testkit::KeyRights::ALL);
    write("old");
    let store = RemoteStore::new(&url, &options).unwrap();
    let vid = volume(&store);
    server.server.allow("old", copal_testkit::KeyRights::default());
    server.server.allow("new", copal_testkit::KeyRights::ALL);
    write("new");
    for code in ["ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"] {
        let expired = NetworkFault::Refuse { status: 400, code: code.to_owned() };
        server.server.set_faults(first(1, expired.clone(), is_put));
        put(&store, vid, code.as_bytes(), 10).unwrap();
        server.server.set_faults(first(9, expired, is_put));
        server.server.take_requests();
        let refused = put(&store, vid, b"n", 10);
        let cause = copal_volume::RefusalCause::Credentials;
        assert!(
            matches!(&refused, Err(VolumeError::Refused { cause: found, .. }) if *found == cause),
            "{refused:?}"
        );
        assert_eq!(server.server.requests().len(), 2, "{code}");
        server.server.clear_faults();
    }
}

/// A stopped command ends at once, also in the middle of a request without an answer.
#[test]
fn a_stopped_command_waits_for_no_answer() {
    let server = TestServer::start();
    let store = server.store("p");
    let vid = volume(&store);
    server.server.set_faults(first(9, NetworkFault::Delay(Duration::from_secs(5)), is_put));
    let text = format!("s3://{BUCKET}/p?endpoint={}&region=us-east-1", server.server.url());
    let url = RemoteUrl::parse(&text).unwrap().unwrap();
    let began = std::time::Instant::now();
    let stop: StopSignal = Arc::new(move || began.elapsed() > Duration::from_millis(100));
    let client = RemoteClient::with_keys(&url, "ak", "sk", stop.clone()).unwrap();
    let stopped = RemoteStore::on(Arc::new(client), 8, Duration::from_secs(60), stop).unwrap();
    // The request may still take effect.
    let refused = put(&stopped, vid, b"n", 10);
    assert!(matches!(refused, Err(VolumeError::Unknown { .. })), "{refused:?}");
    server.server.clear_faults();
}

/// Symptom: an export that ended by SIGTERM left its pin, so its snapshot could not be forgotten for ten minutes. Cause: no
/// request of a stopped command was sent. Fix: requests that begin after the stop are sent once, within a few seconds.
#[test]
fn a_stopped_command_can_remove_its_files() {
    let server = TestServer::start();
    let text = format!("s3://{BUCKET}/p?endpoint={}&region=us-east-1", server.server.url());
    let url = RemoteUrl::parse(&text).unwrap().unwrap();
    let is_stopped = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let signal = is_stopped.clone();
    let stop: StopSignal = Arc::new(move || signal.load(Relaxed));
    let client = RemoteClient::with_keys(&url, "ak", "sk", stop.clone()).unwrap();
    let store = RemoteStore::on(Arc::new(client), 8, Duration::from_secs(60), stop).unwrap();
    let vid = volume(&store);
    let info = put(&store, vid, b"pin", 10).unwrap();
    is_stopped.store(true, Relaxed);
    store.delete(vid, b"pin", info.fid).unwrap();
    assert_eq!(server.files(), [] as [String; 0]);
    // Without an answer no second request is sent.
    server.server.set_faults(|_| NetworkFault::LoseRequest);
    server.server.take_requests();
    assert!(put(&store, vid, b"n", 10).is_err());
    assert_eq!(server.server.requests().len(), 1);
}

/// Symptom: another host deleted a name and used it again, and a host that had read it kept its old bytes. Cause: short
/// objects were answered from memory. Fix: memory answers one read after each list that showed the object.
#[test]
fn a_name_that_another_host_used_again_is_read_anew() {
    let server = TestServer::start();
    let (one, two) = (server.store("p"), server.store("p"));
    let vid = volume(&one);
    two.open_volume("v").unwrap();
    let read = |name: &[u8]| one.get(vid, name, 0..u64::MAX, &ReadOptions::default());
    for (round, len) in [(0, 1000), (1, 300_000)] {
        let name = [b'a' + round];
        let info = put(&one, vid, &name, len).unwrap();
        for _ in 0..2 {
            assert_eq!(read(&name).unwrap().len(), len);
            one.list(vid, b"", None, 9, &ReadOptions::STRICT).unwrap();
        }
        read(&name).unwrap();
        two.delete(vid, &name, info.fid).unwrap();
        assert_eq!(one.stat(vid, &name, &ReadOptions::default()), Err(VolumeError::NotFound));
        let other = two.put(vid, &name, Bytes::from(vec![9; len]), &PutOptions::default()).unwrap();
        assert_eq!(one.stat(vid, &name, &ReadOptions::default()).unwrap(), other);
        assert!(read(&name).unwrap().iter().all(|byte| *byte == 9), "round {round}");
        two.delete(vid, &name, other.fid).unwrap();
        assert_eq!(read(&name), Err(VolumeError::NotFound));
    }
}

/// A command that comes later asks for nothing that an earlier one on this machine has read, and sees the changes of
/// another host.
#[test]
fn a_later_process_asks_only_for_what_is_new() {
    let server = TestServer::start();
    let scratch = tempfile::tempdir().unwrap();
    let process = || {
        let store = server.store("p");
        store.use_cache(ObjectCache::open(scratch.path(), 1 << 20).unwrap());
        store
    };
    let (one, other_host) = (process(), server.store("p"));
    let vid = volume(&one);
    let infos: Vec<FileInfo> =
        (b'a'..=b'j').map(|name| put(&one, vid, &[name], 500 * usize::from(name)).unwrap()).collect();
    let names: Vec<Bytes> = (b'a'..=b'j').map(|name| Bytes::from(vec![name])).collect();
    let read_all = |store: &RemoteStore| {
        store.open_volume("v").unwrap();
        let listed = store.list(vid, b"", None, 100, &ReadOptions::STRICT).unwrap();
        let read = store.get_batch(vid, &names, &ReadOptions::default()).unwrap();
        (listed, read)
    };
    let cold = read_all(&server.store("p"));
    server.server.take_requests();
    assert_eq!(read_all(&process()), cold);
    let asked = server.server.take_requests();
    // The record of the volume, and the list.
    assert_eq!(asked.len(), 2, "{asked:?}");
    other_host.open_volume("v").unwrap();
    other_host.delete(vid, b"c", infos[2].fid).unwrap();
    other_host.put(vid, b"c", Bytes::from(vec![9; 700]), &PutOptions::default()).unwrap();
    let (listed, read) = read_all(&process());
    assert_eq!(listed.len(), 10);
    assert!(read[2].as_ref().unwrap().iter().all(|byte| *byte == 9));
    // A damaged copy is asked for again.
    for shard in std::fs::read_dir(scratch.path()).unwrap() {
        for file in std::fs::read_dir(shard.unwrap().path()).into_iter().flatten() {
            std::fs::write(file.unwrap().path(), b"COPALRCE damaged").unwrap();
        }
    }
    let (again, bodies) = read_all(&process());
    assert_eq!((again, bodies), (listed, read));
}

/// A copy on this machine serves where the caller says that no second file gets the name, and nowhere else.
#[test]
fn only_a_reader_of_any_copy_is_answered_without_the_store() {
    let server = TestServer::start();
    let scratch = tempfile::tempdir().unwrap();
    let store = server.store("p");
    store.use_cache(ObjectCache::open(scratch.path(), 1 << 20).unwrap());
    let vid = volume(&store);
    put(&store, vid, b"n", 100).unwrap();
    for key in server.files() {
        server.server.remove_object(BUCKET, &key);
    }
    server.server.take_requests();
    let copy = store.get(vid, b"n", 0..u64::MAX, &ReadOptions::ANY_COPY).unwrap();
    assert_eq!((copy.len(), server.server.take_requests().len()), (100, 0));
    for options in [ReadOptions::default(), ReadOptions::STRICT] {
        assert_eq!(store.get(vid, b"n", 0..u64::MAX, &options), Err(VolumeError::NotFound));
    }
    // The store has said that it is gone.
    assert_eq!(store.get(vid, b"n", 0..u64::MAX, &ReadOptions::ANY_COPY), Err(VolumeError::NotFound));
}

/// A held list shows the volume as it was when it was read, until this process changes anything or misses an object.
#[test]
fn a_held_list_ends_with_the_first_change() {
    let server = TestServer::start();
    let (one, two) = (server.store("p"), server.store("p"));
    let vid = volume(&one);
    two.open_volume("v").unwrap();
    let infos: Vec<FileInfo> = (b'a'..=b'c').map(|name| put(&one, vid, &[name], 10).unwrap()).collect();
    let names = || {
        let page = one.list_page(vid, b"", None, 9, &ReadOptions::STRICT).unwrap();
        assert!(page.is_last);
        page.files.into_iter().flat_map(|(name, _)| name.to_vec()).collect::<Vec<u8>>()
    };
    one.hold_list(vid, 2).unwrap();
    put(&two, vid, b"d", 10).unwrap();
    assert_eq!(names(), b"abcd", "a list of more files than that is not held");
    one.hold_list(vid, 100).unwrap();
    one.hold_list(VolumeId::ROOT, 100).unwrap();
    server.server.take_requests();
    put(&two, vid, b"e", 10).unwrap();
    let of_two = server.server.take_requests().len();
    assert_eq!((of_two, names()), (1, b"abcd".to_vec()));
    assert_eq!(one.stat(vid, b"e", &ReadOptions::STRICT), Err(VolumeError::NotFound));
    assert_eq!(get(&one, vid, b"a").unwrap().len(), 10);
    assert_eq!(one.open_volume("v").unwrap(), vid);
    assert_eq!(one.open_volume("w"), Err(VolumeError::NotFound));
    assert_eq!(server.server.take_requests().len(), 0);
    // Its own change ends it.
    put(&one, vid, b"f", 10).unwrap();
    assert_eq!(names(), b"abcdef");
    // So does an object that is gone.
    one.hold_list(vid, 100).unwrap();
    two.delete(vid, b"a", infos[0].fid).unwrap();
    one.shared.objects.forget_memory();
    assert_eq!(get(&one, vid, b"a"), Err(VolumeError::NotFound));
    put(&two, vid, b"g", 10).unwrap();
    assert_eq!(names(), b"bcdefg");
    one.hold_list(vid, 100).unwrap();
    one.release_lists();
    put(&two, vid, b"h", 10).unwrap();
    assert_eq!(names(), b"bcdefgh");
}

/// A host that is killed while it removes a volume leaves files that no record leads to.
#[test]
fn files_of_removed_volumes_are_swept_and_others_stay() {
    let server = TestServer::start();
    let store = server.store_with("p", Duration::ZERO);
    let vid = volume(&store);
    for name in [b"a", b"b"] {
        put(&store, vid, name, 10).unwrap();
    }
    server.server.set_faults(first(9, NetworkFault::LoseRequest, |request| {
        request.method == "DELETE" && request.key.contains("/f/")
    }));
    store.remove_volume(vid, RemoveMode::WithFiles).unwrap_err();
    server.server.clear_faults();
    assert_eq!(server.files().len(), 2);
    server.server.put_object(BUCKET, "p/f/foreign/x", b"1".to_vec());
    let (sweeper, other) = (server.store("p"), server.store("p"));
    // A volume is created between the two lists of the sweep.
    let lists = std::sync::atomic::AtomicUsize::new(0);
    server.server.set_faults(move |request| {
        if request.query.contains("list-type") && lists.fetch_add(1, Relaxed) == 1 {
            let new = other.create_volume("", "new", &VolumeOptions::default()).unwrap();
            put(&other, new, b"n", 10).unwrap();
        }
        NetworkFault::None
    });
    assert_eq!(sweeper.sweep(), Ok(2));
    server.server.clear_faults();
    let new = store.open_volume("new").unwrap();
    assert_eq!(get(&store, new, b"n").unwrap().len(), 10);
    assert_eq!(server.files().len(), 2, "the new file, and a foreign object");
    server.server.take_requests();
    assert_eq!(store.sweep(), Ok(0));
    assert_eq!(server.server.requests().len(), 1, "known volumes are not asked about");
}

/// A delete of a record that comes about late must not hit the record of a later volume at the path.
#[test]
fn the_record_of_a_volume_is_deleted_by_its_tag() {
    let server = TestServer::start();
    let store = server.store("p");
    let vid = volume(&store);
    server.server.set_faults(|request| {
        assert!(request.method != "DELETE" || request.has_condition, "{request:?}");
        NetworkFault::None
    });
    server.store("p").remove_volume(vid, RemoveMode::WithFiles).unwrap();
    assert_eq!(server.server.objects(BUCKET).len(), 0);
}

/// Symptom: a slow process deleted a pack that another had found again. Cause: of a create, a first try without an answer
/// came about after the file was deleted, as the same file. Fix: each try makes a file of its own.
#[test]
fn a_delete_means_the_file_of_one_try() {
    let server = TestServer::start();
    let store = server.store("p");
    let vid = volume(&store);
    server.server.set_faults(first(1, NetworkFault::LateEffect(Duration::from_secs(2)), is_put));
    let info = put(&store, vid, b"n", 1000).unwrap();
    assert_eq!(
        store.stat(vid, b"n", &ReadOptions::STRICT).unwrap(),
        info,
        "it is known by the id of its object"
    );
    store.delete(vid, b"n", info.fid).unwrap();
    while server.files().is_empty() {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    server.store("p").delete(vid, b"n", info.fid).unwrap();
    assert_eq!(get(&store, vid, b"n").unwrap().len(), 1000);
}

/// A settled create is known by the id that the caller has, whichever try has made the file.
#[test]
fn a_settled_create_is_deleted_by_the_id_of_its_first_try() {
    let server = TestServer::start();
    let store = server.store_with("p", Duration::ZERO);
    let vid = volume(&store);
    server.server.set_faults(first(1, NetworkFault::LoseRequest, is_put));
    let Err(VolumeError::Unknown { fid }) = put(&store, vid, b"n", 10) else { panic!("it is known") };
    assert_eq!(store.settle(vid, fid, SettleChoice::Commit), Ok(SettleOutcome::Committed));
    assert_eq!(store.settle(vid, fid, SettleChoice::Commit), Ok(SettleOutcome::Committed));
    store.delete(vid, b"n", fid).unwrap();
    assert_eq!(server.files(), Vec::<String>::new());
}

/// Symptom: a backup over a bad network ended with "the key is taken". Cause: the check of the store repeated a create whose
/// answer was lost, and took the refusal for a failure. Fix: it reads the tag of its own object.
#[test]
fn a_probe_survives_each_lost_answer() {
    let server = TestServer::start();
    let text = format!("s3://{BUCKET}/p?endpoint={}&region=us-east-1", server.server.url());
    let client =
        RemoteClient::with_keys(&RemoteUrl::parse(&text).unwrap().unwrap(), "ak", "sk", Arc::new(|| false))
            .unwrap();
    let rules = RetryRules { retry_for: Duration::from_secs(20), stop: Arc::new(|| false) };
    server.server.take_requests();
    let whole = probe::run(&client, &rules).unwrap();
    let writes = server.server.take_requests().len();
    for lost in 0..writes {
        let count = std::sync::atomic::AtomicUsize::new(0);
        server.server.set_faults(move |_| match count.fetch_add(1, Relaxed) == lost {
            true => NetworkFault::LoseAnswer,
            false => NetworkFault::None,
        });
        match probe::run(&client, &rules) {
            // Of an upload, whose end is not repeated, the outcome is unknown.
            Err(error) => assert!(!error.to_string().contains("taken"), "request {lost}: {error}"),
            Ok(report) => assert_eq!((report.unsuitable(), report.may_delete), (None, whole.may_delete)),
        }
        server.server.clear_faults();
    }
}

/// Symptom: the first backup of a host in an old repository took the way there and back twice for each pack, one after the
/// other. Cause: ends of files were read one by one. Fix: as many at once as there are connections.
#[test]
fn ends_of_files_are_read_at_the_same_time() {
    let server = TestServer::start();
    let vid = volume(&server.store("p"));
    let names: Vec<String> = (0..20).map(|number| format!("{number:02}")).collect();
    for name in &names {
        put(&server.store("p"), vid, name.as_bytes(), 300_000).unwrap();
    }
    let (inside, most) =
        (Arc::new(std::sync::atomic::AtomicUsize::new(0)), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let (counted, seen) = (inside.clone(), most.clone());
    server.server.set_faults(move |request| {
        if request.method == "GET" && request.key.contains("/f/") {
            seen.fetch_max(counted.fetch_add(1, Relaxed) + 1, Relaxed);
            // Until another request comes; alone, it goes on after a while.
            for _ in 0..20 {
                if seen.load(Relaxed) > 1 {
                    break;
                }
                std::thread::park_timeout(Duration::from_millis(10));
            }
            counted.fetch_sub(1, Relaxed);
        }
        NetworkFault::None
    });
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let mut got = Vec::new();
    let store = server.store("p");
    store
        .tails(vid, &names, 100, &ReadOptions::ANY_COPY, &mut |index, tail| {
            let (info, bytes) = tail.unwrap();
            assert_eq!((info.size, bytes.len(), bytes[0]), (300_000, 100, names[index][0]));
            got.push(index);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(got, (0..20).collect::<Vec<_>>());
    assert!(most.load(Relaxed) > 1, "one after the other");
}
