//! Self-test: whether this QEMU answers requests of any length from the point in time.
//!
//! Before 8.0, QEMU reads from the present disk if a request begins in a copied cluster and ends past it.
//! Versions do not tell, since distributions backport fixes. The test takes a point in time of a scratch disk
//! of four clusters, zeroes one cluster, and reads the disk in one request. It touches no disk of the guest.

use crate::qmp::{QmpClient, QmpError};
use crate::{
    answers::schema::QemuFeatures,
    error::LiveError,
    fleece::SessionDirectory,
    names::{SessionName, SessionPart},
    teardown::tear_down_self_test,
};
use copal_disk::source::nbd::ReadMode;
use copal_nbd::{
    BASE_ALLOCATION, Client as NbdClient, ConnectOptions, NbdError, STATE_ZERO, ServerAddress, Uri,
};
use serde_json::json;
use std::{path::Path, time::Duration};

const CLUSTER: u32 = 64 << 10;
const DISK: u32 = 4 * CLUSTER;
const PATTERN: u8 = 0xc7;
/// Timeout of a reply of the server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Session, directory and socket of a self-test.
pub(crate) struct SelfTestContext<'a> {
    pub(crate) session: &'a SessionName,
    pub(crate) directory: &'a SessionDirectory,
    /// Socket of QEMU's NBD server.
    pub(crate) socket: &'a Path,
    /// A number that no disk has.
    pub(crate) number: usize,
}

/// Tests how points in time of this QEMU must be read, and takes the test down again.
/// # Errors
/// Those of the connection. If QEMU refuses a command, or the outcome is unknown, short reads are used.
pub(crate) fn read_mode(
    client: &mut QmpClient,
    context: &SelfTestContext<'_>,
    features: &QemuFeatures,
) -> Result<ReadMode, LiveError> {
    let set_up = set_up(client, context, features);
    let looked =
        set_up.map(|()| is_right(&uri(context, SessionPart::Filter), &uri(context, SessionPart::Snapshot)));
    let left = tear_down_self_test(client, context.session);
    if !left.is_empty() {
        // Teardown of the session tries again.
        tracing::debug!(?left, "self-test not completely taken down");
    }
    match looked {
        Ok(Ok(true)) => return Ok(ReadMode::PointInTime),
        Ok(Ok(false)) => tracing::debug!("long requests are not answered from the point in time"),
        Ok(Err(error)) => tracing::debug!(%error, "the self-test has no outcome"),
        Err(LiveError::Qmp(error @ QmpError::Refused { .. })) => {
            tracing::debug!(%error, "the self-test is not possible");
        }
        Err(error) => return Err(error),
    }
    Ok(ReadMode::Clusters)
}

fn uri(context: &SelfTestContext<'_>, part: SessionPart) -> Uri {
    Uri {
        address: ServerAddress::Unix(context.socket.to_owned()),
        export: context.session.part(part, context.number),
    }
}

fn set_up(
    client: &mut QmpClient,
    context: &SelfTestContext<'_>,
    features: &QemuFeatures,
) -> Result<(), LiveError> {
    let name = |part| context.session.part(part, context.number);
    for (part, byte) in [(SessionPart::File, PATTERN), (SessionPart::Image, 0)] {
        let path = context.directory.add_scratch(&name(part), &[byte; DISK as usize])?;
        let file = json!({ "driver": "file", "node-name": name(part), "filename": path, "discard": "unmap" });
        client.execute("blockdev-add", file)?;
    }
    let mut filter = json!({
        "driver": "copy-before-write", "node-name": name(SessionPart::Filter), "file": name(SessionPart::File), "target": name(SessionPart::Image),
        // A zeroed cluster must become a hole.
        "discard": "unmap",
    });
    if features.has_break_snapshot {
        filter["on-cbw-error"] = "break-snapshot".into();
    }
    client.execute("blockdev-add", filter)?;
    client.execute(
        "blockdev-add",
        json!({ "driver": "snapshot-access", "node-name": name(SessionPart::Snapshot), "file": name(SessionPart::Filter), "read-only": true }),
    )?;
    for (part, is_writable) in [(SessionPart::Filter, true), (SessionPart::Snapshot, false)] {
        let name = name(part);
        let export =
            json!({ "type": "nbd", "id": name, "node-name": name, "name": name, "writable": is_writable });
        client.execute("block-export-add", export)?;
    }
    Ok(())
}

/// Whether a reader gets the old content of a cluster that was zeroed since: with both kinds of replies, and
/// in the map.
fn is_right(present: &Uri, point_in_time: &Uri) -> Result<bool, NbdError> {
    let connect = |uri: &Uri, contexts: &[&str], structured: bool| {
        let options = ConnectOptions {
            contexts: contexts.iter().map(|context| (*context).to_owned()).collect(),
            timeout: REPLY_TIMEOUT,
            structured,
        };
        NbdClient::connect(uri, &options)
    };
    connect(present, &[], true)?.start_zero(u64::from(CLUSTER), CLUSTER)?.wait()?;
    for structured in [false, true] {
        let reader = connect(point_in_time, &[], structured)?;
        let read = reader.start_read(0, DISK)?.wait()?;
        if read.data.iter().any(|byte| *byte != PATTERN) {
            return Ok(false);
        }
    }
    let reader = connect(point_in_time, &[BASE_ALLOCATION], true)?;
    for extent in reader.map(BASE_ALLOCATION, 0..u64::from(DISK))? {
        if extent?.flags & STATE_ZERO != 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_nbd::server::{DiskError, DiskExports, ExportDisk, Server, StatusRun};
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    /// Fault of a server after a cluster was zeroed.
    #[derive(Clone, Copy, PartialEq)]
    enum ServerFault {
        Nothing,
        Bytes,
        Map,
    }

    struct PresentDisk(Arc<AtomicBool>);
    struct PastDisk(ServerFault, Arc<AtomicBool>);

    impl ExportDisk for PresentDisk {
        fn size_bytes(&self) -> u64 {
            u64::from(DISK)
        }
        fn is_writable(&self) -> bool {
            true
        }
        fn read_at(&self, _: u64, buf: &mut [u8]) -> Result<(), DiskError> {
            buf.fill(PATTERN);
            Ok(())
        }
        fn zero(&self, _: u64, _: u64) -> Result<(), DiskError> {
            self.0.store(true, Ordering::Release);
            Ok(())
        }
        fn run_at(&self, _: &str, _: u64, len: u64) -> Result<StatusRun, DiskError> {
            Ok(StatusRun { len, flags: 0 })
        }
    }

    impl PastDisk {
        fn is_zero(&self, fault: ServerFault, offset: u64) -> bool {
            self.0 == fault && self.1.load(Ordering::Acquire) && offset / u64::from(CLUSTER) == 1
        }
    }

    impl ExportDisk for PastDisk {
        fn size_bytes(&self) -> u64 {
            u64::from(DISK)
        }
        fn is_writable(&self) -> bool {
            false
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
            for (at, byte) in (offset..).zip(buf) {
                *byte = if self.is_zero(ServerFault::Bytes, at) { 0 } else { PATTERN };
            }
            Ok(())
        }
        fn run_at(&self, _: &str, offset: u64, len: u64) -> Result<StatusRun, DiskError> {
            let cluster = u64::from(CLUSTER);
            Ok(StatusRun {
                len: len.min(cluster - offset % cluster),
                flags: if self.is_zero(ServerFault::Map, offset) { 3 } else { 0 },
            })
        }
    }

    struct TestExports(ServerFault, Arc<AtomicBool>);

    impl DiskExports for TestExports {
        fn names(&self) -> Vec<String> {
            Vec::new()
        }
        fn find(&self, name: &str) -> Option<Arc<dyn ExportDisk>> {
            let zeroed = Arc::clone(&self.1);
            match name {
                "present" => Some(Arc::new(PresentDisk(zeroed))),
                "past" => Some(Arc::new(PastDisk(self.0, zeroed))),
                _ => None,
            }
        }
    }

    #[test]
    fn only_a_server_that_answers_all_from_the_point_in_time_passes() {
        for (fault, passes) in
            [(ServerFault::Nothing, true), (ServerFault::Bytes, false), (ServerFault::Map, false)]
        {
            let dir = tempfile::tempdir().unwrap();
            let server = Server::bind(&ServerAddress::Unix(dir.path().join("s"))).unwrap();
            let (shelf, has_ended) = (TestExports(fault, Arc::default()), AtomicBool::new(false));
            let looked = std::thread::scope(|scope| {
                let running = scope.spawn(|| server.run(&shelf, || has_ended.load(Ordering::Acquire)));
                let looked = is_right(&server.uri("present").unwrap(), &server.uri("past").unwrap());
                has_ended.store(true, Ordering::Release);
                running.join().unwrap().unwrap();
                looked
            });
            assert_eq!(looked.unwrap(), passes);
        }
    }
}
