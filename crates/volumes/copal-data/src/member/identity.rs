//! Whose disk this is: the row that a data server boots by.

use super::store::MemberStore;
use crate::{
    error::{corrupt, of_engine},
    format::{IDENTITY_KEY, MemberIdentity},
};
use copal_kv::Durability;
use copal_volume::{
    VolumeError,
    group::{Incarnation, Term},
};

impl MemberStore {
    /// Whose disk this is; `None`: nobody's yet.
    /// # Errors
    /// `Corrupt`, also for the store of an embedded node; `Failed`.
    pub fn identity(&self) -> Result<Option<MemberIdentity>, VolumeError> {
        let row = self.core.spaces.node.get(IDENTITY_KEY).map_err(|error| of_engine(&error))?;
        row.map(|row| MemberIdentity::parse(&row).map_err(|error| corrupt(error.to_string()))).transpose()
    }

    /// Makes the disk that of a server, before its first boot.
    /// # Errors
    /// `Denied`: it is somebody's. `NoSpace`, `Failed`.
    pub fn found(&self, identity: &MemberIdentity) -> Result<(), VolumeError> {
        match self.identity()? {
            None => self.keep(identity),
            Some(_) => Err(VolumeError::Denied { reason: "the disk belongs to a server already".to_owned() }),
        }
    }

    /// Begins a boot: durable before anybody hears of it. `drawn` is random.
    /// # Errors
    /// `Corrupt`: the disk is nobody's. `NoSpace`, `Failed`.
    pub fn boot(&self, drawn: u64) -> Result<MemberIdentity, VolumeError> {
        let none = || corrupt("the store does not say whose it is");
        let mut identity = self.identity()?.ok_or_else(none)?;
        identity.incarnation = Incarnation::next(identity.incarnation, drawn);
        self.keep(&identity)?;
        self.begin_recovering()?;
        Ok(identity)
    }

    /// Remembers the reign of a master, durably before any order of it is carried out. `false`: it is older
    /// than one that was heard of, and nothing it says is to be done.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn hear(&self, term: Term) -> Result<bool, VolumeError> {
        let mut heard = self.core.heard.lock();
        let identity = match *heard {
            Some(identity) => Some(identity),
            None => self.identity()?,
        };
        let Some(mut identity) = identity else {
            return Ok(false);
        };
        if term > identity.term {
            identity.term = term;
            self.keep(&identity)?;
        }
        *heard = Some(identity);
        Ok(term >= identity.term)
    }

    /// The newest reign that was heard of; 0: none.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn term(&self) -> Result<Term, VolumeError> {
        let heard = self.core.heard.lock();
        let identity = match *heard {
            Some(identity) => Some(identity),
            None => self.identity()?,
        };
        Ok(identity.map(|identity| identity.term).unwrap_or_default())
    }

    fn keep(&self, identity: &MemberIdentity) -> Result<(), VolumeError> {
        let core = &self.core;
        let mut batch = core.kv.batch();
        batch.put(&core.spaces.node, IDENTITY_KEY, identity.row());
        core.commit_essential(batch, Durability::Device)
    }
}
