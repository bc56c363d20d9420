//! Copal: three data servers; each write is durable on all of them before its answer.

use super::{
    System,
    phases::{Client, Clients, Done},
};
use crate::cluster::running::{Running, Setup};
use anyhow::{Context, Result};
use bytes::Bytes;
use copal_client::ClusterStore;
use copal_volume::{PutOptions, ReadOptions, VolumeId, VolumeOptions, VolumeStore};
use std::{path::Path, time::Duration};

/// Volumes that files are spread over.
const VOLUMES: usize = 8;

pub(super) fn start(binary: &Path, directory: &Path, clients: usize) -> Result<Ours> {
    let cluster = Running::start(binary, directory, &Setup::of(3))?;
    let volumes = (0..VOLUMES).map(|number| {
        let made = cluster.store().create_volume("", &format!("box{number}"), &VolumeOptions::default());
        made.context("making a volume")
    });
    let volumes: Vec<VolumeId> = volumes.collect::<Result<_>>()?;
    let clients = (0..clients).map(|at| {
        Ok(One {
            store: ClusterStore::connect(&cluster.profile()?, Duration::from_secs(20))?,
            volume: volumes[at % volumes.len()],
        })
    });
    Ok(Ours { clients: Clients::new(clients.collect::<Result<_>>()?), _cluster: cluster })
}

pub(super) struct Ours {
    clients: Clients<One>,
    _cluster: Running,
}

impl System for Ours {
    fn name(&self) -> &'static str {
        "copal"
    }

    fn write(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done> {
        self.clients.write(prefix, bytes, seconds)
    }

    fn read(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done> {
        self.clients.read(prefix, bytes, seconds)
    }
}

struct One {
    store: ClusterStore,
    volume: VolumeId,
}

impl Client for One {
    fn put(&mut self, name: &str, body: Bytes) -> Result<()> {
        self.store.put(self.volume, name.as_bytes(), body, &PutOptions::default())?;
        Ok(())
    }

    fn get(&mut self, name: &str) -> Result<usize> {
        let options = ReadOptions::default();
        let body = self.store.get(self.volume, name.as_bytes(), 0..u64::MAX, &options)?;
        Ok(body.len())
    }
}
