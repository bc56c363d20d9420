//! Requests to S3, Azure and Google by OpenDAL.
//!
//! Invariants
//! - A request is sent once: no layer of OpenDAL repeats it.
//! - A call ends when the command is stopped, and when no byte came for [`SILENCE`]. Calls that begin after the stop share
//!   [`TIDYING`].

mod answers;
mod server_clock;
mod transport;

use crate::{
    error::{RemoteError, RemoteFailure},
    retry::StopSignal,
    service::{ListedObject, ListedPage, ObjectFront, ObjectService, ObjectTag, ObjectUpload, ServiceError},
    url::{CloudKind, RemoteUrl},
};
use answers::meaning_of;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt};
use opendal::{
    HttpTransporter, OperationContext, Operator, Writer,
    options::{DeleteOptions, ListOptions, ReaderOptions, WriteOptions},
    services,
};
use parking_lot::Mutex;
use server_clock::ServerClock;
use std::{
    fs,
    ops::Range,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
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
/// Between two looks whether the command was stopped.
const LOOK: Duration = Duration::from_millis(50);
/// Time of a stopped command for requests that tidy up: an export removes its pin, a backup ends its session.
const TIDYING: Duration = Duration::from_secs(5);
/// Bytes of a part of an upload.
const PART_BYTES: usize = 8 << 20;
/// Most objects of one page that providers give.
const MOST_LISTED: usize = 1000;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RemoteClient {
    shared: Arc<ClientState>,
}

struct ClientState {
    url: RemoteUrl,
    operator: Operator,
    runtime: tokio::runtime::Runtime,
    clock: Arc<ServerClock>,
    stop: StopSignal,
    /// When a call first noticed that the command was stopped.
    stopped: OnceLock<Instant>,
    /// The last failure that no further try would have helped.
    failure: Mutex<Option<RemoteError>>,
}

impl RemoteClient {
    /// A client of the address; sends nothing.
    /// # Errors
    /// `Usage`: address or certificate file cannot be used; `Network`: no threads.
    pub(crate) fn new(url: &RemoteUrl, stop: StopSignal) -> Result<RemoteClient, RemoteError> {
        RemoteClient::on(url, operator_of(url)?, stop)
    }

    /// Like [`RemoteClient::new`] for S3, with these keys instead of those of the environment.
    #[cfg(test)]
    pub(crate) fn with_keys(
        url: &RemoteUrl,
        id: &str,
        secret: &str,
        stop: StopSignal,
    ) -> Result<RemoteClient, RemoteError> {
        let builder = s3_builder(url).access_key_id(id).secret_access_key(secret).disable_config_load();
        RemoteClient::on(url, Operator::new(builder).map_err(|_| usage(url, "no operator"))?, stop)
    }

    fn on(url: &RemoteUrl, operator: Operator, stop: StopSignal) -> Result<RemoteClient, RemoteError> {
        let clock = Arc::new(ServerClock::default());
        let http = http_client(url)?;
        let transport = LimitedTransport::new(http, url.connections, url.rps, clock.clone());
        let context = OperationContext::new().with_http_transport(HttpTransporter::new(transport));
        let operator = operator.with_context(context);
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
            operator,
            runtime,
            clock,
            stop,
            stopped: OnceLock::new(),
            failure: Mutex::default(),
        };
        Ok(RemoteClient { shared: Arc::new(shared) })
    }

    /// Time of the store minus that of this machine: its amount, and whether the store is ahead.
    pub(crate) fn clock_offset(&self) -> Option<(Duration, bool)> {
        self.shared.clock.offset()
    }

    /// The last failure that no further try would have helped.
    pub(crate) fn last_failure(&self) -> Option<RemoteError> {
        self.shared.failure.lock().clone()
    }

    /// Runs a request on this thread; ends early when the command is stopped meanwhile, and soon when it was before.
    fn call<T>(
        &self,
        request: impl Future<Output = opendal::Result<T>>,
    ) -> Result<(T, AnswerFacts), ServiceError> {
        let shared = &self.shared;
        let stopped = async {
            if (shared.stop)() {
                let since = *shared.stopped.get_or_init(Instant::now);
                return tokio::time::sleep_until((since + TIDYING).into()).await;
            }
            while !(shared.stop)() {
                tokio::time::sleep(LOOK).await;
            }
            shared.stopped.get_or_init(Instant::now);
        };
        shared.runtime.block_on(async {
            tokio::select! {
                (outcome, facts) = with_facts(request) => match outcome {
                    Ok(value) => Ok((value, facts)),
                    Err(error) => {
                        let meaning = meaning_of(&shared.url, &error, &facts);
                        if let ServiceError::Final(error) = &meaning {
                            *shared.failure.lock() = Some(error.clone());
                        }
                        Err(meaning)
                    }
                },
                // The request may take effect all the same; the next wait ends the command.
                () = stopped => Err(ServiceError::Unanswered {
                    reason: "the command was stopped while a request was in progress".to_owned(),
                }),
            }
        })
    }

    fn operator(&self) -> &Operator {
        &self.shared.operator
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

/// Prefix of all keys, as OpenDAL takes it.
fn root_of(url: &RemoteUrl) -> String {
    format!("/{}/", url.prefix)
}

fn s3_builder(url: &RemoteUrl) -> services::S3 {
    let mut builder = services::S3::default().root(&root_of(url)).bucket(&url.bucket);
    if let Some(endpoint) = &url.endpoint {
        builder = builder.endpoint(endpoint);
    }
    let region = url.region.clone().or_else(|| std::env::var("AWS_REGION").ok());
    let region = region.or_else(|| std::env::var("AWS_DEFAULT_REGION").ok());
    builder = builder.region(region.as_deref().unwrap_or("us-east-1"));
    if url.virtual_host {
        builder = builder.enable_virtual_host_style();
    }
    if !url.instance_credentials {
        builder = builder.disable_ec2_metadata();
    }
    builder
}

fn operator_of(url: &RemoteUrl) -> Result<Operator, RemoteError> {
    let root = root_of(url);
    let built = match url.kind {
        CloudKind::S3 => Operator::new(s3_builder(url)),
        CloudKind::Azure => {
            let account = url.account.as_deref().unwrap_or_default();
            let own = format!("https://{account}.blob.core.windows.net");
            let builder = services::Azblob::default()
                .root(&root)
                .container(&url.bucket)
                .account_name(account)
                .endpoint(url.endpoint.as_deref().unwrap_or(&own));
            Operator::new(match std::env::var("AZURE_STORAGE_ACCOUNT_KEY") {
                Ok(key) => builder.account_key(&key),
                Err(_) => builder,
            })
        }
        CloudKind::Google => {
            let mut builder = services::Gcs::default().root(&root).bucket(&url.bucket);
            if let Some(endpoint) = &url.endpoint {
                builder = builder.endpoint(endpoint);
            }
            if !url.instance_credentials {
                builder = builder.disable_vm_metadata();
            }
            Operator::new(builder)
        }
    };
    built.map_err(|_| usage(url, "the address cannot be used; check bucket, region and endpoint"))
}

/// Options of a create: the condition, and one request.
fn exclusive() -> WriteOptions {
    WriteOptions { if_not_exists: true, ..WriteOptions::default() }
}

impl ObjectService for RemoteClient {
    fn create(&self, key: &str, body: Bytes) -> Result<ObjectTag, ServiceError> {
        let (metadata, facts) = self.call(self.operator().write_options(key, body, exclusive()))?;
        Ok(metadata.etag().map(str::to_owned).or(facts.tag).unwrap_or_default())
    }

    fn overwrite(&self, key: &str, body: Bytes) -> Result<(), ServiceError> {
        self.call(self.operator().write(key, body)).map(drop)
    }

    fn upload(&self, key: &str) -> Result<Box<dyn ObjectUpload>, ServiceError> {
        let options = WriteOptions { chunk: Some(PART_BYTES), ..exclusive() };
        let (writer, _) = self.call(self.operator().writer_options(key, options))?;
        Ok(Box::new(PartUpload { client: self.clone(), writer, is_open: true }))
    }

    fn front(&self, key: &str, limit: u64) -> Result<ObjectFront, ServiceError> {
        let (bytes, facts) = self.call(async {
            let mut stream = self.operator().reader(key).await?.into_stream(0..limit).await?;
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
        let takes_tag = self.operator().info().capability().read_with_if_match;
        let options = ReaderOptions {
            if_match: Some(tag).filter(|tag| takes_tag && !tag.is_empty()).map(str::to_owned),
            ..ReaderOptions::default()
        };
        let request = async {
            let stream = self.operator().reader_options(key, options).await?.into_stream(range).await?;
            let pieces: Vec<opendal::Buffer> = stream.try_collect().await?;
            Ok(pieces.into_iter().flatten().collect::<opendal::Buffer>().to_bytes())
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
        let can_skip = self.operator().info().capability().list_with_start_after;
        let options = ListOptions {
            recursive: true,
            limit: can_skip.then_some(limit),
            start_after: after.filter(|_| can_skip).map(str::to_owned),
            ..ListOptions::default()
        };
        let request = async {
            let mut lister = self.operator().lister_options(prefix, options).await?;
            let mut page = ListedPage { objects: Vec::new(), is_last: true };
            let found = &mut page.objects;
            while let Some(entry) = lister.try_next().await? {
                let key = entry.path();
                let is_wanted = entry.metadata().is_file()
                    && key.starts_with(prefix)
                    && after.is_none_or(|after| key > after);
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
        };
        self.call(request).map(|(page, _)| page)
    }

    fn groups(&self, prefix: &str) -> Result<Vec<String>, ServiceError> {
        let request = async {
            let options = ListOptions { recursive: false, ..ListOptions::default() };
            let mut lister = self.operator().lister_options(prefix, options).await?;
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
        let takes_tag = self.operator().info().capability().delete_with_if_match;
        let options = DeleteOptions {
            if_match: tag.filter(|tag| takes_tag && !tag.is_empty()).map(str::to_owned),
            ..DeleteOptions::default()
        };
        self.call(self.operator().delete_options(key, options)).map(drop)
    }

    fn now_ms(&self) -> u64 {
        self.shared.clock.now_ms()
    }
}

/// Upload in parts.
struct PartUpload {
    client: RemoteClient,
    writer: Writer,
    is_open: bool,
}

impl ObjectUpload for PartUpload {
    fn append(&mut self, data: Bytes) -> Result<(), ServiceError> {
        let client = self.client.clone();
        client.call(self.writer.write(data)).map(drop)
    }

    fn complete(&mut self) -> Result<ObjectTag, ServiceError> {
        let client = self.client.clone();
        let (metadata, facts) = client.call(self.writer.close())?;
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
