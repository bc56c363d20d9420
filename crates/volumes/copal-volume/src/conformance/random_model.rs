//! A seeded random history, run on the store and on the in-memory twin, compared step by step.
//!
//! File ids and times differ between the two, so the history keeps pairs of ids and compares everything else.
//! If the store can be restarted, the history restarts it: then no acknowledged operation may be missing, and
//! no other may have appeared.

use super::{Random, body};
use crate::error::VolumeError;
use crate::ids::{FileId, VolumeId};
use crate::memory::MemoryStore;
use crate::store::{FileInfo, PutOptions, ReadOptions, RemoveMode, VolumeOptions, VolumeStore};
use bytes::Bytes;

const STEPS: usize = 600;
const NAMES: u64 = 12;

/// A store under a random history.
pub trait Subject {
    /// The open store.
    fn store(&self) -> &dyn VolumeStore;
    /// Ends the store in some way and reopens it. Called between operations.
    fn restart(&mut self);
}

/// Never restarted.
struct Steady<'a>(&'a dyn VolumeStore);

impl Subject for Steady<'_> {
    fn store(&self) -> &dyn VolumeStore {
        self.0
    }
    fn restart(&mut self) {}
}

/// The ids of one object in the store under test and in the twin.
type Pair<T> = (T, T);

struct History<'a> {
    subject: &'a mut dyn Subject,
    twin: MemoryStore,
    random: Random,
    volumes: Vec<Pair<VolumeId>>,
    /// Every file id ever seen, live or dead.
    files: Vec<Pair<FileId>>,
}

/// Errors without the ids in them, so that both sides can be compared.
fn kind<T>(answer: &Result<T, VolumeError>) -> String {
    match answer {
        Ok(_) => "ok".to_owned(),
        Err(VolumeError::Exists { .. }) => "exists".to_owned(),
        Err(VolumeError::VolumeExists { .. }) => "volume exists".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn content(info: &FileInfo) -> (u64, u32, Bytes) {
    (info.size, info.crc32c, info.metadata.clone())
}

pub(super) fn equals_twin(store: &dyn VolumeStore) {
    let files = random_history(&mut Steady(store), 0xC09A_1001, STEPS);
    assert!(files > 50, "the history made hardly any files");
}

/// Runs a random history of `steps` operations on an empty store and panics where it differs from
/// the in-memory twin; the same seed gives the same history. Returns the number of files made.
pub fn random_history(subject: &mut dyn Subject, seed: u64, steps: usize) -> usize {
    let mut history = History {
        subject,
        twin: MemoryStore::new(),
        random: Random::new(seed),
        volumes: Vec::new(),
        files: Vec::new(),
    };
    for step in 0..steps {
        if history.random.one_in(40) {
            history.subject.restart();
            if history.random.one_in(3) {
                history.compare_all();
            }
        }
        history.step();
        if step + 1 == steps {
            history.compare_all();
        }
    }
    history.files.len()
}

impl History<'_> {
    fn step(&mut self) {
        match self.random.below(100) {
            0..=6 => self.create_volume(),
            7..=8 => self.remove_volume(),
            9..=10 => self.rename_volume(),
            11..=45 => self.put(),
            46..=52 => self.stream(),
            53..=70 => self.delete(),
            71..=90 => self.read(),
            91..=95 => self.list(),
            96 => self.reclaim(),
            _ => self.put_batch(),
        }
    }

    fn path(&mut self) -> String {
        let top = format!("t{}", self.random.below(3));
        match self.random.below(3) {
            0 => top,
            _ => format!("{top}/s{}", self.random.below(3)),
        }
    }

    fn volume(&mut self) -> Pair<VolumeId> {
        match self.volumes.len() as u64 {
            0 => (VolumeId(9999), VolumeId(9999)),
            n => self.volumes[self.random.below(n) as usize],
        }
    }

    fn name(&mut self) -> Vec<u8> {
        let n = self.random.below(NAMES);
        let repeat = if self.random.one_in(20) { 1300 } else { n as usize % 4 };
        [&[b'a' + n as u8 / 4][..], &vec![0xFE_u8; repeat]].concat()
    }

    fn bytes(&mut self) -> Bytes {
        let size = match self.random.below(40) {
            0..=24 => self.random.below(4500),
            25..=34 => self.random.below(20_000),
            35..=38 => 60_000 + self.random.below(20_000),
            _ => (4 << 20) - 5 + self.random.below(10),
        };
        body(self.random.next_u64(), size as usize)
    }

    fn create_volume(&mut self) {
        let path = self.path();
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let has_quota = self.random.one_in(3) && self.subject.store().limits().quotas;
        let options = VolumeOptions { quota_bytes: has_quota.then_some(80_000), ..VolumeOptions::default() };
        let real = self.subject.store().create_volume(parent, name, &options);
        let twin = self.twin.create_volume(parent, name, &options);
        assert_eq!(kind(&real), kind(&twin), "create_volume {path}");
        if let (Ok(real), Ok(twin)) = (real, twin) {
            self.volumes.push((real, twin));
        }
    }

    fn remove_volume(&mut self) {
        let (real, twin) = self.volume();
        let if_empty = self.random.one_in(2) && self.subject.store().limits().removes_empty;
        let how = if if_empty { RemoveMode::IfEmpty } else { RemoveMode::WithFiles };
        let answers = (self.subject.store().remove_volume(real, how), self.twin.remove_volume(twin, how));
        assert_eq!(answers.0, answers.1, "remove_volume {how:?}");
    }

    fn rename_volume(&mut self) {
        let (from, to) = (self.path(), self.path());
        if !self.subject.store().limits().renames {
            return;
        }
        let real = self.subject.store().rename_volume(&from, &to);
        let twin = self.twin.rename_volume(&from, &to);
        assert_eq!(kind(&real), kind(&twin), "rename {from} to {to}");
    }

    fn created(&mut self, real: Result<FileInfo, VolumeError>, twin: Result<FileInfo, VolumeError>) {
        assert_eq!(kind(&real), kind(&twin), "create");
        match (real, twin) {
            (Ok(real), Ok(twin)) => {
                assert_eq!(content(&real), content(&twin));
                self.files.push((real.fid, twin.fid));
            }
            (Err(VolumeError::Exists { fid: real }), Err(VolumeError::Exists { fid: twin })) => {
                assert!(self.files.contains(&(real, twin)), "Exists names another file");
            }
            _ => {}
        }
    }

    fn put(&mut self) {
        let ((real, twin), name, bytes) = (self.volume(), self.name(), self.bytes());
        let options = PutOptions { metadata: body(1, self.random.below(20) as usize) };
        let real = self.subject.store().put(real, &name, bytes.clone(), &options);
        let twin = self.twin.put(twin, &name, bytes, &options);
        self.created(real, twin);
    }

    fn stream(&mut self) {
        let ((real, twin), name, bytes) = (self.volume(), self.name(), self.bytes());
        let drop_it = self.random.one_in(3);
        let cut = self.random.below(bytes.len() as u64 + 1) as usize;
        let run = |store: &dyn VolumeStore, vid| {
            let mut writer = store.writer(vid, &name, &PutOptions::default())?;
            writer.append(bytes.slice(..cut))?;
            writer.append(bytes.slice(cut..))?;
            if drop_it {
                return Ok(None);
            }
            writer.commit().map(Some)
        };
        match (run(self.subject.store(), real), run(&self.twin, twin)) {
            (Ok(Some(real)), Ok(Some(twin))) => self.created(Ok(real), Ok(twin)),
            (Ok(None), Ok(None)) => {}
            // A taken name may be refused at the start or only at the commit.
            (Err(VolumeError::Exists { .. }), Ok(None)) if drop_it => {}
            (Err(real), Err(twin)) => {
                // Both refuse; one may check the quota before the name, the other after it.
                assert!(!matches!(real, VolumeError::Corrupt { .. }), "{real}");
                let early = matches!(
                    (&real, &twin),
                    (VolumeError::Exists { .. }, VolumeError::QuotaExceeded { .. })
                        | (VolumeError::QuotaExceeded { .. }, VolumeError::QuotaExceeded { .. })
                        | (VolumeError::QuotaExceeded { .. }, VolumeError::Exists { .. })
                );
                if !early {
                    self.created(Err(real), Err(twin));
                }
            }
            (real, twin) => panic!("stream: {real:?} and the twin {twin:?}"),
        }
    }

    fn delete(&mut self) {
        let ((real, twin), name) = (self.volume(), self.name());
        let live = self.twin.stat(twin, &name, &ReadOptions::default());
        let fids = match live {
            Ok(info) if !self.random.one_in(4) => {
                let of = self.files.iter().find(|(_, fid)| *fid == info.fid);
                *of.expect("every live file is known")
            }
            _ => match self.files.len() as u64 {
                0 => return,
                n => self.files[self.random.below(n) as usize],
            },
        };
        let real = self.subject.store().delete(real, &name, fids.0);
        let twin = self.twin.delete(twin, &name, fids.1);
        assert_eq!(real, twin, "delete");
    }

    fn read(&mut self) {
        let ((real, twin), name) = (self.volume(), self.name());
        let start = self.random.below(6000);
        let range = start..start + self.random.below(10_000);
        let options = ReadOptions::default();
        assert_eq!(
            self.subject.store().get(real, &name, range.clone(), &options),
            self.twin.get(twin, &name, range, &options),
            "get"
        );
        let real = self.subject.store().stat(real, &name, &options);
        let twin = self.twin.stat(twin, &name, &options);
        assert_eq!(real.as_ref().map(content), twin.as_ref().map(content));
    }

    fn list(&mut self) {
        let ((real, twin), name) = (self.volume(), self.name());
        let prefix = &name[..self.random.below(2) as usize];
        let limit = self.random.below(15) as usize;
        let after = self.random.one_in(2).then(|| self.name());
        let options = match limit % 2 {
            0 => ReadOptions::STRICT,
            _ => ReadOptions::default(),
        };
        let page = |store: &dyn VolumeStore, vid| {
            let page = store.list(vid, prefix, after.as_deref(), limit, &options)?;
            Ok::<_, VolumeError>(
                page.iter().map(|(name, info)| (name.clone(), content(info))).collect::<Vec<_>>(),
            )
        };
        assert_eq!(page(self.subject.store(), real), page(&self.twin, twin), "list");
        assert_eq!(self.subject.store().volume_stats(real), self.twin.volume_stats(twin));
    }

    fn reclaim(&mut self) {
        let (real, twin) = self.volume();
        assert_eq!(self.subject.store().reclaim(real), self.twin.reclaim(twin));
    }

    fn put_batch(&mut self) {
        let (real, twin) = self.volume();
        let files: Vec<_> = (0..self.random.below(5))
            .map(|_| {
                let bytes = body(self.random.next_u64(), self.random.below(9000) as usize);
                (Bytes::from(self.name()), bytes, PutOptions::default())
            })
            .collect();
        let real = self.subject.store().put_batch(real, files.clone());
        let twin = self.twin.put_batch(twin, files);
        assert_eq!(kind(&real), kind(&twin), "put_batch");
        if let (Ok(real), Ok(twin)) = (real, twin) {
            assert_eq!(real.len(), twin.len());
            for (real, twin) in real.into_iter().zip(twin) {
                self.created(real, twin);
            }
        }
    }

    fn compare_all(&mut self) {
        for (real, twin) in self.volumes.clone() {
            let page = |store: &dyn VolumeStore, vid| {
                let page = store.list(vid, b"", None, usize::MAX, &ReadOptions::STRICT)?;
                page.into_iter()
                    .map(|(name, info)| {
                        let whole = store.get(vid, &name, 0..u64::MAX, &ReadOptions::default())?;
                        Ok((name, content(&info), whole))
                    })
                    .collect::<Result<Vec<_>, VolumeError>>()
            };
            assert!(
                page(self.subject.store(), real) == page(&self.twin, twin),
                "the volumes differ at the end"
            );
        }
    }
}
