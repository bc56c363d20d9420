//! The VMs of a repository: names and UUIDs, recorded in the domain's log.

use crate::catalog::Catalog;
use crate::catalog::log::{AppendOutcome, LogName};
use crate::catalog::record::{MAX_NAME_BYTES, Record};
use crate::request::Vm;
use crate::request::error::{Error, Result};
use crate::request::words::is_plain;
use uuid::Uuid;

/// Reads and extends the list of VMs.
pub(crate) struct VmDirectory<'a> {
    catalog: &'a Catalog,
}

impl<'a> VmDirectory<'a> {
    pub(crate) fn new(catalog: &'a Catalog) -> VmDirectory<'a> {
        VmDirectory { catalog }
    }

    /// All VMs, by name.
    pub(crate) fn all(&self) -> Result<Vec<Vm>> {
        let mut vms = self.catalog.domain()?.vms.clone();
        vms.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(vms)
    }

    /// The VM with that name or UUID.
    /// # Errors
    /// `NotFound`.
    pub(crate) fn find(&self, name: &str) -> Result<Vm> {
        find_in(&self.catalog.domain()?.vms, name)
            .ok_or_else(|| Error::NotFound { what: "VM", name: name.to_owned() })
    }

    /// The VM with that name or UUID, added if it is new.
    pub(crate) fn find_or_add(&self, name: &str) -> Result<Vm> {
        loop {
            let domain = self.catalog.domain()?;
            if let Some(vm) = find_in(&domain.vms, name) {
                return Ok(vm);
            }
            // Only a new name is checked: a VM with an older, irregular name is still backed up.
            check_name(name)?;
            let uuid = match Uuid::try_parse(name) {
                Ok(uuid) => uuid,
                Err(_) => Uuid::from_bytes(crate::keys::random()?),
            };
            let vm = Vm { uuid, name: name.to_owned() };
            let record = Record::VmAdded { vm: vm.uuid, name: vm.name.clone() };
            if let AppendOutcome::Done = self.catalog.append(LogName::Domain, domain.next_number, &record)? {
                return Ok(vm);
            }
        }
    }
}

fn find_in(vms: &[Vm], name: &str) -> Option<Vm> {
    let uuid = Uuid::try_parse(name).ok();
    vms.iter().find(|vm| vm.name == name || Some(vm.uuid) == uuid).cloned()
}

fn check_name(name: &str) -> Result<()> {
    let bad = name.is_empty() || name.len() > MAX_NAME_BYTES || !is_plain(name);
    if bad {
        let reason = format!(
            "{name:?} cannot be the name of a VM: 1 to {MAX_NAME_BYTES} bytes without control characters and marks of \
             the direction of writing"
        );
        return Err(Error::Invalid { reason });
    }
    Ok(())
}
