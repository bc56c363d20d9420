//! NBD client: blocking, with many requests in flight.
//!
//! The caller's threads send; one thread per connection receives replies and completes requests. After an I/O
//! error, a timeout or a protocol violation the connection is unusable: connect again. A client is shared
//! between threads by reference.
//!
//! Not here: several connections to one export (`connections`).

use crate::{
    ExportInfo, ExtentMap, MetaContext, NbdError, Uri,
    assembly::ReadAssembly,
    handshake,
    receiver::{self, RequestBody, RequestTable, StatusReply, WireRequest},
    stream::{LimitedStream, SocketStream, send_all},
    wire::{self, RequestKind, limits},
};
use parking_lot::Mutex;
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Time limit of the disconnect request.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Converts the error of a socket timeout.
fn in_time(error: NbdError, limit: Duration) -> NbdError {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    match error {
        NbdError::Io { source } if matches!(source.kind(), TimedOut | WouldBlock) => {
            NbdError::TimedOut { seconds: limit.as_secs() }
        }
        error => error,
    }
}

/// Options of a connection.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Metadata contexts to negotiate; missing ones are left out without an error.
    pub contexts: Vec<String>,
    /// Time limit of connecting, of the handshake, and of each request. A long request may take longer to
    /// send if the server receives it slowly but steadily.
    pub timeout: Duration,
    /// Request structured replies, which metadata contexts require.
    pub structured: bool,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            contexts: vec![wire::BASE_ALLOCATION.to_owned()],
            timeout: Duration::from_secs(60),
            structured: true,
        }
    }
}

/// Result of a read.
#[derive(Debug)]
pub struct ReadReply {
    /// The requested bytes.
    pub data: Vec<u8>,
    /// Ranges of `data` that the server reported as holes (they are zero), ascending.
    pub holes: Vec<Range<u32>>,
}

/// A read in flight.
#[derive(Debug)]
pub struct PendingRead {
    answer: Receiver<Result<ReadReply, NbdError>>,
    waiter: ReplyWaiter,
}

impl PendingRead {
    /// Waits for the bytes.
    ///
    /// # Errors
    /// `Request`: the server could not read; the connection stays usable. `TimedOut` and all others: the
    /// connection is unusable.
    pub fn wait(self) -> Result<ReadReply, NbdError> {
        self.waiter.wait(&self.answer)
    }
}

/// A write, a zeroing or a flush in flight.
#[derive(Debug)]
pub struct PendingChange {
    answer: Receiver<Result<(), NbdError>>,
    waiter: ReplyWaiter,
}

impl PendingChange {
    /// Waits until the request has completed.
    ///
    /// # Errors
    /// `Request`: the server refused or failed; the connection stays usable. `TimedOut` and all others: the
    /// connection is unusable.
    pub fn wait(self) -> Result<(), NbdError> {
        self.waiter.wait(&self.answer)
    }
}

/// Waits for a reply and closes the connection on a timeout.
#[derive(Clone)]
struct ReplyWaiter {
    table: Arc<RequestTable>,
    socket: Arc<SocketStream>,
    timeout: Duration,
}

impl std::fmt::Debug for ReplyWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl ReplyWaiter {
    fn wait<T>(&self, answer: &Receiver<Result<T, NbdError>>) -> Result<T, NbdError> {
        match answer.recv_timeout(self.timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                let error = NbdError::TimedOut { seconds: self.timeout.as_secs() };
                self.table.end(error.clone());
                self.socket.shutdown();
                Err(error)
            }
            Err(RecvTimeoutError::Disconnected) => Err(NbdError::Closed),
        }
    }
}

/// A connection to one export.
pub struct Client {
    export: ExportInfo,
    contexts: Vec<MetaContext>,
    context_ids: Arc<[u32]>,
    writer: Mutex<SocketStream>,
    cookie: AtomicU64,
    waiter: ReplyWaiter,
    receiver: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("export", &self.export).field("contexts", &self.contexts).finish()
    }
}

impl Client {
    /// Connects and selects the export. Each of the two blocks up to the time limit.
    ///
    /// # Errors
    /// `Connect`: no server listens there. `Refused`: no such export, or TLS is required. `Protocol`: not an
    /// NBD server, or a faulty one. `TimedOut`.
    pub fn connect(uri: &Uri, options: &ConnectOptions) -> Result<Client, NbdError> {
        let mut stream = SocketStream::connect(&uri.address, options.timeout)?;
        let wanted: Vec<&str> = options.contexts.iter().map(String::as_str).collect();
        let mut limited = LimitedStream::new(&mut stream, options.timeout);
        let session = handshake::negotiate(&mut limited, &uri.export, &wanted, options.structured)
            .map_err(|error| in_time(error, options.timeout))?;
        // From here on the receiver may block without limit between requests. Each request and its sending
        // have the limit instead.
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(options.timeout))?;
        let table = Arc::new(RequestTable::default());
        let reader = std::io::BufReader::with_capacity(16 << 10, stream.try_clone()?);
        let socket = Arc::new(stream.try_clone()?);
        let receiver = std::thread::Builder::new().name("nbd-receive".to_owned()).spawn({
            let table = Arc::clone(&table);
            move || receiver::run(reader, &table, session.structured)
        })?;
        Ok(Client {
            export: session.export,
            context_ids: session.contexts.iter().map(|context| context.id).collect(),
            contexts: session.contexts,
            writer: Mutex::new(stream),
            cookie: AtomicU64::new(1),
            waiter: ReplyWaiter { table, socket, timeout: options.timeout },
            receiver: Some(receiver),
        })
    }

    /// Lists the metadata contexts of an export that match `queries`, or all if empty. Uses a separate
    /// connection.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn list_contexts(uri: &Uri, queries: &[&str], timeout: Duration) -> Result<Vec<String>, NbdError> {
        let mut stream = SocketStream::connect(&uri.address, timeout)?;
        let mut limited = LimitedStream::new(&mut stream, timeout);
        let listed = handshake::list_contexts(&mut limited, &uri.export, queries);
        listed.map_err(|error| in_time(error, timeout))
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.export.size
    }

    /// Description of the export.
    pub fn export(&self) -> &ExportInfo {
        &self.export
    }

    /// The negotiated metadata contexts.
    pub fn contexts(&self) -> &[MetaContext] {
        &self.contexts
    }

    /// Starts a read of `len` bytes at `offset`. Blocks only while 64 requests are in flight. `offset` and
    /// `len` must be multiples of the export's block size.
    ///
    /// # Errors
    /// `OutOfRange`: outside the export, unaligned, empty or longer than the longest read. Other errors: the
    /// connection is unusable.
    pub fn start_read(&self, offset: u64, len: u32) -> Result<PendingRead, NbdError> {
        self.check(offset, u64::from(len))?;
        if len > self.export.max_request_bytes {
            return Err(NbdError::OutOfRange { offset, len: u64::from(len), size: self.export.size });
        }
        let (sender, answer) = sync_channel(1);
        let body = RequestBody::Read { assembly: ReadAssembly::new(offset, len), answer: sender };
        self.send(RequestKind::Read, offset, len, &[], body)?;
        Ok(PendingRead { answer, waiter: self.waiter.clone() })
    }

    /// Fills `buf` from `offset`, with as many requests in flight as it takes. Blocks.
    /// `offset` and the length must be multiples of the export's block size.
    ///
    /// # Errors
    /// As [`Client::start_read`] and [`PendingRead::wait`].
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), NbdError> {
        const PIECE_BYTES: u32 = 512 << 10;
        self.check(offset, buf.len() as u64)?;
        let block = self.export.block_bytes;
        let piece = PIECE_BYTES.max(block).min(self.export.max_request_bytes);
        self.read_pieces(offset, buf, |_| piece)
    }

    /// As [`Client::read`], but no request crosses a multiple of `unit_bytes`, a power of two that is at
    /// least the export's block size. On return none of its requests is in flight, or the connection is
    /// unusable.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn read_within(&self, offset: u64, buf: &mut [u8], unit_bytes: u32) -> Result<(), NbdError> {
        self.check(offset, buf.len() as u64)?;
        let most = self.export.max_request_bytes;
        let unit = match unit_bytes <= most {
            true => unit_bytes,
            // The largest power of two within the server's limit.
            false => 1 << most.ilog2(),
        };
        self.read_pieces(offset, buf, |at| unit - (at % u64::from(unit)) as u32)
    }

    /// Reads in pieces; `piece` returns the length of the piece at each offset.
    fn read_pieces(&self, offset: u64, buf: &mut [u8], piece: impl Fn(u64) -> u32) -> Result<(), NbdError> {
        let mut pending = Vec::new();
        let (mut at, mut rest, mut outcome) = (offset, buf, Ok(()));
        while !rest.is_empty() {
            let (part, behind) = rest.split_at_mut((piece(at) as usize).min(rest.len()));
            match self.start_read(at, part.len() as u32) {
                Ok(read) => pending.push((part, read)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            at += pending.last().map_or(0, |(part, _)| part.len() as u64);
            rest = behind;
        }
        // Also after a failure: a request left in flight may overlap the next one.
        for (part, read) in pending {
            match read.wait() {
                Ok(reply) => part.copy_from_slice(&reply.data),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Sends a write and returns once it is sent. It is durable after [`Client::flush`].
    /// `offset` and the length must be multiples of the export's block size.
    ///
    /// # Errors
    /// As [`Client::start_read`]. `ReadOnly`: the export is read-only, nothing was sent.
    pub fn start_write(&self, offset: u64, data: &[u8]) -> Result<PendingChange, NbdError> {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.check_change(offset, len, self.export.max_request_bytes)?;
        self.change(RequestKind::Write, "write", offset, len, data)
    }

    /// Zeroes a range, in which the server may punch a hole. As [`Client::start_write`], but for at most
    /// [`ExportInfo::MAX_ZERO_BYTES`].
    ///
    /// # Errors
    /// As [`Client::start_write`].
    pub fn start_zero(&self, offset: u64, len: u32) -> Result<PendingChange, NbdError> {
        self.check_change(offset, len, ExportInfo::MAX_ZERO_BYTES)?;
        self.change(RequestKind::WriteZeroes, "zeroing", offset, len, &[])
    }

    /// Makes all completed writes durable, on all connections if the server allows several. Does nothing if
    /// the server supports no flush. Blocks.
    ///
    /// # Errors
    /// As [`PendingChange::wait`]: completed writes may be lost.
    pub fn flush(&self) -> Result<(), NbdError> {
        match self.export.can_flush() {
            true => self.change(RequestKind::Flush, "flush", 0, 0, &[])?.wait(),
            false => Ok(()),
        }
    }

    fn check_change(&self, offset: u64, len: u32, most: u32) -> Result<(), NbdError> {
        if !self.export.can_write() {
            return Err(NbdError::ReadOnly);
        }
        self.check(offset, u64::from(len))?;
        match len > most {
            false => Ok(()),
            true => Err(NbdError::OutOfRange { offset, len: u64::from(len), size: self.export.size }),
        }
    }

    fn change(
        &self,
        command: RequestKind,
        what: &'static str,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> Result<PendingChange, NbdError> {
        let (sender, answer) = sync_channel(1);
        let body = RequestBody::Change { what, offset, len, answer: sender };
        self.send(command, offset, len, data, body)?;
        Ok(PendingChange { answer, waiter: self.waiter.clone() })
    }

    /// Extents of every context from `offset` on: (context number, (length, flags) pairs). The reply may
    /// cover less or more than `len`. Blocks.
    ///
    /// # Errors
    /// As [`Client::start_read`].
    pub fn block_status(&self, offset: u64, len: u32) -> Result<StatusReply, NbdError> {
        self.check(offset, u64::from(len))?;
        let (sender, answer) = sync_channel(1);
        let body = RequestBody::Status {
            offset,
            len,
            contexts: Arc::clone(&self.context_ids),
            found: Vec::new(),
            answer: sender,
        };
        self.send(RequestKind::BlockStatus, offset, len, &[], body)?;
        self.waiter.wait(&answer)
    }

    /// Extents of the context `name` over `range`; adjacent extents with equal flags are merged.
    ///
    /// # Errors
    /// `NoContext`: the context was not negotiated.
    pub fn map(&self, name: &str, range: Range<u64>) -> Result<ExtentMap<'_>, NbdError> {
        let context = self
            .contexts
            .iter()
            .find(|context| context.name == name)
            .ok_or_else(|| NbdError::NoContext { name: name.to_owned() })?;
        Ok(ExtentMap::new(self, context.id, range))
    }

    /// Disconnects from the server; every later request fails.
    pub fn disconnect(&self) {
        let goodbye = wire::encode_request(RequestKind::Disconnect, 0, 0, 0);
        // If another thread holds the writer, it may block on the server; then no disconnect request is sent.
        if let Some(mut writer) = self.writer.try_lock()
            && writer.set_write_timeout(Some(DISCONNECT_TIMEOUT)).is_ok()
        {
            // The peer may have disconnected already.
            let _ = send_all(&mut *writer, &[&goodbye], DISCONNECT_TIMEOUT);
        }
        self.waiter.table.end(NbdError::Closed);
        self.waiter.socket.shutdown();
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), NbdError> {
        let size = self.export.size;
        let block = u64::from(self.export.block_bytes);
        let inside = offset.checked_add(len).is_some_and(|end| end <= size);
        if !inside || len == 0 || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(NbdError::OutOfRange { offset, len, size });
        }
        Ok(())
    }

    /// Sends a request followed by `data`.
    fn send(
        &self,
        command: RequestKind,
        offset: u64,
        len: u32,
        data: &[u8],
        body: RequestBody,
    ) -> Result<(), NbdError> {
        let cookie = self.cookie.fetch_add(1, Ordering::Relaxed);
        let table = &self.waiter.table;
        {
            let mut state = table.state.lock();
            while state.dead.is_none() && state.on_wire >= limits::IN_FLIGHT {
                table.left.wait(&mut state);
            }
            if let Some(error) = &state.dead {
                return Err(error.clone());
            }
            state.on_wire += 1;
            state.pending.insert(cookie, WireRequest { body, failed: None });
        }
        let request = wire::encode_request(command, cookie, offset, len);
        let mut writer = self.writer.lock();
        let sent = send_all(&mut *writer, &[&request, data], self.waiter.timeout);
        drop(writer);
        if let Err(error) = sent {
            let error = in_time(error.into(), self.waiter.timeout);
            table.end(error.clone());
            // The request may be incomplete on the wire, so no further one can follow.
            self.waiter.socket.shutdown();
            return Err(error);
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.disconnect();
        if let Some(receiver) = self.receiver.take() {
            let _ = receiver.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ServerAddress,
        server::{DiskError, DiskExports, ExportDisk, Server, StatusRun},
        wire::OptionKind,
    };
    use std::{
        io::{Read, Write},
        os::unix::net::UnixListener,
        path::Path,
        sync::atomic::{AtomicBool, Ordering},
    };

    const LIMIT: Duration = Duration::from_millis(300);

    /// Serves one handshake for a disk of 1 GiB, then reads nothing until the client disconnects.
    fn serve_handshake(listener: &UnixListener) {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = [b"NBDMAGICIHAVEOPT".as_slice(), &3_u16.to_be_bytes()].concat();
        stream.write_all(&greeting).unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        loop {
            let mut header = [0; 16];
            stream.read_exact(&mut header).unwrap();
            let option = u32::from_be_bytes(header[8..12].try_into().unwrap());
            let length = u32::from_be_bytes(header[12..].try_into().unwrap());
            stream.read_exact(&mut vec![0; length as usize]).unwrap();
            let mut reply = |kind: u32, payload: &[u8]| {
                let words = [option, kind, payload.len() as u32].map(u32::to_be_bytes).concat();
                let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
                stream.write_all(&[&magic, &*words, payload].concat()).unwrap();
            };
            if option != OptionKind::Go as u32 {
                reply(0x8000_0001, b"");
                continue;
            }
            let info = [&[0, 0][..], &(1_u64 << 30).to_be_bytes(), &0x45_u16.to_be_bytes()].concat();
            reply(3, &info);
            reply(1, b"");
            break;
        }
        // Ends when the client closes; nothing is read meanwhile.
        while stream.take_error().unwrap().is_none() && stream.write(b"").is_ok() && !is_hung_up(&stream) {
            std::thread::yield_now();
        }
    }

    fn is_hung_up(stream: &std::os::unix::net::UnixStream) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
        let moment = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut fds, Some(&moment));
        fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
    }

    fn options() -> ConnectOptions {
        ConnectOptions { timeout: LIMIT, ..ConnectOptions::default() }
    }

    fn uri(socket: &Path) -> Uri {
        Uri { address: ServerAddress::Unix(socket.to_owned()), export: String::new() }
    }

    /// Symptom: a restore into a server that stopped reading waited for ever, and Ctrl-C did not end it.
    /// Cause: only the reply to a request had a time limit, not its sending. Fix: sending has the same limit.
    #[test]
    fn a_server_that_reads_nothing_causes_a_timeout() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| serve_handshake(&listener));
            let client = Client::connect(&uri(&socket), &options()).unwrap();
            let data = vec![1; 1 << 20];
            let error = (0..64).find_map(|_| client.start_write(0, &data).err());
            assert!(matches!(error, Some(NbdError::TimedOut { .. })), "{error:?}");
            let after = client.start_read(0, 512).map(|_| ());
            assert!(matches!(after, Err(NbdError::TimedOut { .. })), "{after:?}");
        });
    }

    /// A disk that fails at offset 0 at once, and serves other reads some time later.
    struct FailingDisk {
        has_failed: AtomicBool,
        answered: AtomicBool,
    }

    impl ExportDisk for FailingDisk {
        fn size_bytes(&self) -> u64 {
            1 << 20
        }

        fn is_writable(&self) -> bool {
            false
        }

        fn read_at(&self, offset: u64, _: &mut [u8]) -> Result<(), DiskError> {
            if offset == 0 {
                self.has_failed.store(true, Ordering::Release);
                return Err(DiskError::Damaged);
            }
            while !self.has_failed.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            std::thread::park_timeout(LIMIT / 2);
            self.answered.store(true, Ordering::Release);
            Ok(())
        }

        fn run_at(&self, _: &str, _: u64, len: u64) -> Result<StatusRun, DiskError> {
            Ok(StatusRun { len, flags: 0 })
        }
    }

    struct OneDisk(Arc<FailingDisk>);

    impl DiskExports for OneDisk {
        fn names(&self) -> Vec<String> {
            Vec::new()
        }

        fn find(&self, _: &str) -> Option<Arc<dyn ExportDisk>> {
            Some(Arc::clone(&self.0) as _)
        }
    }

    /// Symptom: QEMU before 7.2.15 aborted when a request overlapped one that an earlier read had left in
    /// flight. Fix: a read that fails waits for all its requests.
    #[test]
    fn a_read_that_fails_leaves_no_request_in_flight() {
        let scratch = tempfile::tempdir().unwrap();
        let server = Server::bind(&ServerAddress::Unix(scratch.path().join("s"))).unwrap();
        let disk =
            Arc::new(FailingDisk { has_failed: AtomicBool::new(false), answered: AtomicBool::new(false) });
        let (shelf, is_over) = (OneDisk(Arc::clone(&disk)), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let running = scope.spawn(|| server.run(&shelf, || is_over.load(Ordering::Acquire)));
            let options = ConnectOptions::default();
            let client = Client::connect(&server.uri("").unwrap(), &options).unwrap();
            let read = client.read_within(0, &mut [0; 128 << 10], 64 << 10);
            let answered = disk.answered.load(Ordering::Acquire);
            drop(client);
            is_over.store(true, Ordering::Release);
            running.join().unwrap().unwrap();
            assert!(matches!(read, Err(NbdError::Request { .. })), "{read:?}");
            assert!(answered, "a request was still in flight");
        });
    }

    #[test]
    fn a_server_that_never_greets_causes_a_timeout() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let silent = Client::connect(&uri(&socket), &options()).map(|_| ());
        assert!(matches!(silent, Err(NbdError::TimedOut { .. })), "{silent:?}");
        let listed = Client::list_contexts(&uri(&socket), &[], LIMIT);
        assert!(matches!(listed, Err(NbdError::TimedOut { .. })), "{listed:?}");
    }
}
