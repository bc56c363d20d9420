//! Point in time of the disks of a VM, from the first command to the last.
//!
//! Order: new bitmaps first, then the moment in which all writes are redirected through filters, then the
//! copies of the old bitmaps for readers. So a new bitmap and a copy of an old one may name a write too many,
//! but never one too few.

mod held_disk;

use crate::qmp::{QemuVersion, QmpClient, QmpError};
use crate::{
    answers::{
        nodes::{self, BlockNode},
        schema::QemuFeatures,
    },
    error::LiveError,
    fleece::{self, SessionDirectory},
    freeze::{FrozenGuest, agent_socket},
    iothreads,
    marks::{self, NewBitmap},
    names::{BitmapOwner, SessionName, SessionPart},
    pause,
    request::{FreezeMethod, LiveDisk, LiveVm},
    self_test::{self, SelfTestContext},
    sweep::sweep,
    teardown::{clear, find_live_session, remove_bitmap, tear_down_leftovers},
    write_path::{QemuState, redirect},
};
use copal_backup::DiskSource;
use copal_disk::source::{
    BitmapState, ChangedExtents,
    nbd::{NbdSource, ReadMode},
};
use copal_nbd::{ServerAddress, Uri};
use held_disk::HeldDisk;
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use uuid::Uuid;

/// Bytes per bit of a new bitmap.
const GRANULARITY_BYTES: u64 = 64 << 10;
/// Copy timeout in seconds; a longer copy breaks the snapshot.
const COPY_TIMEOUT_S: u64 = 45;
/// Copy timeout before QEMU 9.1, which kept nanoseconds in 32 bits and would truncate 45 s to 2.05 s.
const SHORT_COPY_TIMEOUT_S: u64 = 4;
/// Time limit of all commands up to the last export.
const SETUP_LIMIT: Duration = Duration::from_secs(120);
/// Time limit of all teardown commands.
const TEARDOWN_LIMIT: Duration = Duration::from_secs(120);
/// Time limit of the first teardown command: a QEMU that does not answer is left alone.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for another backup that begins in the same moment to see this one and to end.
const YIELD_LIMIT: Duration = Duration::from_secs(5);
/// Poll interval of that wait.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Result of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupEnd {
    /// A snapshot that names the new bitmaps is published.
    Published,
    /// No snapshot, or an unknown result: the next backup uses the old bitmaps again.
    Abandoned,
}

/// Disks of a VM at one moment, preserved until `end` or drop.
#[derive(Debug)]
pub struct PointInTime {
    client: QmpClient,
    qmp: PathBuf,
    session: SessionName,
    directory: Option<SessionDirectory>,
    has_server: bool,
    disks: Vec<HeldDisk>,
    read_mode: ReadMode,
    is_frozen: bool,
    warnings: Vec<String>,
}

impl PointInTime {
    /// Takes a point in time of all disks of a VM for a backup into `repository`, and opens them. Blocks
    /// until the guest's running requests end: some milliseconds, unless its disks hang, and at most two
    /// minutes.
    /// # Errors
    /// The reason; everything is taken down then.
    pub fn take(vm: &LiveVm, repository: Uuid) -> Result<(PointInTime, Vec<DiskSource>), LiveError> {
        check_names(&vm.disks)?;
        let mut client = QmpClient::connect(&vm.qmp)?;
        client.set_deadline(Some(SETUP_LIMIT));
        let features = QemuFeatures::parse(&client.execute("query-qmp-schema", json!({}))?);
        if let Some(missing) = features.missing() {
            return Err(LiveError::TooOld { missing });
        }
        // Checks that change nothing come first.
        if let Some(status) = pause::status(&mut client)?.filter(|status| pause::is_migrating(status)) {
            return Err(LiveError::Migrated { status });
        }
        let qemu = QemuState::ask(&mut client)?;
        iothreads::refuse(&mut client, &vm.disks, &qemu)?;
        let mut point = PointInTime {
            client,
            qmp: vm.qmp.clone(),
            directory: None,
            session: SessionName::draw().map_err(LiveError::Random)?,
            has_server: false,
            disks: Vec::new(),
            read_mode: ReadMode::Clusters,
            is_frozen: false,
            warnings: Vec::new(),
        };
        // From here on, drop takes everything down and logs the warnings.
        point.warnings = tear_down_leftovers(&mut point.client)?;
        sweep(&vm.fleece.directory);
        let agent = match &vm.freeze {
            Some(FreezeMethod::Agent(named)) => Some(agent_socket(&mut point.client, named.as_ref())?),
            None => None,
        };
        let qemu = QemuState::ask(&mut point.client)?;
        let disks = vm.disks.iter().map(|disk| HeldDisk::of(disk, vm, &qemu, &features));
        point.disks = disks.collect::<Result<Vec<_>, _>>()?;
        let directory = SessionDirectory::make(&vm.fleece, &point.session, &vm.qmp)?;
        let anchored = directory.add_anchor(&mut point.client, &point.session, vm.nbd_socket.is_none());
        point.directory = Some(directory);
        anchored?;
        point.give_way()?;
        let owner = BitmapOwner::of(repository, &vm.name);
        point.remove_stale(&owner, &qemu.nodes);
        let socket = point.server(vm)?;
        point.find_read_mode(&socket, &features)?;
        point.add_filters(&features)?;
        point.begin_bitmaps(&owner, &qemu.nodes, &socket);
        point.switch_to_filters(agent)?;
        point.copy_bitmaps();
        point.add_exports()?;
        let sources = point.open(socket)?;
        Ok((point, sources))
    }

    /// Whether the guest's file systems were frozen; if not, the disks are as after a power cut.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Probable causes of a failed read, one sentence per affected disk.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let Some(directory) = &self.directory else {
            return Vec::new();
        };
        let causes = self.disks.iter().enumerate().filter_map(|(at, disk)| {
            let is_full = fleece::is_full(&directory.image(at), disk.bound_bytes);
            match (is_full, disk.is_refused.load(Ordering::Acquire)) {
                (true, _) => Some(format!(
                    "the guest has overwritten more of disk {} during the backup than the fleecing image of {} bytes can hold, so QEMU \
                     gave up the point in time; no write of the guest failed and none is lost: back up again with a larger \
                     --fleece-limit",
                    disk.disk.name, disk.bound_bytes
                )),
                (false, true) => Some(format!(
                    "QEMU gave up the point in time of disk {}: a copy of blocks that the guest was about to overwrite failed, or took longer than \
                     {} s, as it does when a guest trims or zeroes a large range at once (fstrim, blkdiscard); no write of the guest \
                     failed and none is lost: back up again at a quieter time, or with --fleece-dir on a faster disk",
                    disk.disk.name,
                    copy_timeout_s(self.client.version())
                )),
                (false, false) => None,
            }
        });
        causes.collect()
    }

    /// Takes everything down. Returns warnings.
    pub fn end(mut self, ended: BackupEnd) -> Vec<String> {
        self.take_down(ended);
        std::mem::take(&mut self.warnings)
    }

    /// Removes bitmaps of killed backups, and those that no snapshot names any more.
    fn remove_stale(&mut self, owner: &BitmapOwner, nodes: &[BlockNode]) {
        for held in &self.disks {
            let node = nodes::find(nodes, &held.disk.node);
            let bitmaps = node.into_iter().flat_map(|node| &node.bitmaps);
            let stale = bitmaps.filter(|bitmap| {
                let guarded = marks::guarded_by(&bitmap.name);
                if guarded.is_some_and(|guarded| owner.has(guarded)) {
                    return held.disk.sentinel.as_ref().is_none_or(|known| known.name != bitmap.name);
                }
                owner.has(&bitmap.name)
                    && (held.disk.began_with_base.as_ref() != Some(&bitmap.name) || bitmap.is_inconsistent)
            });
            for bitmap in stale {
                if let Err(error) = remove_bitmap(&mut self.client, &held.disk.node, &bitmap.name) {
                    self.warnings.push(format!("disk {}: {error}", held.disk.name));
                }
            }
        }
    }

    /// If several backups begin in one moment, each adds its anchor before it looks for the others. The
    /// session with the smallest name goes on, once the others have ended.
    fn give_way(&mut self) -> Result<(), LiveError> {
        let patience = Instant::now() + YIELD_LIMIT;
        while let Some(other) = find_live_session(&mut self.client, &self.session)? {
            if other < self.session || Instant::now() >= patience {
                return Err(LiveError::Busy { session: other.to_string() });
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
        Ok(())
    }

    fn find_read_mode(&mut self, socket: &Path, features: &QemuFeatures) -> Result<(), LiveError> {
        let context = SelfTestContext {
            session: &self.session,
            directory: self.directory.as_ref().expect("it is there until the end"),
            socket,
            number: self.disks.len(),
        };
        self.read_mode = self_test::read_mode(&mut self.client, &context, features)?;
        Ok(())
    }

    fn add_filters(&mut self, features: &QemuFeatures) -> Result<(), LiveError> {
        let directory = self.directory.as_ref().expect("it is there until the end");
        for (at, held) in self.disks.iter().enumerate() {
            let sizes = (held.size_bytes, held.bound_bytes);
            let image = directory.add_image(&mut self.client, &self.session, at, sizes)?;
            if !features.has_break_snapshot {
                // A copy that runs out of space would fail the guest's write.
                directory.reserve(at, held.bound_bytes)?;
            }
            let mut filter = json!({
                "driver": "copy-before-write",
                "node-name": self.session.part(SessionPart::Filter, at),
                "file": held.disk.node,
                "target": image,
                // Trims are hints. If they were passed on, each would cause one copy of the whole range,
                // which takes too long or too much space.
                "discard": "ignore",
            });
            if features.has_break_snapshot {
                filter["on-cbw-error"] = "break-snapshot".into();
            }
            if features.has_timeout {
                filter["cbw-timeout"] = copy_timeout_s(self.client.version()).into();
            }
            self.client.execute("blockdev-add", filter)?;
        }
        Ok(())
    }

    /// The socket for the exports: that of the session's own server, or of the server that runs already.
    fn server(&mut self, vm: &LiveVm) -> Result<PathBuf, LiveError> {
        if let Some(socket) = &vm.nbd_socket {
            return Ok(socket.clone());
        }
        let directory = self.directory.as_ref().expect("it is there until the end");
        let socket = directory.socket();
        let address = json!({ "type": "unix", "data": { "path": socket } });
        match self.client.execute("nbd-server-start", json!({ "addr": address })) {
            Ok(_) => {}
            Err(source @ QmpError::Refused { .. }) => return Err(LiveError::ServerRuns { source }),
            Err(error) => return Err(error.into()),
        }
        self.has_server = true;
        directory.close_socket().map_err(|error| LiveError::Fleece { path: socket.clone(), error })?;
        Ok(socket)
    }

    fn begin_bitmaps(&mut self, owner: &BitmapOwner, nodes: &[BlockNode], socket: &Path) {
        let name = owner.bitmap(&self.session);
        let sizes = self.disks.iter().map(|held| held.size_bytes).enumerate();
        let mut marked = Vec::new();
        for disk in sizes {
            let bitmap = (name.as_str(), GRANULARITY_BYTES);
            marked.push(marks::write_marks(&mut self.client, &self.session, socket, disk, bitmap));
        }
        let is_planted = marks::end_scratch_exports(&mut self.client, &self.session).is_ok();
        for (held, marked) in self.disks.iter_mut().zip(&marked) {
            let is_qcow2 = nodes::find(nodes, &held.disk.node)
                .is_some_and(|node| node.driver == "qcow2" && !node.is_read_only);
            let new = NewBitmap { node: &held.disk.node, name: &name, granularity: GRANULARITY_BYTES };
            if let Err(reason) = marked {
                tracing::info!(disk = held.disk.name, reason, "the new dirty bitmap has no sentinel");
            }
            let marked = marked.as_ref().ok().filter(|_| is_planted);
            let mut begin = |marked, persistent| marks::begin(&mut self.client, &new, marked, persistent);
            // Version 2 images store no bitmaps. Without marks a bitmap is better than none.
            let mut ways = Vec::from([(marked, false), (None, false)]);
            if is_qcow2 {
                ways.splice(0..0, [(marked, true), (None, true)]);
            }
            let mut begun = Err(String::new());
            for (marked, persistent) in ways {
                begun = begin(marked, persistent).map_err(|error| error.to_string());
                if begun.is_ok() {
                    break;
                }
            }
            match begun {
                Ok(begun) => (held.new, held.begun) = (Ok(name.clone()), begun),
                Err(reason) => held.new = Err(reason),
            }
        }
        // Remaining scratch nodes are removed with the session.
        if let Err(error) = marks::remove_scratch_nodes(&mut self.client, &self.session) {
            tracing::info!(%error, "scratch nodes not removed before the end of the backup");
        }
    }

    /// The point in time: from here on the guest's writes pass the filters.
    fn switch_to_filters(&mut self, agent: Option<PathBuf>) -> Result<(), LiveError> {
        let frozen = agent.map(|socket| FrozenGuest::begin(&socket)).transpose()?;
        let filters = self.disks.iter().enumerate();
        let paths: Vec<_> = filters
            .map(|(at, held)| (held.path.clone(), self.session.part(SessionPart::Filter, at)))
            .collect();
        redirect(&mut self.client, &paths, Some(&self.session))?;
        if let Some(frozen) = frozen {
            self.is_frozen = frozen.end()?;
            if !self.is_frozen {
                self.warnings.push(
                    "the guest was thawed before the point in time, which took too long: its disks are as after a power cut".into(),
                );
            }
        }
        Ok(())
    }

    /// A recording bitmap cannot be exported read-only, and the old one goes on recording, so a copy is
    /// exported.
    fn copy_bitmaps(&mut self) {
        let map = self.session.map();
        for held in &mut self.disks {
            let (Ok(granularity), Some(old)) = (&held.old, &held.disk.began_with_base) else {
                continue;
            };
            let node = &held.disk.node;
            let actions = json!([
                { "type": "block-dirty-bitmap-add",
                  "data": { "node": node, "name": map, "granularity": granularity, "disabled": true } },
                { "type": "block-dirty-bitmap-merge", "data": { "node": node, "target": map, "bitmaps": [old] } },
            ]);
            match self.client.execute("transaction", json!({ "actions": actions })) {
                Ok(_) => held.has_map = true,
                Err(error) => held.old = Err(format!("the dirty bitmap {old} cannot be read: {error}")),
            }
        }
    }

    fn add_exports(&mut self) -> Result<(), LiveError> {
        for (at, held) in self.disks.iter().enumerate() {
            let (filter, snapshot) =
                (self.session.part(SessionPart::Filter, at), self.session.part(SessionPart::Snapshot, at));
            let access = json!({ "driver": "snapshot-access", "node-name": snapshot, "file": filter, "read-only": true });
            self.client.execute("blockdev-add", access)?;
            let mut export = json!({ "type": "nbd", "id": snapshot, "node-name": snapshot, "name": snapshot, "writable": false });
            if held.has_map {
                let mut names = vec![self.session.map()];
                names.extend(held.disk.sentinel.as_ref().map(|sentinel| sentinel.name.clone()));
                let node = &held.disk.node;
                export["bitmaps"] = names.iter().map(|name| json!({ "node": node, "name": name })).collect();
            }
            self.client.execute("block-export-add", export)?;
        }
        Ok(())
    }

    fn open(&mut self, socket: PathBuf) -> Result<Vec<DiskSource>, LiveError> {
        let map = self.session.map();
        let mode = self.read_mode;
        let open = |(at, held): (usize, &mut HeldDisk)| {
            let failed = |error| LiveError::Source { disk: held.disk.name.clone(), error };
            let uri = Uri {
                address: ServerAddress::Unix(socket.clone()),
                export: self.session.part(SessionPart::Snapshot, at),
            };
            let what = format!("the point in time of {}", held.disk.node);
            let sentinel = held.disk.sentinel.as_ref().map(|sentinel| sentinel.name.as_str());
            let wanted: Vec<&str> = match held.has_map {
                true => [map.as_str()].into_iter().chain(sentinel).collect(),
                false => Vec::new(),
            };
            let source = NbdSource::connect_to(&what, &uri, &wanted, mode).map_err(failed)?;
            held.is_refused = source.refusals();
            let (mut changed, mut no_changes) = (None, held.old.clone().err());
            if held.has_map {
                match source.has_bitmap(&map) {
                    true => changed = Some(with_original_name(source.changed(&map).map_err(failed)?, held)),
                    false => no_changes = Some("QEMU does not export the copy of the dirty bitmap".into()),
                }
            }
            if let (Some(bitmap), Some(sentinel)) = (&changed, sentinel) {
                let fault = match source.has_bitmap(sentinel) {
                    true if marks::has_all(bitmap, &source.changed(sentinel).map_err(failed)?) => None,
                    true => Some("lacks marks that it began with: it was cleared, or made anew"),
                    false => Some("has a sentinel that QEMU does not export"),
                };
                if let Some(fault) = fault {
                    let name = held.disk.began_with_base.as_deref().unwrap_or_default();
                    (changed, no_changes) = (None, Some(format!("the dirty bitmap {name} {fault}")));
                }
            }
            let mut disk = DiskSource::new(&held.disk.name, Box::new(source));
            disk.serial.clone_from(&held.disk.serial);
            disk.identity.clone_from(&held.identity);
            disk.content = held.content;
            disk.warnings.clone_from(&held.images.warnings);
            disk.doubts.clone_from(&held.images.doubts);
            disk.sentinel = held.begun.as_ref().map(|begun| begun.sentinel.clone());
            (disk.changed, disk.no_changes) = (changed, no_changes);
            match &held.new {
                Ok(name) => {
                    disk.starts = Some(BitmapState {
                        name: name.clone(),
                        dirty_bytes: held.begun.as_ref().map_or(0, |begun| begun.marked_bytes),
                    });
                }
                Err(reason) => disk.warnings.push(format!(
                    "disk {}: no dirty bitmap begins with this backup, so the next one reads the whole disk: {reason}",
                    held.disk.name
                )),
            }
            Ok(disk)
        };
        self.disks.iter_mut().enumerate().map(open).collect()
    }

    fn take_down(&mut self, ended: BackupEnd) {
        let Some(directory) = &self.directory else {
            return;
        };
        if directory.is_hanging() {
            self.warnings.push(format!(
                "the storage of the fleecing images of session {} does not answer, and QEMU and the guest would block on it; so \
                 nothing of the session is taken down from {}, and the guest writes on; the next backup does that when the storage answers",
                self.session,
                self.qmp.display()
            ));
            if let Some(directory) = self.directory.take() {
                directory.leave();
            }
            return;
        }
        self.client.set_deadline(Some(ANSWER_LIMIT));
        let asked = self.client.execute("query-status", json!({}));
        if let Err(QmpError::TimedOut { .. } | QmpError::Late { .. }) = asked {
            self.warnings.push(format!(
                "QEMU behind {} does not answer within {} s, so nothing of session {} is taken down; the next backup does that when QEMU \
                 answers again",
                self.qmp.display(),
                ANSWER_LIMIT.as_secs(),
                self.session
            ));
            if let Some(directory) = self.directory.take() {
                directory.leave();
            }
            return;
        }
        self.client.set_deadline(Some(TEARDOWN_LIMIT));
        let mut errors = clear(&mut self.client, &self.session, self.has_server);
        if !errors.is_empty() {
            // A command that timed out may have been carried out since: try again over a new connection.
            match self.client.reconnect(&self.qmp) {
                Ok(()) => errors = clear(&mut self.client, &self.session, self.has_server),
                // QEMU has ended or is about to, so nothing is left to remove.
                Err(error) if matches!(error, QmpError::Connect { .. }) || error.is_disconnected() => {
                    errors.clear()
                }
                Err(_) => {}
            }
        }
        let is_clear = errors.is_empty();
        for held in &self.disks {
            let (new, before) = (held.new.as_ref().ok(), held.disk.began_with_base.as_ref());
            let map = self.session.map();
            let gone = match ended {
                // A bitmap that was missing need not be removed.
                BackupEnd::Published => (before.filter(|_| held.old.is_ok()), held.disk.sentinel.as_ref()),
                BackupEnd::Abandoned => (new, held.begun.as_ref().map(|begun| &begun.sentinel)),
            };
            let sentinel = gone.1.map(|sentinel| &sentinel.name);
            for name in gone.0.into_iter().chain(sentinel).chain(held.has_map.then_some(&map)) {
                let removed = remove_bitmap(&mut self.client, &held.disk.node, name);
                errors.extend(
                    removed.err().filter(|error| !error.is_disconnected()).map(|error| error.to_string()),
                );
            }
        }
        self.warnings.extend(errors.into_iter().map(|complaint| {
            format!(
                "not all of session {} was taken down in {}: {complaint}; the next backup does that",
                self.session,
                self.qmp.display()
            )
        }));
        match self.directory.take() {
            Some(directory) if !is_clear => directory.leave(),
            _ => {}
        }
    }
}

impl Drop for PointInTime {
    fn drop(&mut self) {
        self.take_down(BackupEnd::Abandoned);
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
    }
}

/// Gives the extents of a copy the name of the original bitmap.
fn with_original_name(changed: ChangedExtents, held: &HeldDisk) -> ChangedExtents {
    let bitmap = changed.bitmap.map(|bitmap| BitmapState {
        name: held.disk.began_with_base.clone().unwrap_or(bitmap.name),
        ..bitmap
    });
    ChangedExtents { bitmap, ..changed }
}

/// Copy timeout in seconds.
fn copy_timeout_s(version: QemuVersion) -> u64 {
    match version.is_at_least(9, 1) {
        true => COPY_TIMEOUT_S,
        false => SHORT_COPY_TIMEOUT_S,
    }
}

fn check_names(disks: &[LiveDisk]) -> Result<(), LiveError> {
    for (at, disk) in disks.iter().enumerate() {
        if let Some(other) = disks[..at].iter().find(|other| other.node == disk.node) {
            return Err(LiveError::NodeTwice {
                node: disk.node.clone(),
                first: other.name.clone(),
                second: disk.name.clone(),
            });
        }
    }
    Ok(())
}
