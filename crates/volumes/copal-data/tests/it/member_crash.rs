//! Power cuts of a data server: acknowledged operations of a member are on the device.
//!
//! After each operation only flushed bytes stay on the device, the minimum that a power cut leaves.

use crate::{
    members::{GROUP, boot_member, create, delete, fid, head, name, open_member, vid},
    stack::{MIB, body, format},
};
use copal_data::{BodySource, FileState, GroupOperation, MemberStore, VolumeNotice};
use copal_device::{Device, crash, fault::FaultDevice};
use copal_volume::{
    VolumeId,
    group::{Epoch, Role, Term},
};
use std::{collections::BTreeSet, sync::Arc};

/// A device with a member that was closed; recording starts here.
fn founded() -> Arc<FaultDevice> {
    let device = FaultDevice::new(64 * MIB, 1);
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    let (store, _) = boot_member(&dynamic);
    store.close().expect("close");
    drop(store);
    FaultDevice::from_image(device.image(), 2)
}

/// Check to run once the power is back.
type Looks = Box<dyn Fn(&MemberStore)>;

fn is_live(number: u64, len: usize) -> Looks {
    Box::new(move |store| {
        let (bytes, _) = store
            .get(vid(), &name(number), 0..u64::MAX, None)
            .unwrap_or_else(|error| panic!("file {number} was acknowledged: {error}"));
        assert!(bytes == body(number, len), "file {number}");
    })
}

/// An acknowledged operation.
struct Acknowledged {
    /// Events of the device at the acknowledgement.
    from: usize,
    looks: Looks,
}

/// Symptom: a member could acknowledge operations before they were on its device, and no test noticed. Cause:
/// only the embedded store had a test of power cuts, the member's had none. Fix: this test.
#[test]
fn operations_that_a_member_acknowledged_survive_a_power_cut() {
    let device = founded();
    let dynamic: Arc<dyn Device> = device.clone();
    let (store, epoch) = boot_member(&dynamic);
    let mut acknowledged = Vec::new();
    let mut done = |looks: Looks| {
        acknowledged.push(Acknowledged { from: device.step(), looks });
    };
    let boot = |store: &MemberStore| store.identity().expect("an identity").map(|own| own.incarnation);
    let booted = boot(&store);
    done(Box::new(move |store| assert_eq!(boot(store), booted, "a boot that is over")));
    let apply = |operation| {
        let held = store.apply(GROUP, epoch, operation).expect("it is served");
        assert_eq!(held, Ok(Role::Normal));
    };
    for (number, len) in [(1, 100), (2, 30_000), (3, 300_000)] {
        apply(create(number, len));
        done(is_live(number, len));
    }
    let (new, bytes) = head(4, 5_000_000);
    for (index, piece) in (0..).zip([bytes.slice(..4 << 20), bytes.slice(4 << 20..)]) {
        store.stage(vid(), new.fid, index, piece).expect("a piece");
    }
    apply(GroupOperation::Create { vid: vid(), name: name(4), head: new, body: BodySource::Staged });
    done(is_live(4, 5_000_000));
    apply(create(5, 100));
    apply(delete(5));
    done(Box::new(|store| {
        let found = store.find(vid(), fid(5)).expect("a look");
        assert_eq!(found, FileState::Deleted, "a delete that was acknowledged");
    }));
    store.accept_term(Term(9)).expect("a master");
    done(Box::new(|store| assert_eq!(store.term(), Ok(Term(9)))));
    let later = Epoch(epoch.0 + 5);
    store.enter_view(GROUP, later, Role::Normal).expect("a view");
    done(Box::new(move |store| {
        let found = store.membership(GROUP).expect("a membership");
        assert_eq!(found.map(|found| found.epoch), Some(later), "a view that was entered");
    }));
    let other = VolumeId::in_group(GROUP, 2);
    store.note_volume(other, VolumeNotice::Removed).expect("a removal");
    done(Box::new(move |store| {
        assert_eq!(store.removed_volumes(GROUP).expect("a look"), [other]);
    }));
    drop(store);
    let history = device.history();
    let mut looked = 0;
    for cut in crash::cuts(&history) {
        let states = cut.states(&crash::StateLimits::default());
        let count = states.count_all();
        for index in BTreeSet::from([0, count / 2, count - 1]) {
            let state = states.get(index).expect("a state of this cut");
            let store = open_member(&state.device());
            let due = acknowledged.iter().filter(|it| it.from <= state.step());
            for it in due {
                (it.looks)(&store);
                looked += 1;
            }
        }
    }
    assert!(looked > 100, "only {looked} looks");
}
