use super::*;
use parking_lot::{Condvar, Mutex};
use std::io::{self, BufRead, BufReader, Read, Write};

/// An answer as a client sees it.
#[derive(Debug)]
struct ClientAnswer {
    status: u16,
    head: String,
    body: String,
}

impl ClientAnswer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// Texts of all elements of the body with that name.
    fn elements(&self, tag: &str) -> Vec<&str> {
        xml::elements(&self.body, tag)
    }

    fn element(&self, tag: &str) -> &str {
        self.elements(tag).first().copied().unwrap_or_default()
    }
}

/// A client with one connection.
struct TestClient {
    stream: BufReader<TcpStream>,
}

impl TestClient {
    fn new(server: &ObjectServer) -> TestClient {
        TestClient { stream: BufReader::new(TcpStream::connect(server.address()).unwrap()) }
    }

    /// Sends `METHOD TARGET` with headers and body, and reads the answer.
    fn call(&mut self, request: &str, headers: &[&str], body: &str) -> io::Result<ClientAnswer> {
        self.send(request, headers, body)?;
        self.answer(request.starts_with("HEAD"))
    }

    fn send(&mut self, request: &str, headers: &[&str], body: &str) -> io::Result<()> {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let head =
            format!("{request} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
        self.stream.get_mut().write_all((head + body).as_bytes())
    }

    fn answer(&mut self, is_head: bool) -> io::Result<ClientAnswer> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let status = head[9..12].parse().unwrap();
        let mut answer = ClientAnswer { status, head, body: String::new() };
        let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; if is_head { 0 } else { length }];
        self.stream.read_exact(&mut body)?;
        answer.body = String::from_utf8(body).unwrap();
        Ok(answer)
    }
}

fn server() -> ObjectServer {
    let server = ObjectServer::start();
    server.create_bucket("b");
    server
}

/// One request on a connection of its own.
fn call(server: &ObjectServer, request: &str, headers: &[&str], body: &str) -> ClientAnswer {
    TestClient::new(server).call(request, headers, body).unwrap()
}

fn status(server: &ObjectServer, request: &str, headers: &[&str], body: &str) -> u16 {
    call(server, request, headers, body).status
}

/// Like [`call`], where the connection is to end without a byte.
fn lost(server: &ObjectServer, request: &str, body: &str) {
    let mut client = TestClient::new(server);
    client.send(request, &[], body).unwrap();
    let mut answer = Vec::new();
    client.stream.read_to_end(&mut answer).unwrap();
    assert!(answer.is_empty(), "{answer:?}");
}

const CREATE: &[&str] = &["If-None-Match: *"];

#[test]
fn one_of_many_racing_creates_wins() {
    let server = server();
    let start = (Mutex::new(false), Condvar::new());
    let winners: usize = thread::scope(|scope| {
        let race = |body: String| {
            let mut client = TestClient::new(&server);
            let mut started = start.0.lock();
            while !*started {
                start.1.wait(&mut started);
            }
            drop(started);
            client.call("PUT /b/k", CREATE, &body).unwrap().status
        };
        let spawn = |racer: usize| {
            let run = move || race(racer.to_string());
            thread::Builder::new().spawn_scoped(scope, run).unwrap()
        };
        let racers: Vec<_> = (0..8).map(spawn).collect();
        *start.0.lock() = true;
        start.1.notify_all();
        let statuses: Vec<u16> = racers.into_iter().map(|racer| racer.join().unwrap()).collect();
        assert!(statuses.iter().all(|status| [200, 412].contains(status)), "{statuses:?}");
        statuses.iter().filter(|status| **status == 200).count()
    });
    assert_eq!((winners, server.count(|request| request.status == 412)), (1, 7));
}

#[test]
fn writes_and_deletions_keep_their_conditions() {
    let server = server();
    let mut client = TestClient::new(&server);
    let first = client.call("PUT /b/a%20%2Bb/c", &[], "one").unwrap();
    let etag = first.header("etag").unwrap().to_owned();
    let same = format!("If-Match: {etag}");
    let second = client.call("PUT /b/a%20%2Bb/c", &[&same], "one").unwrap();
    assert_ne!(second.header("etag"), Some(etag.as_str()), "every write has its own");
    let refused = client.call("PUT /b/a%20%2Bb/c", &[&same], "two").unwrap();
    assert_eq!((refused.status, refused.element("Code")), (412, "PreconditionFailed"));
    assert_eq!(client.call("DELETE /b/a%20%2Bb/c", &[&same], "").unwrap().status, 412);
    assert_eq!(client.call("PUT /b/missing", &[&same], "").unwrap().status, 404);
    assert_eq!(client.call("GET /b/a%20%2Bb/c", &[&same], "").unwrap().status, 412);
    assert_eq!(server.objects("b"), [("a +b/c".to_owned(), b"one".to_vec())]);
    let same = format!("If-Match: {}", second.header("etag").unwrap());
    assert_eq!(client.call("DELETE /b/a%20%2Bb/c", &[&same], "").unwrap().status, 204);
    assert_eq!(client.call("DELETE /b/a%20%2Bb/c", &[], "").unwrap().status, 204);
    let missing = client.call("DELETE /b/a%20%2Bb/c", &[&same], "").unwrap();
    assert_eq!((missing.status, missing.element("Code")), (404, "NoSuchKey"));
}

#[test]
fn ranges_are_those_of_the_standard() {
    let server = server();
    server.put_object("b", "k", "0123456789");
    let mut client = TestClient::new(&server);
    for (range, status, body, content_range) in [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"),
        ("bytes=8-", 206, "89", "bytes 8-9/10"),
        ("bytes=8-99999999999999999999999", 206, "89", "bytes 8-9/10"),
        ("bytes=-3", 206, "789", "bytes 7-9/10"),
        ("bytes=-30", 206, "0123456789", "bytes 0-9/10"),
        ("bytes=5-4", 200, "0123456789", ""),
        ("bytes=a-b", 200, "0123456789", ""),
    ] {
        let answer = client.call("GET /b/k", &[&format!("Range: {range}")], "").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (status, body), "{range}");
        assert_eq!(answer.header("content-range").unwrap_or_default(), content_range);
    }
    for range in ["bytes=10-", "bytes=10-20", "bytes=-0"] {
        let answer = client.call("GET /b/k", &[&format!("Range: {range}")], "").unwrap();
        assert_eq!((answer.status, answer.element("Code")), (416, "InvalidRange"), "{range}");
        assert_eq!(answer.header("content-range"), Some("bytes */10"));
    }
    let head = client.call("HEAD /b/k", &[], "").unwrap();
    assert_eq!((head.status, head.header("content-length")), (200, Some("10")));
    assert_eq!(client.call("GET /b/k", &[], "").unwrap().body, "0123456789", "HEAD sent no body");
}

#[test]
fn missing_buckets_and_keys_have_their_codes() {
    let server = server();
    let mut client = TestClient::new(&server);
    for request in ["GET /c/k", "PUT /c/k", "DELETE /c/k", "GET /c?list-type=2", "POST /c/k?uploads"] {
        let answer = client.call(request, &[], "").unwrap();
        assert_eq!((answer.status, answer.element("Code")), (404, "NoSuchBucket"), "{request}");
    }
    assert_eq!(client.call("HEAD /c", &[], "").unwrap().status, 404);
    assert_eq!(client.call("GET /b/k", &[], "").unwrap().element("Code"), "NoSuchKey");
    assert_eq!(client.call("PUT /c", &[], "").unwrap().status, 200);
    assert_eq!(client.call("PUT /c", &[], "").unwrap().status, 409);
    assert_eq!(client.call("HEAD /c", &[], "").unwrap().status, 200);
    assert_eq!(client.call("GET /b/k?acl", &[], "").unwrap().status, 501);
    server.set_clock_offset(-1_000_000_000_000);
    let answer = client.call("GET /b/k", &[], "").unwrap();
    assert_eq!(answer.header("date"), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
    assert!(answer.header("x-amz-request-id").is_some());
}

#[test]
fn lists_come_in_pages_and_in_bytewise_order() {
    let server = server();
    for key in ["a/1", "a/2", "b", "B", "a b", "ü", "c/1"] {
        server.put_object("b", key, "xy");
    }
    let mut client = TestClient::new(&server);
    let mut list = |query: &str| client.call(&format!("GET /b?list-type=2&{query}"), &[], "").unwrap();
    let all = list("");
    assert_eq!(all.elements("Key"), ["B", "a b", "a/1", "a/2", "b", "c/1", "ü"]);
    assert_eq!((all.element("KeyCount"), all.element("IsTruncated")), ("7", "false"));
    assert_eq!((all.element("Size"), all.element("LastModified").len()), ("2", 24));
    assert_eq!(list("prefix=a/").elements("Key"), ["a/1", "a/2"]);
    assert_eq!(list("prefix=a&start-after=a/1").elements("Key"), ["a/2"]);
    assert_eq!(list("start-after=b").elements("Key"), ["c/1", "ü"]);
    assert_eq!(list("encoding-type=url&max-keys=2").elements("Key"), ["B", "a+b"]);
    assert_eq!(list("max-keys=0").element("IsTruncated"), "false");
    assert_eq!((list("max-keys=x").status, list("continuation-token=zz").status), (400, 400));
    for most in 1..6 {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let page = list(&format!("delimiter=/&max-keys={most}{token}"));
            assert!(page.element("KeyCount").parse::<usize>().unwrap() <= most);
            found.extend(page.elements("Contents").into_iter().map(|one| xml::text(one, "Key").unwrap()));
            let groups = page.elements("CommonPrefixes").into_iter();
            found.extend(groups.map(|one| xml::text(one, "Prefix").unwrap()));
            if page.element("IsTruncated") == "false" {
                break;
            }
            token = format!("&continuation-token={}", page.element("NextContinuationToken"));
        }
        found.sort();
        assert_eq!(found, ["B", "a b", "a/", "b", "c/", "ü"], "{most} a page");
    }
}

/// Starts an upload and stores two parts; returns its address and the body that completes it.
fn upload(client: &mut TestClient, key: &str) -> (String, String) {
    let started = client.call(&format!("POST /b/{key}?uploads"), &[], "").unwrap();
    let target = format!("/b/{key}?uploadId={}", started.element("UploadId"));
    let mut parts = String::new();
    for (number, body) in [(1, "ab"), (2, "cd")] {
        let stored = client.call(&format!("PUT {target}&partNumber={number}"), &[], body).unwrap();
        let etag = stored.header("etag").unwrap();
        parts += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    }
    (target, format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"))
}

#[test]
fn uploads_complete_under_conditions() {
    let server = server();
    let mut client = TestClient::new(&server);
    let (first, first_body) = upload(&mut client, "k");
    let (second, second_body) = upload(&mut client, "k");
    let listed = client.call("GET /b?uploads&prefix=k", &[], "").unwrap();
    assert_eq!((listed.elements("Key"), server.open_uploads("b")), (vec!["k", "k"], 2));
    assert_eq!(
        client.call("GET /b?uploads&max-uploads=1", &[], "").unwrap().elements("NextKeyMarker"),
        ["k"]
    );
    let completed = client.call(&format!("POST {first}"), CREATE, &first_body).unwrap();
    assert_eq!((completed.status, completed.element("Key")), (200, "k"));
    let refused = client.call(&format!("POST {second}"), CREATE, &second_body).unwrap();
    assert_eq!((refused.status, server.open_uploads("b")), (412, 1));
    let again = client.call(&format!("POST {first}"), CREATE, &first_body).unwrap();
    assert_eq!((again.status, again.element("Code")), (404, "NoSuchUpload"));
    assert_eq!(server.object("b", "k").unwrap(), b"abcd");
    for (body, code) in [
        ("<Part><PartNumber>3</PartNumber><ETag>x</ETag></Part>", "InvalidPart"),
        ("<Part><PartNumber>1</PartNumber><ETag>x</ETag></Part>", "InvalidPart"),
        (&second_body.replace("Number>2<", "Number>1<"), "InvalidPartOrder"),
        ("nothing", "MalformedXML"),
    ] {
        assert_eq!(client.call(&format!("POST {second}"), &[], body).unwrap().element("Code"), code);
    }
    assert_eq!(client.call(&format!("PUT {second}&partNumber=0"), &[], "").unwrap().status, 400);
    assert_eq!(client.call(&format!("DELETE {second}"), &[], "").unwrap().status, 204);
    assert_eq!(client.call(&format!("DELETE {second}"), &[], "").unwrap().status, 404);
    assert_eq!(server.open_uploads("b"), 0);
}

#[test]
fn defects_ignore_conditions() {
    let server = server();
    server.put_object("b", "k", "old");
    server.ignore_put_conditions(true);
    assert_eq!(status(&server, "PUT /b/k", CREATE, "new"), 200);
    server.ignore_complete_conditions(true);
    let mut client = TestClient::new(&server);
    let (target, body) = upload(&mut client, "k");
    assert_eq!(client.call(&format!("POST {target}"), CREATE, &body).unwrap().status, 200);
    server.ignore_delete_conditions(true);
    assert_eq!(status(&server, "DELETE /b/k", &["If-Match: \"x\""], ""), 204);
    assert!(server.objects("b").is_empty());
}

#[test]
fn many_keys_are_deleted_at_once() {
    let server = server();
    for key in ["a&b", "c", "d"] {
        server.put_object("b", key, "");
    }
    let body = "<Delete><Object><Key>a&amp;b</Key></Object><Object><Key>c</Key><ETag>\"x\"</ETag></Object>\
                <Object><Key>missing</Key></Object></Delete>";
    let answer = call(&server, "POST /b?delete", &[], body);
    assert_eq!((answer.elements("Deleted").len(), answer.element("Code")), (2, "PreconditionFailed"));
    let left: Vec<String> = server.objects("b").into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, ["c", "d"]);
    assert_eq!(status(&server, "POST /b?delete", &[], "<Delete>"), 400);
}

#[test]
fn lists_lag_and_reads_do_not() {
    let server = server();
    let listed = || call(&server, "GET /b?list-type=2", &[], "").elements("Key").join(" ");
    server.put_object("b", "old", "");
    server.list_lag(Duration::from_secs(3600));
    server.remove_object("b", "old");
    assert_eq!(status(&server, "PUT /b/new", &[], ""), 200);
    assert_eq!((listed().as_str(), server.objects("b").len()), ("old", 1));
    assert_eq!(status(&server, "GET /b/old", &[], ""), 404);
    server.list_lag(Duration::ZERO);
    server.put_object("b", "old", "");
    server.remove_object("b", "old");
    server.list_lag(Duration::from_millis(20));
    server.put_object("b", "third", "");
    while listed() != "third" {
        assert!(server.requests().len() < 100_000, "the list never shows the third object");
    }
}

#[test]
fn keys_have_rights() {
    let server = server();
    server.put_object("b", "k", "x");
    server.allow("ADMIN", KeyRights::ALL);
    server.allow("WRITER", KeyRights { create: true, ..KeyRights::default() });
    server.allow("READER", KeyRights { read: true, list: true, ..KeyRights::default() });
    let auth = |id: &str| {
        format!("Authorization: AWS4-HMAC-SHA256 Credential={id}/20240101/r/s3/aws4_request, Signature=0")
    };
    let code = |id: &str, request: &str, headers: &[&str]| {
        let auth = auth(id);
        let headers = [headers, &[auth.as_str()]].concat();
        let answer = call(&server, request, &headers, "<Delete><Object><Key>q</Key></Object></Delete>");
        let code = answer.elements("Code").first().map(|code| (*code).to_owned());
        code.unwrap_or_else(|| answer.status.to_string())
    };
    assert_eq!(code("NOBODY", "GET /b/k", &[]), "InvalidAccessKeyId");
    assert_eq!(call(&server, "GET /b/k", &[], "").element("Code"), "AccessDenied");
    assert_eq!(status(&server, "GET /b/k?X-Amz-Credential=READER%2Fx", &[], ""), 200);
    for request in ["GET /b/k", "DELETE /b/k", "GET /b?list-type=2", "POST /b?delete", "PUT /b/new"] {
        assert_eq!(code("WRITER", request, &[]), "AccessDenied", "{request}");
    }
    assert_eq!(code("WRITER", "PUT /b/k", CREATE), "PreconditionFailed");
    assert_eq!(code("WRITER", "PUT /b/new", CREATE), "200");
    assert_eq!(code("WRITER", "PUT /b/new", &["If-Match: *"]), "AccessDenied");
    for request in ["PUT /b/other", "DELETE /b/k", "POST /b/k?uploads", "PUT /c"] {
        assert_eq!(code("READER", request, CREATE), "AccessDenied", "{request}");
    }
    assert_eq!(
        (code("READER", "GET /b/k", &[]), code("ADMIN", "PUT /b/k", &[])),
        ("200".into(), "200".into())
    );
}

#[test]
fn faults_lose_repeat_and_refuse_requests() {
    let server = server();
    let choose = |fault: NetworkFault| server.set_faults(move |_| fault.clone());
    choose(NetworkFault::LoseRequest);
    lost(&server, "PUT /b/lost", "x");
    choose(NetworkFault::LoseAnswer);
    lost(&server, "PUT /b/done", "x");
    choose(NetworkFault::Twice);
    assert_eq!(status(&server, "PUT /b/twice", CREATE, "x"), 412);
    choose(NetworkFault::Refuse { status: 503, code: "SlowDown".into() });
    let refused = call(&server, "PUT /b/refused", &[], "x");
    assert_eq!((refused.status, refused.element("Code")), (503, "SlowDown"));
    let keys: Vec<String> = server.objects("b").into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["done", "twice"]);
    let statuses: Vec<u16> = server.take_requests().iter().map(|request| request.status).collect();
    assert_eq!(statuses, [0, 200, 412, 503]);
    server.clear_faults();
    assert_eq!(status(&server, "GET /b/done", &[], ""), 200);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn faults_cut_and_delay_answers() {
    let server = server();
    server.put_object("b", "k", "0123456789");
    let choose = |fault: NetworkFault| server.set_faults(move |_| fault.clone());
    choose(NetworkFault::CutAnswer(4));
    let mut client = TestClient::new(&server);
    client.send("GET /b/k", &[], "").unwrap();
    let mut answer = String::new();
    client.stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("Content-Length: 10\r\n") && answer.ends_with("\r\n\r\n0123"), "{answer}");
    assert_eq!(server.requests()[0].bytes_out, 4);
    for fault in
        [NetworkFault::Delay(Duration::from_millis(5)), NetworkFault::Stall(Duration::from_millis(5))]
    {
        choose(fault);
        assert_eq!(call(&server, "GET /b/k", &[], "").body, "0123456789");
    }
    choose(NetworkFault::LateEffect(Duration::from_millis(5)));
    lost(&server, "PUT /b/late", "x");
    while server.object("b", "late").is_none() {
        thread::yield_now();
    }
}

#[test]
fn a_rule_sees_the_facts() {
    let server = server();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let facts = Arc::clone(&seen);
    server.set_faults(move |request| {
        facts.lock().push(request.clone());
        NetworkFault::None
    });
    call(&server, "PUT /b/a%2Fb?x=%20", CREATE, "body");
    call(&server, "GET /b?list-type=2", &[], "");
    let put = RequestFacts {
        number: 1,
        method: "PUT".into(),
        bucket: "b".into(),
        key: "a/b".into(),
        query: "x=%20".into(),
        has_condition: true,
        body_bytes: 4,
    };
    let list = ("GET".to_owned(), String::new(), 2);
    let seen = seen.lock();
    assert_eq!((&seen[0], (seen[1].method.clone(), seen[1].key.clone(), seen[1].number)), (&put, list));
}

#[test]
fn framed_bodies_and_expectations_are_read() {
    let server = server();
    let framed = "3;chunk-signature=0\r\nabc\r\n2;chunk-signature=1\r\nde\r\n0;chunk-signature=2\r\n";
    let signed =
        ["x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "x-amz-decoded-content-length: 5"];
    for end in ["", "\r\n", "x-amz-checksum-crc32: AAAAAA==\r\n\r\n"] {
        assert_eq!(status(&server, "PUT /b/k", &signed, &format!("{framed}{end}")), 200);
        assert_eq!(server.object("b", "k").unwrap(), b"abcde");
    }
    assert_eq!(status(&server, "PUT /b/k", &signed, "1\r\nab\r\n0\r\n\r\n"), 400);
    assert_eq!(status(&server, "PUT /b/k", &signed, "1\r\na\r\n0\r\n\r\n"), 400);
    let mut client = TestClient::new(&server);
    client
        .stream
        .get_mut()
        .write_all(b"PUT /b/k HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        .unwrap();
    assert_eq!(client.answer(false).unwrap().status, 100);
    client.stream.get_mut().write_all(b"ab").unwrap();
    assert_eq!(client.answer(false).unwrap().status, 200);
    client.stream.get_mut().write_all(b"PUT /b/k HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(client.answer(false).unwrap().status, 411);
}

#[test]
fn hostile_requests_are_refused_and_end_the_connection() {
    let server = server();
    for (request, status) in [
        ("nonsense\r\n\r\n", 400),
        ("PUT /b/k HTTP/1.1\r\nContent-Length: 67108865\r\n\r\n", 413),
        ("PUT /b/k HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
    ] {
        let mut client = TestClient::new(&server);
        client.stream.get_mut().write_all(request.as_bytes()).unwrap();
        assert_eq!(client.answer(false).unwrap().status, status, "{request}");
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(status(&server, "GET /b/%zz", &[], ""), 400);
    assert_eq!(status(&server, "GET /b?list-type=%ff", &[], ""), 400);
    assert_eq!(status(&server, "GET /", &[], ""), 501);
}

#[test]
fn a_change_keeps_the_etag_and_a_drop_ends_connections() {
    let server = server();
    server.put_object("b", "k", "abc");
    let mut client = TestClient::new(&server);
    let before = client.call("GET /b/k", &[], "").unwrap();
    server.change_object("b", "k", |body| body[1] ^= 1);
    let after = client.call("GET /b/k", &[], "").unwrap();
    assert_eq!((after.body.as_str(), after.header("etag")), ("acc", before.header("etag")));
    server.set_faults(|_| NetworkFault::Delay(Duration::MAX));
    client.send("GET /b/k", &[], "").unwrap();
    drop(server);
    assert!(client.answer(false).is_err());
}
