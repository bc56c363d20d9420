//! The client at a name node: `scripts/with-store.sh hdfs cargo test -p copal-remote --features hdfs --lib
//! servers_of_others`. Without the address of one in `COPAL_REMOTE_URL`, tests of servers do nothing.

use super::*;
use crate::{
    RemoteStore,
    store::tests::{get, put, volume},
};
use copal_volume::{VolumeError, VolumeStore};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

/// Address of a directory of its own at the name node of the tests.
fn address() -> Option<RemoteUrl> {
    let text = std::env::var("COPAL_REMOTE_URL").ok().filter(|text| text.starts_with("hdfs://"))?;
    let run = getrandom::u64().unwrap();
    Some(RemoteUrl::parse(&format!("{text}/{run:x}")).unwrap().unwrap())
}

fn client(url: &RemoteUrl) -> HdfsClient {
    HdfsClient::new(url, None, Arc::new(|| false)).unwrap()
}

fn body(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 1000])
}

fn keys(client: &HdfsClient, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    client.list(prefix, after, limit).unwrap().objects.into_iter().map(|object| object.key).collect()
}

fn unfinished(client: &HdfsClient) -> usize {
    let shared = &client.shared;
    client.call(shared.entries(&shared.root.unfinished())).unwrap().len()
}

#[test]
fn servers_of_others_give_a_key_in_hdfs_to_one_of_two() {
    let Some(url) = address() else { return };
    let clients = [client(&url), client(&url)];
    let mut wins = [0, 0];
    for number in 0..25 {
        let key = format!("f/01/{number:02}");
        let outcomes: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|at| {
                    let (client, key) = (&clients[at], &key);
                    let create = move || client.create(key, body(at as u8));
                    thread::Builder::new().spawn_scoped(scope, create).unwrap()
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winner = outcomes.iter().position(Result::is_ok).unwrap();
        assert_eq!(outcomes[1 - winner], Err(ServiceError::Taken), "key {number}");
        let front = clients[1 - winner].front(&key, 2000).unwrap();
        assert_eq!(front.bytes, body(winner as u8), "key {number}");
        assert_eq!(Ok(front.tag), outcomes[winner]);
        wins[winner] += 1;
    }
    assert_eq!(wins[0] + wins[1], 25);
    assert_eq!(unfinished(&clients[0]), 0, "the file of a create that lost is deleted");
}

#[test]
fn servers_of_others_list_hdfs_in_the_order_of_keys() {
    let Some(url) = address() else { return };
    let client = client(&url);
    assert_eq!(keys(&client, "n/", None, 10), [""; 0]);
    let long = "6".repeat(700);
    let mut all = vec!["n/61".to_owned(), "n/61/62".to_owned(), "n/61/62/63".to_owned(), "n/6162".to_owned()];
    all.extend([format!("n/{}", &long[..240]), format!("n/{long}"), format!("n/{long}/7")]);
    all.push("n/7".to_owned());
    for key in &all {
        client.create(key, body(1)).unwrap();
    }
    all.sort();
    assert_eq!(keys(&client, "n/", None, 100), all);
    for (at, key) in all.iter().enumerate() {
        assert_eq!(keys(&client, "n/", Some(key), 100), all[at + 1..], "after {key}");
        assert_eq!(
            keys(&client, "", Some(key), 1),
            all[at + 1..].iter().take(1).cloned().collect::<Vec<_>>()
        );
        let below: Vec<&String> = all.iter().filter(|other| other.starts_with(key.as_str())).collect();
        assert_eq!(keys(&client, key, None, 100).iter().collect::<Vec<_>>(), below, "prefix {key}");
    }
    client.create("f/0a/61", body(1)).unwrap();
    client.create("f/0b/61", body(1)).unwrap();
    assert_eq!(client.groups("f/").unwrap(), ["f/0a/", "f/0b/"]);
    client.delete("f/0a/61", None).unwrap();
    assert_eq!(client.groups("f/").unwrap(), ["f/0b/"], "an empty directory is removed");
}

#[test]
fn servers_of_others_tell_versions_in_hdfs_apart() {
    let Some(url) = address() else { return };
    let client = client(&url);
    let old = client.create("f/01/61", body(1)).unwrap();
    assert!(client.now_ms() > 0 && client.observation().clock_offset.is_some());
    assert_eq!(client.read_tagged("f/01/61", 10..20, &old).unwrap(), body(1).slice(10..20));
    assert_eq!(client.list("f/01/", None, 9).unwrap().objects[0].tag, old);
    client.overwrite("f/01/61", Bytes::from(vec![2; 900])).unwrap();
    assert_eq!(client.read_tagged("f/01/61", 10..20, &old), Err(ServiceError::Taken));
    assert_eq!(client.read("f/01/61", 899..900).unwrap(), Bytes::from(vec![2]));
    assert!(matches!(client.read("f/01/61", 0..901), Err(ServiceError::Unanswered { .. })));
    client.delete("f/01/61", Some(&old)).unwrap();
    client.delete("f/01/61", None).unwrap();
    for gone in [client.front("f/01/61", 9).map(drop), client.read("f/01/61", 0..1).map(drop)] {
        assert_eq!(gone, Err(ServiceError::NotFound));
    }
}

#[test]
fn servers_of_others_take_long_objects_in_hdfs_as_a_whole() {
    let Some(url) = address() else { return };
    let client = client(&url);
    let part = Bytes::from(vec![7; 3 << 20]);
    let (mut first, mut second) = (client.upload("f/01/61").unwrap(), client.upload("f/01/61").unwrap());
    for upload in [&mut first, &mut second] {
        upload.append(part.clone()).unwrap();
        upload.append(part.clone()).unwrap();
    }
    assert_eq!(keys(&client, "", None, 9), [""; 0], "nothing is visible before the end");
    let tag = first.complete().unwrap();
    assert_eq!(second.complete(), Err(ServiceError::Taken));
    assert_eq!(unfinished(&client), 1);
    second.abort();
    assert_eq!(unfinished(&client), 0);
    let front = client.front("f/01/61", 16).unwrap();
    assert_eq!((front.total, front.tag), (6 << 20, tag));
}

/// A file of a host that was killed goes, one that is being written stays.
#[test]
fn servers_of_others_lose_old_unfinished_files_in_hdfs() {
    let Some(url) = address() else { return };
    let client = client(&url);
    let shared = &client.shared;
    let (old, new) = (shared.unfinished().unwrap(), shared.unfinished().unwrap());
    client
        .call(async {
            for path in [&old, &new] {
                let mut writer = shared.start(path).await?;
                shared.append(&mut writer, &body(1)).await?;
                shared.finish(&mut writer).await?;
            }
            let day_before = shared.ask_time().await? - UNFINISHED_MS - 60_000;
            shared.step(shared.hdfs.set_times(&old, day_before, day_before)).await
        })
        .unwrap();
    assert_eq!(client.sweep_unfinished(), Ok(1));
    assert_eq!(unfinished(&client), 1);
    assert_eq!(client.call(shared.step(shared.hdfs.delete(&new, false))), Ok(true));
}

#[test]
fn a_name_node_that_is_not_there_is_named() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = RemoteUrl::parse(&format!("hdfs://{closed}/vms/office")).unwrap().unwrap();
    let error = client(&url).create("n/61", body(1)).unwrap_err();
    assert!(
        matches!(&error, ServiceError::Unreachable { reason } if reason.contains("refuses")),
        "{error:?}"
    );
}

/// A connection to the name node that breaks behind a rename, once.
struct LossyProxy {
    url: RemoteUrl,
    loses: Arc<AtomicBool>,
}

impl LossyProxy {
    fn start(url: &RemoteUrl) -> LossyProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bucket = listener.local_addr().unwrap().to_string();
        let loses = Arc::new(AtomicBool::new(false));
        let (target, flag) = (url.bucket.clone(), loses.clone());
        start(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(&target).unwrap();
                let is_lost = Arc::new(AtomicBool::new(false));
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (flag, loses_answer) = (flag.clone(), is_lost.clone());
                start(move || {
                    copy(&mut from, &mut to, |bytes| {
                        let is_rename = bytes.windows(7).any(|word| word == b"rename2");
                        if is_rename && flag.swap(false, SeqCst) {
                            loses_answer.store(true, SeqCst);
                        }
                        true
                    });
                });
                let (mut from, mut to) = (server, client);
                start(move || copy(&mut from, &mut to, |_| !is_lost.load(SeqCst)));
            }
        });
        LossyProxy { url: RemoteUrl { bucket, ..url.clone() }, loses }
    }
}

fn start(work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().spawn(work).unwrap();
}

/// Passes bytes on while `may_pass`; then breaks both connections.
fn copy(from: &mut TcpStream, to: &mut TcpStream, may_pass: impl Fn(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes) = from.read(&mut buffer)
        && bytes > 0
        && may_pass(&buffer[..bytes])
        && to.write_all(&buffer[..bytes]).is_ok()
    {}
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// The rename came about, and its answer did not.
#[test]
fn servers_of_others_may_lose_the_answer_of_a_rename_in_hdfs() {
    let Some(url) = address() else { return };
    let proxy = LossyProxy::start(&url);
    let lossy = client(&proxy.url);
    // The directory is there, so the first rename succeeds.
    lossy.create("f/01/60", body(1)).unwrap();
    proxy.loses.store(true, SeqCst);
    let lost = lossy.create("f/01/61", body(1));
    assert!(matches!(lost, Err(ServiceError::Unanswered { .. })), "{lost:?}");
    assert_eq!(client(&url).front("f/01/61", 9).unwrap().total, 1000);
    let store = RemoteStore::on(Arc::new(lossy), 4, Duration::from_secs(60), Arc::new(|| false)).unwrap();
    let vid = volume(&store);
    put(&store, vid, b"0", 500).unwrap();
    proxy.loses.store(true, SeqCst);
    let info = put(&store, vid, b"a", 500).unwrap();
    assert!(!proxy.loses.load(SeqCst), "an answer was lost");
    assert_eq!(get(&store, vid, b"a").unwrap().len(), 500);
    assert_eq!(put(&store, vid, b"a", 9), Err(VolumeError::Exists { fid: info.fid }));
    assert_eq!(store.volume_stats(vid).unwrap().files, 2);
}
