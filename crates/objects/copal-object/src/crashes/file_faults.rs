//! Failed calls to the host of a store of files: each call of a life fails in turn, and a write also after a part of its
//! bytes. The next opening finds all that was acknowledged, with and without a power loss before it.
//!
//! Not here: devices (`command_faults`), crashes (`files`).

use super::{
    command_faults::{LifeRecord, OLD, STREAM, live, put},
    number,
};
use crate::{
    Ack, CreateOptions, MkfsOptions, ObjectKind, OpenOptions, Store, StoreError, StoreOpenError, Txn,
    backend::hostfs::{
        HostFiles,
        faulty_directory::{FaultyDirectory, HOST_CALLS, HostCall, HostFault, HostFaults},
        sim_directory::{IgnoredSync, SimContents, SimDirectory},
    },
    format::superblock::BACKEND_HOSTFS,
    open::{self, OpenOverrides, StoreBackend},
    state::entropy::EntropySource,
};
use copal_device::Device;
use copal_testkit::Random;
use std::sync::Arc;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Distance of the reads and writes that fail in `make test`, by turns with each error, and of other calls.
/// `COPAL_FAULT_STEP=1` fails each call with both errors.
const TRANSFER_STEP: u64 = 13;
const STEP: u64 = 8;

fn sim(contents: SimContents) -> SimDirectory {
    SimDirectory::new(contents, IgnoredSync::No)
}

fn open(sim: &SimDirectory, faults: &Arc<HostFaults>) -> Result<Store, StoreOpenError> {
    let directory = FaultyDirectory { below: sim.clone(), faults: Arc::clone(faults) };
    let files = HostFiles::on(Box::new(directory), false);
    let opened = open::open(StoreBackend::Files(files), &OpenOptions::default(), OpenOverrides::default());
    opened.map(|(inner, _)| Store { inner })
}

/// A store with old objects and a stream; everything is durable.
fn store_of_files() -> SimContents {
    let sim = sim(SimContents::default());
    let files: Arc<dyn Device> = HostFiles::on(Box::new(sim.clone()), false);
    let options = MkfsOptions { journal_bytes: Some(256 << 10), ..MkfsOptions::default() };
    open::mkfs::mkfs(&files, &options, &mut EntropySource::Seed(Random::new(1)), BACKEND_HOSTFS).unwrap();
    let store = open(&sim, &HostFaults::new(None)).unwrap();
    let stream = CreateOptions { kind: ObjectKind::Stream, ..CreateOptions::default() };
    store.commit(Txn::new().create(STREAM, stream), Ack::Durable).wait().unwrap();
    (0..OLD).for_each(|id| assert!(store.commit(put(id), Ack::Ordered).wait().is_ok()));
    store.close().unwrap();
    sim.survivors(sim.step(), &mut || false)
}

/// Whether the store takes no writes after this call failed, so that nothing is acknowledged behind it.
fn is_fencing(call: HostCall) -> bool {
    matches!(call, HostCall::Write | HostCall::SyncData | HostCall::SyncNames)
}

/// Runs a life in which one call fails, and judges it; returns the numbers of calls.
fn run(contents: &SimContents, fault: Option<HostFault>) -> Arc<HostFaults> {
    let case = format!("{fault:?}");
    let (sim, faults) = (sim(contents.clone()), HostFaults::new(fault));
    let mut record = LifeRecord::of_old_objects();
    match open(&sim, &faults) {
        Ok(store) => {
            let lived = live(&store, &mut record);
            match (&lived, fault) {
                (Ok(()), _) | (Err(StoreError::Fenced), Some(_)) => {}
                (Err(StoreError::Device(_)), Some(_)) => {}
                (Err(StoreError::NoSpace { .. }), Some(fault)) if fault.errno == ENOSPC => {}
                _ => panic!("{case}: {lived:?}"),
            }
            if matches!(lived, Err(StoreError::Device(_)))
                && fault.is_some_and(|fault| is_fencing(fault.call))
            {
                let later = store.commit(put(5000), Ack::Durable).wait();
                assert!(later.is_err(), "{case}");
                record.doubt(5000);
            }
            if lived.is_ok() {
                let _ = store.close();
            }
        }
        Err(error) => assert!(fault.is_some(), "{case}: {error}"),
    }
    let sound = HostFaults::new(None);
    let lost = SimDirectory::new(sim.survivors(sim.step(), &mut || false), IgnoredSync::No);
    record.judge(|| open(&lost, &sound), &format!("{case}, power loss"));
    record.judge(|| open(&sim, &sound), &case);
    faults
}

#[test]
fn a_failed_call_to_the_host_loses_nothing() {
    let contents = store_of_files();
    let sound = run(&contents, None);
    let counts = HOST_CALLS.map(|call| (call, sound.count(call)));
    assert!(counts.iter().all(|&(_, count)| count > 0), "{counts:?}");
    for (call, count) in counts {
        let usual = if matches!(call, HostCall::Write | HostCall::Read) { TRANSFER_STEP } else { STEP };
        let step = number("COPAL_FAULT_STEP", usual);
        for (turn, number) in (0..count).step_by(step as usize).enumerate() {
            let is_partial = call == HostCall::Write && turn % 4 < 2;
            let errnos = [EIO, ENOSPC];
            let errnos = if step == 1 { &errnos[..] } else { &errnos[turn % 2..=turn % 2] };
            for &errno in errnos {
                run(&contents, Some(HostFault { call, number, errno, is_partial }));
            }
        }
    }
}
