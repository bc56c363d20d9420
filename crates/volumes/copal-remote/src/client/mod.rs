//! Requests to S3, Azure and Google by OpenDAL.
//!
//! Invariants
//! - A request is sent once: no layer of OpenDAL repeats it. One that is refused because the session token has expired is
//!   sent once more with credentials that were read again.
//! - A call ends when the command is stopped, and when no byte came for [`SILENCE`]. Calls that begin after the stop share
//!   a few seconds.

mod answers;
mod credentials;
#[cfg(feature = "hdfs")]
mod hdfs;
mod server_clock;
mod stop;
mod transport;

use crate::{
    error::{RemoteError, RemoteFailure},
    retry::StopSignal,
    service::{
        ListedObject, ListedPage, ObjectFront, ObjectService, ObjectTag, ObjectUpload, ServiceError,
        StoreObservation,
    },
    url::{CloudKind, RemoteUrl},
};
use answers::{is_expired, meaning_of};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt};
use opendal::{
    Capability, HttpTransporter, Lister, OperationContext, Operator, Writer,
    options::{DeleteOptions, ListOptions, ReaderOptions, WriteOptions},
};
use parking_lot::{Mutex, RwLock};
use server_clock::ServerClock;
use std::{fs, ops::Range, path::Path, sync::Arc, time::Duration};
use stop::StopWatch;
use transport::{AnswerFacts, LimitedTransport, with_facts};

/// Reads code and date of an answer.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz_answer(bytes: &[u8]) {
    transport::fuzz_code(bytes);
    ServerClock::default().observe(&String::from_utf8_lossy(bytes));
}

/// Longest time without a byte.
const SILENCE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(15);
/// Bytes of a part of an upload.
const PART_BYTES: usize = 8 << 20;
/// Most objects of one page that providers give.
const MOST_LISTED: usize = 1000;

/// A client of the address; sends nothing. `credentials`: file instead of the environment.
/// # Errors
/// `Usage`: the address cannot be used; `Credentials`: their file cannot; `Network`: no threads.
pub(crate) fn connect(
    url: &RemoteUrl,
    credentials: Option<&Path>,
    stop: StopSignal,
) -> Result<Arc<dyn ObjectService>, RemoteError> {
    #[cfg(feature = "hdfs")]
    if url.kind == CloudKind::Hdfs {
        return Ok(Arc::new(hdfs::HdfsClient::new(url, credentials, stop)?));
    }
    Ok(Arc::new(RemoteClient::new(url, credentials, stop)?))
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RemoteClient {
    shared: Arc<ClientState>,
}

struct ClientState {
    url: RemoteUrl,
    /// The operator, and how often the credentials were read again.
    operator: RwLock<(u64, Operator)>,
    /// Makes an operator with the credentials that the source holds now.
    connect: Box<ConnectFn>,
    runtime: tokio::runtime::Runtime,
    clock: Arc<ServerClock>,
    /// Whether the answer to the last write named a version.
    keeps_versions: Mutex<Option<bool>>,
    stop: StopWatch,
}

type ConnectFn = dyn Fn() -> Result<Operator, RemoteError> + Send + Sync;

/// A request without success.
struct FailedCall {
    meaning: ServiceError,
    /// Other credentials of the same source may help.
    is_expired: bool,
}

impl RemoteClient {
    /// A client of the address; sends nothing. `credentials`: file instead of the environment.
    /// # Errors
    /// `Usage`: address or certificate file cannot be used; `Credentials`: their file cannot; `Network`: no threads.
    pub(crate) fn new(
        url: &RemoteUrl,
        credentials: Option<&Path>,
        stop: StopSignal,
    ) -> Result<RemoteClient, RemoteError> {
        let (of_operator, file) = (url.clone(), credentials.map(Path::to_owned));
        let connect = move || credentials::operator_of(&of_operator, file.as_deref());
        RemoteClient::on(url, Box::new(connect), stop)
    }

    /// Like [`RemoteClient::new`] for S3, with these keys instead of those of the environment.
    #[cfg(test)]
    pub(crate) fn with_keys(
        url: &RemoteUrl,
        id: &str,
        secret: &str,
        stop: StopSignal,
    ) -> Result<RemoteClient, RemoteError> {
        let keyed =
            credentials::s3_builder(url).access_key_id(id).secret_access_key(secret).disable_config_load();
        let operator = Operator::new(keyed).map_err(|_| usage(url, "no operator"))?;
        RemoteClient::on(url, Box::new(move || Ok(operator.clone())), stop)
    }

    fn on(url: &RemoteUrl, connect: Box<ConnectFn>, stop: StopSignal) -> Result<RemoteClient, RemoteError> {
        let operator = connect()?;
        let clock = Arc::new(ServerClock::default());
        let http = http_client(url)?;
        let transport = LimitedTransport::new(http, url.connections, url.rps, clock.clone());
        let context = OperationContext::new().with_http_transport(HttpTransporter::new(transport));
        let operator = operator.with_context(context.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("copal-remote")
            .enable_all()
            .build()
            .map_err(|error| {
                RemoteError::new(
                    RemoteFailure::Network,
                    format!("cannot start threads for requests: {error}"),
                )
            })?;
        let shared = ClientState {
            url: url.clone(),
            operator: RwLock::new((0, operator)),
            connect: Box::new(move || Ok(connect()?.with_context(context.clone()))),
            runtime,
            clock,
            keeps_versions: Mutex::default(),
            stop: StopWatch::new(stop),
        };
        Ok(RemoteClient { shared: Arc::new(shared) })
    }

    /// Notes whether a write made a version. Google names one for every object, whether it keeps old ones or not.
    fn note_version(&self, facts: &AnswerFacts) {
        if self.shared.url.kind != CloudKind::Google {
            *self.shared.keeps_versions.lock() = Some(facts.version.is_some());
        }
    }

    /// Runs a request; once more with credentials that were read again, if those at hand have expired.
    fn call<T, F: Future<Output = opendal::Result<T>>>(
        &self,
        request: impl Fn(Operator) -> F,
    ) -> Result<(T, AnswerFacts), ServiceError> {
        let (age, operator) = self.shared.operator.read().clone();
        let renewed = match self.call_once(request(operator)) {
            Err(failed) if failed.is_expired => self.renewed(age).map_err(ServiceError::Final)?,
            answer => return answer.map_err(|failed| failed.meaning),
        };
        self.call_once(request(renewed)).map_err(|failed| failed.meaning)
    }

    /// An operator with credentials that were read after those of `age`.
    fn renewed(&self, age: u64) -> Result<Operator, RemoteError> {
        let mut current = self.shared.operator.write();
        // Another thread may have read them meanwhile.
        if current.0 == age {
            tracing::debug!("the credentials have expired and are read again");
            *current = (age + 1, (self.shared.connect)()?);
        }
        Ok(current.1.clone())
    }

    /// Runs a request on this thread; ends early when the command is stopped meanwhile, and soon when it was before.
    fn call_once<T>(
        &self,
        request: impl Future<Output = opendal::Result<T>>,
    ) -> Result<(T, AnswerFacts), FailedCall> {
        let shared = &self.shared;
        shared.runtime.block_on(async {
            tokio::select! {
                (outcome, facts) = with_facts(request) => match outcome {
                    Ok(value) => Ok((value, facts)),
                    Err(error) => Err(FailedCall {
                        meaning: meaning_of(&shared.url, &error, &facts),
                        is_expired: is_expired(shared.url.kind, &facts),
                    }),
                },
                // The request may take effect all the same; the next wait ends the command.
                () = shared.stop.ended() => Err(FailedCall {
                    meaning: ServiceError::Unanswered {
                        reason: "the command was stopped while a request was in progress".to_owned(),
                    },
                    is_expired: false,
                }),
            }
        })
    }

    /// Abilities of the provider.
    fn capability(&self) -> Capability {
        self.shared.operator.read().1.info().capability()
    }
}

fn usage(url: &RemoteUrl, sentence: &str) -> RemoteError {
    RemoteError::new(RemoteFailure::Usage, format!("{url}: {sentence}"))
}

fn http_client(url: &RemoteUrl) -> Result<reqwest::Client, RemoteError> {
    // The first one stays; the cluster's client installs the same.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        .tcp_user_timeout(SILENCE)
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(url.connections as usize);
    if let Some(file) = &url.ca {
        let unusable = |why: String| usage(url, &format!("the certificates in {} {why}", file.display()));
        let pem = fs::read(file).map_err(|error| unusable(format!("cannot be read: {error}")))?;
        let certificates = reqwest::Certificate::from_pem_bundle(&pem)
            .map_err(|_| unusable("are not in the form of PEM".to_owned()))?;
        for certificate in certificates {
            builder = builder.add_root_certificate(certificate);
        }
    }
    builder
        .build()
        .map_err(|_| usage(url, "no TLS on this machine: its certificates of authorities cannot be read"))
}

/// Options of a create: the condition, and one request.
fn exclusive() -> WriteOptions {
    WriteOptions { if_not_exists: true, ..WriteOptions::default() }
}

impl ObjectService for RemoteClient {
    fn create(&self, key: &str, body: Bytes) -> Result<ObjectTag, ServiceError> {
        let (metadata, facts) = self.call(|operator| {
            let body = body.clone();
            async move { operator.write_options(key, body, exclusive()).await }
        })?;
        self.note_version(&facts);
        Ok(metadata.etag().map(str::to_owned).or(facts.tag).unwrap_or_default())
    }

    fn overwrite(&self, key: &str, body: Bytes) -> Result<(), ServiceError> {
        let request = |operator: Operator| {
            let body = body.clone();
            async move { operator.write(key, body).await }
        };
        self.call(request).map(drop)
    }

    fn upload(&self, key: &str) -> Result<Box<dyn ObjectUpload>, ServiceError> {
        let options = || WriteOptions { chunk: Some(PART_BYTES), ..exclusive() };
        let (writer, _) =
            self.call(|operator| async move { operator.writer_options(key, options()).await })?;
        Ok(Box::new(PartUpload { client: self.clone(), writer, is_open: true }))
    }

    fn front(&self, key: &str, limit: u64) -> Result<ObjectFront, ServiceError> {
        let (bytes, facts) = self.call(|operator| async move {
            let mut stream = operator.reader(key).await?.into_stream(0..limit).await?;
            let mut bytes = BytesMut::new();
            // A shorter object ends the stream with an error; its length decides whether all bytes came.
            loop {
                match stream.next().await {
                    Some(Ok(piece)) => bytes.extend_from_slice(&piece.to_bytes()),
                    Some(Err(error)) if bytes.is_empty() => return Err(error),
                    Some(Err(_)) | None => return Ok(bytes.freeze()),
                }
            }
        })?;
        let cut = || ServiceError::Unanswered { reason: format!("{}: an answer was cut", self.shared.url) };
        let total = facts.total.ok_or_else(cut)?;
        if bytes.len() as u64 != limit.min(total) {
            return Err(cut());
        }
        Ok(ObjectFront { bytes, total, tag: facts.tag.unwrap_or_default() })
    }

    fn read(&self, key: &str, range: Range<u64>) -> Result<Bytes, ServiceError> {
        self.read_tagged(key, range, "")
    }

    fn read_tagged(&self, key: &str, range: Range<u64>, tag: &str) -> Result<Bytes, ServiceError> {
        let bytes = range.end - range.start;
        let takes_tag = self.capability().read_with_if_match;
        let options = ReaderOptions {
            if_match: Some(tag).filter(|tag| takes_tag && !tag.is_empty()).map(str::to_owned),
            ..ReaderOptions::default()
        };
        let request = |operator: Operator| {
            let (options, range) = (options.clone(), range.clone());
            async move {
                let mut stream = operator.reader_options(key, options).await?.into_stream(range).await?;
                // Each piece is copied when it comes, so no answer is held twice.
                let mut read = BytesMut::with_capacity(bytes as usize);
                while let Some(piece) = stream.try_next().await? {
                    read.extend_from_slice(&piece.to_bytes());
                }
                Ok(read.freeze())
            }
        };
        let (read, _) = self.call(request)?;
        match read.len() as u64 == bytes {
            true => Ok(read),
            false => {
                Err(ServiceError::Unanswered { reason: format!("{}: an answer was cut", self.shared.url) })
            }
        }
    }

    fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<ListedPage, ServiceError> {
        let limit = limit.clamp(1, MOST_LISTED);
        let can_skip = self.capability().list_with_start_after;
        let options = ListOptions {
            recursive: true,
            limit: can_skip.then_some(limit),
            start_after: after.filter(|_| can_skip).map(str::to_owned),
            ..ListOptions::default()
        };
        let request = |operator: Operator| {
            let options = options.clone();
            async move {
                let lister = operator.lister_options(prefix, options).await?;
                page_of(lister, prefix, after, limit).await
            }
        };
        self.call(request).map(|(page, _)| page)
    }

    fn groups(&self, prefix: &str) -> Result<Vec<String>, ServiceError> {
        let request = |operator: Operator| async move {
            let options = ListOptions { recursive: false, ..ListOptions::default() };
            let mut lister = operator.lister_options(prefix, options).await?;
            let mut found = Vec::new();
            while let Some(entry) = lister.try_next().await? {
                if entry.metadata().is_dir() && entry.path() != prefix {
                    found.push(entry.path().to_owned());
                }
            }
            Ok(found)
        };
        self.call(request).map(|(found, _)| found)
    }

    fn delete(&self, key: &str, tag: Option<&str>) -> Result<(), ServiceError> {
        let takes_tag = self.capability().delete_with_if_match;
        let options = DeleteOptions {
            if_match: tag.filter(|tag| takes_tag && !tag.is_empty()).map(str::to_owned),
            ..DeleteOptions::default()
        };
        let request = |operator: Operator| {
            let options = options.clone();
            async move { operator.delete_options(key, options).await }
        };
        self.call(request).map(drop).map_err(|error| match error {
            ServiceError::Final(error) if error.failure == RemoteFailure::Denied => {
                let RemoteUrl { bucket, prefix, .. } = &self.shared.url;
                let stays = format!("{error}; the object {prefix}/{key} stays in {bucket}");
                ServiceError::Final(RemoteError::new(RemoteFailure::Denied, stays))
            }
            error => error,
        })
    }

    fn now_ms(&self) -> u64 {
        self.shared.clock.now_ms()
    }

    fn observation(&self) -> StoreObservation {
        let keeps_versions = *self.shared.keeps_versions.lock();
        StoreObservation { clock_offset: self.shared.clock.offset(), keeps_versions }
    }
}

/// The wanted objects of a list, up to `limit`.
async fn page_of(
    mut lister: Lister,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> opendal::Result<ListedPage> {
    let mut page = ListedPage { objects: Vec::new(), is_last: true };
    let found = &mut page.objects;
    while let Some(entry) = lister.try_next().await? {
        let key = entry.path();
        let is_wanted =
            entry.metadata().is_file() && key.starts_with(prefix) && after.is_none_or(|after| key > after);
        if is_wanted {
            found.push(ListedObject {
                key: key.to_owned(),
                bytes: entry.metadata().content_length(),
                tag: entry.metadata().etag().unwrap_or_default().to_owned(),
            });
        }
        if found.len() == limit {
            page.is_last = false;
            break;
        }
    }
    Ok(page)
}

/// Upload in parts. It keeps the credentials of its begin.
struct PartUpload {
    client: RemoteClient,
    writer: Writer,
    is_open: bool,
}

impl ObjectUpload for PartUpload {
    fn append(&mut self, data: Bytes) -> Result<(), ServiceError> {
        let client = self.client.clone();
        client.call_once(self.writer.write(data)).map(drop).map_err(|failed| failed.meaning)
    }

    fn complete(&mut self) -> Result<ObjectTag, ServiceError> {
        let client = self.client.clone();
        let (metadata, facts) = client.call_once(self.writer.close()).map_err(|failed| failed.meaning)?;
        self.is_open = false;
        Ok(metadata.etag().map(str::to_owned).or(facts.tag).unwrap_or_default())
    }

    fn abort(&mut self) {
        if std::mem::take(&mut self.is_open) {
            let client = self.client.clone();
            // Also when the command was stopped: parts cost money until they are removed.
            let aborted = client.shared.runtime.block_on(async {
                tokio::time::timeout(CONNECT, self.writer.abort()).await.is_ok_and(|aborted| aborted.is_ok())
            });
            if !aborted {
                tracing::debug!("the parts of an upload stay until a rule of the bucket removes them");
            }
        }
    }
}

impl Drop for PartUpload {
    fn drop(&mut self) {
        self.abort();
    }
}
