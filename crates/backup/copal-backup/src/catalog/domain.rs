//! State of the domain's log: the list of VMs, a pure fold over its records.
//!
//! Format: docs/formats/backup-checkpoint.md v3

use super::fold::{LogEntry, LogState};
use super::record::{MAX_NAME_BYTES, Record};
use crate::request::Vm;
use copal_codec::{DecodeError, Put, Reader};
use uuid::Uuid;

/// UUID, and the shortest name with its length.
const LEAST_VM_BYTES: usize = 17;

/// State of the domain's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DomainState {
    /// Number of the next record.
    pub(crate) next_number: u64,
    /// All VMs, in the order in which they were added.
    pub(crate) vms: Vec<Vm>,
}

impl DomainState {
    /// Whether a VM has this UUID or this name.
    fn has(&self, vm: Uuid, name: &str) -> bool {
        self.vms.iter().any(|known| known.uuid == vm || known.name == name)
    }
}

impl LogState for DomainState {
    const KIND: u8 = 1;

    fn next_number(&self) -> u64 {
        self.next_number
    }

    fn set_next_number(&mut self, number: u64) {
        self.next_number = number;
    }

    fn apply(&mut self, entry: &LogEntry) {
        self.next_number = entry.number + 1;
        match &entry.record {
            // A VM that is listed twice would have each snapshot twice, and retention would forget one of the
            // two.
            Record::VmAdded { vm, name } if !self.has(*vm, name) => {
                self.vms.push(Vm { uuid: *vm, name: name.clone() })
            }
            Record::VmRemoved { vm } => self.vms.retain(|known| known.uuid != *vm),
            _ => {}
        }
    }

    fn items(&self) -> usize {
        self.vms.len()
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_varint(self.vms.len() as u64);
        for vm in &self.vms {
            bytes.put_bytes(vm.uuid.as_bytes());
            bytes.put_prefixed(vm.name.as_bytes());
        }
    }

    fn parse(next_number: u64, input: &mut Reader<'_>, _version: u16) -> Result<DomainState, String> {
        let text = |error: DecodeError| error.to_string();
        let count = input.bounded(input.remaining() / LEAST_VM_BYTES).map_err(text)?;
        let mut vms = Vec::with_capacity(count);
        for _ in 0..count {
            let uuid = Uuid::from_bytes(input.array().map_err(text)?);
            let name = input.prefixed(MAX_NAME_BYTES).map_err(text)?;
            let name = std::str::from_utf8(name)
                .map_err(|error| format!("the name of a VM is not text: {error}"))?;
            vms.push(Vm { uuid, name: name.to_owned() });
        }
        Ok(DomainState { next_number, vms })
    }
}
