//! The VMs of a repository: names and UUIDs, kept in the domain's log.

use crate::catalog::log::{Append, Catalog, LogName};
use crate::catalog::record::{MAX_NAME_BYTES, Record};
use crate::error::{Error, Result};
use crate::request::Vm;
use crate::words::is_plain;
use uuid::Uuid;

/// Reads and extends the list of VMs.
pub(crate) struct Directory<'a> {
    catalog: &'a Catalog,
}

impl<'a> Directory<'a> {
    pub(crate) fn new(catalog: &'a Catalog) -> Directory<'a> {
        Directory { catalog }
    }

    /// All VMs, by name.
    pub(crate) fn all(&self) -> Result<Vec<Vm>> {
        let (mut vms, _) = self.read()?;
        vms.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(vms)
    }

    fn read(&self) -> Result<(Vec<Vm>, u64)> {
        let entries = self.catalog.read(LogName::Domain)?;
        let next = entries.last().map_or(0, |entry| entry.number + 1);
        let vms = entries.into_iter().filter_map(|entry| match entry.record {
            Record::VmAdded { vm, name } => Some(Vm { uuid: vm, name }),
            _ => None,
        });
        Ok((vms.collect(), next))
    }

    /// The VM of a name or UUID.
    /// # Errors
    /// `NotFound`.
    pub(crate) fn find(&self, name: &str) -> Result<Vm> {
        let (vms, _) = self.read()?;
        find_in(&vms, name).ok_or_else(|| Error::NotFound {
            what: "VM",
            name: name.to_owned(),
        })
    }

    /// The VM of a name or UUID, entered if it is new.
    pub(crate) fn find_or_add(&self, name: &str) -> Result<Vm> {
        loop {
            let (vms, next) = self.read()?;
            if let Some(vm) = find_in(&vms, name) {
                return Ok(vm);
            }
            // Behind the look: a VM that has such a name from before is still backed up.
            check_name(name)?;
            let uuid = match Uuid::try_parse(name) {
                Ok(uuid) => uuid,
                Err(_) => Uuid::from_bytes(crate::keys::random()?),
            };
            let vm = Vm {
                uuid,
                name: name.to_owned(),
            };
            let record = Record::VmAdded {
                vm: vm.uuid,
                name: vm.name.clone(),
            };
            if let Append::Done = self.catalog.append(LogName::Domain, next, &record)? {
                return Ok(vm);
            }
        }
    }
}

fn find_in(vms: &[Vm], name: &str) -> Option<Vm> {
    let uuid = Uuid::try_parse(name).ok();
    vms.iter()
        .find(|vm| vm.name == name || Some(vm.uuid) == uuid)
        .cloned()
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
