//! An idle device has no I/O and no hook in progress.

use crate::scratch;
use copal_device::{AlignedBuf, FileOptions, Io, IoClass, IoKind, open_file};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Symptom: a closed file could not be opened again at once.
/// Cause: a thread of the device was still inside a hook that held the file.
/// Fix: giving a device up waits until hooks have returned.
#[test]
fn hooks_have_returned_when_a_device_is_idle() {
    let directory = scratch();
    for force_pread in [false, true] {
        let path = directory.path().join(format!("device-{force_pread}"));
        let options = FileOptions {
            create_size: Some(8 << 20),
            force_pread,
            allow_cow: true,
            unsafe_volatile: true,
            ..FileOptions::default()
        };
        let device = open_file(&path, &options).unwrap();
        // If the answer arrives before the hook is registered, the hook runs on this thread and the try
        // proves nothing: repeat.
        let ran_elsewhere = (0..1000).any(|_| {
            let read =
                Io { at: 0, kind: IoKind::Read(AlignedBuf::zeroed(1 << 20)), class: IoClass::Foreground };
            let here = thread::current().id();
            let returned = Arc::new(AtomicBool::new(false));
            let (begin, began) = mpsc::channel();
            let returns = returned.clone();
            let (settle, settled) = mpsc::channel();
            device.submit(vec![read]).on_complete(move |_| {
                let elsewhere = thread::current().id() != here;
                begin.send(elsewhere).unwrap();
                if elsewhere {
                    // A slow hook: a `wait_idle` that returned too early would be noticed here.
                    let _ = settled.recv_timeout(Duration::from_millis(100));
                }
                returns.store(true, Ordering::Release);
            });
            let elsewhere = began.recv().unwrap();
            device.wait_idle();
            let has_returned = returned.load(Ordering::Acquire);
            let _ = settle.send(());
            assert!(has_returned, "a hook is still running");
            elsewhere
        });
        assert!(ran_elsewhere, "no hook ran on a thread of the device");
    }
}
