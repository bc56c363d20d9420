//! Bundles of short objects: their savings, and damage of them.

use super::*;

/// A store of a host with a cache of its own.
fn host(server: &TestServer, cache: &std::path::Path) -> RemoteStore {
    let store = server.store("p");
    store.use_cache(ObjectCache::open(cache, 64 << 20).unwrap());
    store
}

fn bundles(server: &TestServer) -> Vec<String> {
    let keys = server.server.objects(BUCKET).into_iter().map(|(key, _)| key);
    keys.filter(|key| key.starts_with("p/b/")).collect()
}

/// Bodies of all files by a host without a cache, and its requests.
fn read_all(server: &TestServer) -> (Vec<Bytes>, usize) {
    let cache = tempfile::tempdir().unwrap();
    let store = host(server, cache.path());
    server.server.take_requests();
    let vid = store.open_volume("v").unwrap();
    let files = store.list(vid, b"", None, 1000, &ReadOptions::STRICT).unwrap();
    let bodies =
        files.iter().map(|(name, _)| store.get(vid, name, 0..u64::MAX, &ReadOptions::ANY_COPY).unwrap());
    let bodies = bodies.collect();
    (bodies, server.server.take_requests().len())
}

fn body(number: usize) -> Bytes {
    Bytes::from(format!("body {number}").repeat(number % 50))
}

/// A host without a cache reads hundreds of short files by a few requests, once a host has bundled them.
#[test]
fn a_bundle_saves_the_requests_for_short_files() {
    let server = TestServer::start();
    let cache = tempfile::tempdir().unwrap();
    let store = host(&server, cache.path());
    let vid = volume(&store);
    let create = |number: usize| {
        let name = format!("{number:05}");
        store.put(vid, name.as_bytes(), body(number), &PutOptions::default()).unwrap()
    };
    let infos: Vec<FileInfo> = (0..400).map(create).collect();
    put(&store, vid, b"long", 100_000).unwrap();
    let want: Vec<Bytes> = (0..400).map(body).chain([Bytes::from(vec![b'l'; 100_000])]).collect();
    let (found, before) = read_all(&server);
    assert!(found == want && before > 400, "{before}");
    store.bundle(&[vid]).unwrap();
    let (found, after) = read_all(&server);
    assert!(found == want && after < 60, "{after} requests");
    // The same again makes no new one; another file does, and the old one goes.
    let first = bundles(&server);
    store.bundle(&[vid]).unwrap();
    assert_eq!((bundles(&server), first.len()), (first.clone(), 1));
    // A file that was replaced is not taken from an outdated bundle.
    let other = server.store("p");
    other.delete(vid, b"00007", infos[7].fid).unwrap();
    other.put(vid, b"00007", Bytes::from_static(b"new"), &PutOptions::default()).unwrap();
    let reader = tempfile::tempdir().unwrap();
    let late = host(&server, reader.path());
    late.list(vid, b"", None, 1000, &ReadOptions::STRICT).unwrap();
    assert_eq!(get(&late, vid, b"00007").unwrap(), "new");
    other.use_cache(ObjectCache::open(&reader.path().join("other"), 64 << 20).unwrap());
    other.bundle(&[vid]).unwrap();
    let second = bundles(&server);
    assert!(second.len() == 1 && second != first, "{second:?}");
    // Few files need none, and a host without a cache makes none.
    server.store("p").bundle(&[vid]).unwrap();
    assert_eq!(bundles(&server), second);
}

/// Bytes of a bundle are believed as little as those of the cache.
#[test]
fn a_damaged_bundle_costs_requests_and_nothing_else() {
    let server = TestServer::start();
    let cache = tempfile::tempdir().unwrap();
    let store = host(&server, cache.path());
    let vid = volume(&store);
    for number in 0..200 {
        store.put(vid, format!("{number:05}").as_bytes(), body(number), &PutOptions::default()).unwrap();
    }
    store.bundle(&[vid]).unwrap();
    let want: Vec<Bytes> = (0..200).map(body).collect();
    let key = bundles(&server).remove(0);
    let objects = server.server.objects(BUCKET);
    let good = objects.into_iter().find(|(found, _)| *found == key).unwrap().1;
    let mut flipped = good.to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    // Entries of other keys: a foreign one, and one of a file under the key of another.
    let foreign = "x/y".to_owned();
    let mut strange = cache::entry::encode(
        &foreign,
        &crate::service::ObjectFront { bytes: Bytes::from_static(b"a"), total: 1, tag: "t".to_owned() },
    )
    .unwrap();
    strange.extend_from_slice(&good);
    for damaged in [Vec::new(), vec![0; 10 << 20], good[..good.len() / 3].to_vec(), flipped, strange] {
        server.server.put_object(BUCKET, &key, damaged);
        assert!(read_all(&server).0 == want);
    }
    // Without an answer to the request of a bundle, each file is read by itself.
    server.server.set_faults(|request| match request.key.starts_with("p/b/") {
        true => NetworkFault::Refuse { status: 403, code: "AccessDenied".to_owned() },
        false => NetworkFault::None,
    });
    assert!(read_all(&server).0 == want);
}
