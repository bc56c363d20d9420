//! Volumes by path: calls to the master.

use crate::{
    api::cluster::Cluster,
    net::{errors::volume_error, machine},
};
use copal_proto::{Method, messages};
use copal_volume::{RemoveMode, VolumeError, VolumeId, VolumeOptions, check_volume_name, split_path};
use std::time::{Duration, Instant};

fn below(parent: &str, name: &str) -> String {
    match parent {
        "" => name.to_owned(),
        parent => format!("{parent}/{name}"),
    }
}

impl Cluster {
    /// Creates a volume.
    /// # Errors
    /// As [`VolumeStore::create_volume`](copal_volume::VolumeStore::create_volume).
    pub async fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
        end: Instant,
    ) -> Result<VolumeId, VolumeError> {
        split_path(parent)?;
        check_volume_name(name)?;
        let request = messages::Mkdir {
            parent: parent.to_owned(),
            name: name.to_owned(),
            options: Some(messages::VolumeWish {
                quota_bytes: options.quota_bytes.unwrap_or(0),
                has_quota: options.quota_bytes.is_some(),
                ..messages::VolumeWish::default()
            }),
        };
        let made = self
            .call_master(Method::Mkdir, &request, end)
            .await
            .map(|made: messages::Resolved| VolumeId(made.volume));
        if let Ok(vid) | Err(VolumeError::VolumeExists { vid }) = made {
            self.router.volumes().insert(vid, below(parent, name));
        }
        made
    }

    /// The volume at a path; the empty path is the root.
    /// # Errors
    /// `NotFound`.
    pub async fn open_volume(&self, path: &str, end: Instant) -> Result<VolumeId, VolumeError> {
        split_path(path)?;
        let request = messages::Resolve { path: path.to_owned() };
        let found: messages::Resolved = self.call_master(Method::Resolve, &request, end).await?;
        let vid = VolumeId(found.volume);
        self.router.volumes().insert(vid, path.to_owned());
        Ok(vid)
    }

    /// Moves a volume to another path.
    /// # Errors
    /// As [`VolumeStore::rename_volume`](copal_volume::VolumeStore::rename_volume).
    pub async fn rename_volume(&self, from: &str, to: &str, end: Instant) -> Result<(), VolumeError> {
        let request = messages::Rename { from: from.to_owned(), to: to.to_owned() };
        let messages::Done {} = self.call_master(Method::Rename, &request, end).await?;
        Ok(())
    }

    /// Up to `limit` volumes directly below `parent`, by name, after the name `after`.
    /// # Errors
    /// `NotFound`.
    pub async fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
        end: Instant,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        const PAGE: usize = 1000;
        let mut after = after.map(str::to_owned);
        let mut volumes: Vec<(String, VolumeId)> = Vec::new();
        loop {
            let count = (limit - volumes.len()).min(PAGE);
            let request = messages::ListDirs {
                parent: parent.to_owned(),
                after: after.clone().unwrap_or_default(),
                has_after: after.is_some(),
                limit: count as u32,
            };
            let page: messages::DirList = self.call_master(Method::ListDirs, &request, end).await?;
            let is_last = page.entries.len() < count || page.entries.is_empty();
            for entry in page.entries {
                let vid = VolumeId(entry.volume);
                self.router.volumes().insert(vid, below(parent, &entry.name));
                volumes.push((entry.name, vid));
            }
            after = volumes.last().map(|(name, _)| name.clone());
            if is_last || volumes.len() >= limit {
                volumes.truncate(limit);
                return Ok(volumes);
            }
        }
    }

    /// Removes a volume.
    /// # Errors
    /// As [`VolumeStore::remove_volume`](copal_volume::VolumeStore::remove_volume).
    pub async fn remove_volume(
        &self,
        vid: VolumeId,
        how: RemoveMode,
        end: Instant,
    ) -> Result<(), VolumeError> {
        let request = messages::Rmdir {
            volume: vid.0,
            with_files: how == RemoveMode::WithFiles,
            path: self.router.volumes().path(vid),
        };
        let messages::Done {} = self.call_master(Method::Rmdir, &request, end).await?;
        let removed = messages::Map { gone_volumes: vec![vid.0], ..messages::Map::default() };
        self.map().apply(&removed);
        Ok(())
    }

    async fn call_master<T: prost::Message + Default>(
        &self,
        method: Method,
        request: &impl prost::Message,
        end: Instant,
    ) -> Result<T, VolumeError> {
        let left = end.saturating_duration_since(machine::now()).max(Duration::from_millis(1));
        let answer = self.router.masters().call(method, request, left).await;
        answer.map_err(volume_error)
    }
}
