//! Identity of a data server's disk, and its boots.

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
    /// The identity of the disk; `None`: it belongs to no server yet.
    /// # Errors
    /// `Corrupt`, also for the store of an embedded node; `Failed`.
    pub fn identity(&self) -> Result<Option<MemberIdentity>, VolumeError> {
        let row = self.core.spaces.node.get(IDENTITY_KEY).map_err(|error| of_engine(&error))?;
        row.map(|row| MemberIdentity::parse(&row).map_err(|error| corrupt(error.to_string()))).transpose()
    }

    /// Assigns the disk to a server, before its first boot.
    /// # Errors
    /// `Denied`: it belongs to a server. `NoSpace`, `Failed`.
    pub fn assign(&self, identity: &MemberIdentity) -> Result<(), VolumeError> {
        match self.identity()? {
            None => self.write_identity(identity),
            Some(_) => Err(VolumeError::Denied { reason: "the disk belongs to a server already".to_owned() }),
        }
    }

    /// Begins a boot with a new incarnation, durable before it is sent anywhere. `drawn` is random.
    /// # Errors
    /// `Corrupt`: the disk belongs to no server. `NoSpace`, `Failed`.
    pub fn boot(&self, drawn: u64) -> Result<MemberIdentity, VolumeError> {
        let none = || corrupt("the store has no identity of a server");
        let mut identity = self.identity()?.ok_or_else(none)?;
        identity.incarnation = Incarnation::next(identity.incarnation, drawn);
        self.write_identity(&identity)?;
        self.begin_recovering()?;
        Ok(identity)
    }

    /// Stores the term of a leader, durably, before any of its orders is executed. `false`: the term is older
    /// than an accepted one, and its orders must be refused.
    /// # Errors
    /// `NoSpace`, `Failed`.
    pub fn accept_term(&self, term: Term) -> Result<bool, VolumeError> {
        let mut cached = self.core.identity.lock();
        let identity = match *cached {
            Some(identity) => Some(identity),
            None => self.identity()?,
        };
        let Some(mut identity) = identity else {
            return Ok(false);
        };
        if term > identity.term {
            identity.term = term;
            self.write_identity(&identity)?;
        }
        *cached = Some(identity);
        Ok(term >= identity.term)
    }

    /// The newest accepted term; 0: none.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn term(&self) -> Result<Term, VolumeError> {
        let cached = self.core.identity.lock();
        let identity = match *cached {
            Some(identity) => Some(identity),
            None => self.identity()?,
        };
        Ok(identity.map(|identity| identity.term).unwrap_or_default())
    }

    fn write_identity(&self, identity: &MemberIdentity) -> Result<(), VolumeError> {
        let core = &self.core;
        let mut batch = core.kv.batch();
        batch.put(&core.spaces.node, IDENTITY_KEY, identity.row());
        core.commit_essential(batch, Durability::Device)
    }
}
