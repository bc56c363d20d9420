//! A server for the object protocol of S3, in memory and on loopback, with faults that a test chooses.
//!
//! - Path style only. Objects, lists (version 2), multipart uploads, deletion of many keys, conditions.
//! - An operation runs alone: of two conditional writes to one key, one wins.
//! - A fault ([`NetworkFault`]) loses, cuts, delays, refuses or repeats a request.
//! - Options imitate stores that ignore conditions or whose lists lag behind.
//!
//! Not here: TLS, signatures, checksums, metadata of users, versions, copies, the smallest size of a part.

mod access;
mod connection;
mod dates;
mod encoding;
mod errors;
mod faults;
mod http;
mod listing;
mod objects;
mod operations;
mod requests;
mod state;
#[cfg(test)]
mod tests;
mod uploads;
mod xml;

pub use access::KeyRights;
pub use faults::{NetworkFault, RequestFacts};
pub use state::LoggedRequest;

use objects::ObjectCondition;
use state::{LONGEST_WAIT, ServerState};
use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

/// A server on a free port of 127.0.0.1, with a thread for each connection. The drop ends it and its
/// connections.
pub struct ObjectServer {
    state: Arc<ServerState>,
    address: SocketAddr,
    listener: Option<JoinHandle<()>>,
}

impl fmt::Debug for ObjectServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectServer").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Start and configuration.
impl ObjectServer {
    /// A server without buckets.
    ///
    /// # Panics
    /// When the system gives no port or no thread.
    pub fn start() -> ObjectServer {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listening on loopback");
        let address = listener.local_addr().expect("address of the listener");
        let state = Arc::new(ServerState::default());
        let shared = Arc::clone(&state);
        let accept = move || accept_connections(&shared, &listener);
        let listener = thread::Builder::new().name("object server".into()).spawn(accept);
        ObjectServer { state, address, listener: Some(listener.expect("a thread of the server")) }
    }

    /// Such as `http://127.0.0.1:40001`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Permits an access key. From the first call on, the server refuses requests without a permitted key.
    /// A second call for the same key replaces its rights.
    pub fn allow(&self, access_key_id: &str, rights: KeyRights) {
        self.state.store.lock().access.allow(access_key_id, rights);
    }

    /// Seconds by which the server's clock is ahead, or behind if negative.
    pub fn set_clock_offset(&self, seconds: i64) {
        self.state.store.lock().clock_offset = seconds;
    }

    /// Whether PUT of an object ignores conditions.
    pub fn ignore_put_conditions(&self, ignores: bool) {
        self.state.store.lock().defects.ignores_put_conditions = ignores;
    }

    /// Whether the completion of an upload ignores conditions.
    pub fn ignore_complete_conditions(&self, ignores: bool) {
        self.state.store.lock().defects.ignores_complete_conditions = ignores;
    }

    /// Whether deletions ignore conditions.
    pub fn ignore_delete_conditions(&self, ignores: bool) {
        self.state.store.lock().defects.ignores_delete_conditions = ignores;
    }

    /// Whether answers to writes name a version of the object, as those of a bucket with versions do. Old versions are
    /// not kept.
    pub fn name_versions(&self, names: bool) {
        self.state.store.lock().names_versions = names;
    }

    /// Lists show changes made from now on only after that time. Reads of objects show them at once.
    pub fn list_lag(&self, lag: Duration) {
        self.state.store.lock().objects.list_lag = lag.min(LONGEST_WAIT);
    }

    /// Keeps each object of a bucket as a file whose path is the key, as MinIO and SeaweedFS do.
    /// - A part of a key between slashes has at most 255 bytes.
    /// - A create is refused where objects lie below the key.
    /// - Lists do not show objects below an object.
    ///
    /// # Panics
    /// When the bucket is missing.
    pub fn keep_as_files(&self, bucket: &str) {
        self.state.store.lock().objects.bucket_mut(bucket).expect("the bucket exists").has_files = true;
    }

    /// Chooses a fault for each request. Several threads may call `rule` at once.
    pub fn set_faults(&self, rule: impl Fn(&RequestFacts) -> NetworkFault + Send + Sync + 'static) {
        *self.state.faults.lock() = Some(Arc::new(rule));
    }

    /// Answers further requests without faults.
    pub fn clear_faults(&self) {
        *self.state.faults.lock() = None;
    }
}

/// Log and content.
impl ObjectServer {
    /// All requests since the start or the last [`ObjectServer::take_requests`], in the order of their
    /// outcomes. Requests that are no HTTP or have a malformed address are left out.
    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.state.log.lock().clone()
    }

    /// Like [`ObjectServer::requests`]; empties the log.
    pub fn take_requests(&self) -> Vec<LoggedRequest> {
        std::mem::take(&mut *self.state.log.lock())
    }

    /// Number of logged requests of a kind.
    pub fn count(&self, is_counted: impl Fn(&LoggedRequest) -> bool) -> usize {
        self.state.log.lock().iter().filter(|request| is_counted(request)).count()
    }

    /// Creates a bucket; one that exists stays as it is.
    pub fn create_bucket(&self, name: &str) {
        // The only refusal is that the bucket exists.
        let _ = self.state.store.lock().objects.create_bucket(name);
    }

    /// Keys and bodies of a bucket, ordered by key. The lag of lists has no effect here.
    ///
    /// # Panics
    /// When the bucket is missing.
    pub fn objects(&self, bucket: &str) -> Vec<(String, Vec<u8>)> {
        let store = self.state.store.lock();
        let objects = store.objects.bucket(bucket).expect("the bucket exists");
        objects.all().map(|(key, object)| (key.to_owned(), object.body.to_vec())).collect()
    }

    /// Body of one object, if it exists.
    ///
    /// # Panics
    /// When the bucket is missing.
    pub fn object(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        let store = self.state.store.lock();
        let objects = store.objects.bucket(bucket).expect("the bucket exists");
        objects.object(key).map(|object| object.body.to_vec())
    }

    /// Writes an object as another client would: with a new ETag, and with the lag of lists.
    ///
    /// # Panics
    /// When the bucket is missing.
    pub fn put_object(&self, bucket: &str, key: &str, body: impl Into<Vec<u8>>) {
        let now = self.state.now();
        let mut store = self.state.store.lock();
        let written = store.objects.write((bucket, key), body.into(), &ObjectCondition::default(), now);
        written.expect("the bucket exists");
    }

    /// Deletes an object as another client would; returns whether it existed.
    ///
    /// # Panics
    /// When the bucket is missing.
    pub fn remove_object(&self, bucket: &str, key: &str) -> bool {
        let now = self.state.now();
        let mut store = self.state.store.lock();
        let deleted = store.objects.delete((bucket, key), &ObjectCondition::default(), now);
        deleted.expect("the bucket exists")
    }

    /// Changes the body of an object and nothing else, as silent damage does: its ETag stays.
    ///
    /// # Panics
    /// When the bucket or the object is missing.
    pub fn change_object(&self, bucket: &str, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let is_present = self.state.store.lock().objects.damage((bucket, key), change);
        assert!(is_present, "no object {key:?} in bucket {bucket:?}");
    }

    /// Number of uploads that are neither completed nor aborted.
    ///
    /// # Panics
    /// When the bucket is missing.
    pub fn open_uploads(&self, bucket: &str) -> usize {
        self.state.store.lock().objects.bucket(bucket).expect("the bucket exists").uploads.len()
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        self.state.stop();
        // The listener sees the end when it accepts a connection.
        let is_woken = TcpStream::connect(self.address).is_ok();
        if let Some(listener) = self.listener.take().filter(|_| is_woken) {
            // A listener that panicked has ended too.
            let _ = listener.join();
        }
        self.state.close_connections();
    }
}

fn accept_connections(state: &Arc<ServerState>, listener: &TcpListener) {
    for stream in listener.incoming() {
        if state.has_stopped() {
            return;
        }
        // A connection that its client closed already, or too few file descriptors.
        let Ok(stream) = stream else { continue };
        let state = Arc::clone(state);
        let serve = move || {
            // The client sees a failure of the network as the end of its connection.
            let _ = connection::serve(&state, &stream);
        };
        // Without a thread the stream is dropped, and the client sees its end.
        let _ = thread::Builder::new().name("object connection".into()).spawn(serve);
    }
}
