//! Role keys: the rights of each role, and the change of a repository that had none before.

use crate::mortal_store::MortalStore;
use crate::world::*;
use copal_backup::*;
use copal_data::LocalStore;
use copal_volume::{PutOptions, VolumeStore};
use std::sync::Arc;
use zeroize::Zeroizing;

fn password() -> Unlock {
    Unlock::Password(Zeroizing::new("correct horse".into()))
}

fn new(store: &LocalStore, layout: Layout) -> Repository {
    let options = InitOptions { layout, argon2_memory_kib: 64, ..InitOptions::new(password()) };
    Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap()
}

fn try_open(store: &LocalStore, unlock: &Unlock) -> Result<Repository> {
    Repository::open(Arc::new(store.clone()), IndexHome::Memory, unlock)
}

fn open_with(store: &LocalStore, unlock: &Unlock) -> Repository {
    try_open(store, unlock).unwrap()
}

fn add(repository: &Repository, role: Role) -> RoleKey {
    let key = repository.draw_key(role).unwrap();
    repository.add_key(&key).unwrap();
    key
}

fn text(seed: u64) -> Disk {
    let mut disk = Disk::new(2 << 20);
    Random::new(seed).text(&mut disk.bytes);
    disk
}

/// Names of the files of the catalog.
fn names(store: &LocalStore) -> Vec<String> {
    let files = files(store).into_iter();
    let catalog = files.filter(|(volume, ..)| volume.starts_with("cat-"));
    catalog.map(|(_, name, _)| String::from_utf8(name).unwrap()).collect()
}

#[test]
fn each_role_has_its_rights_and_no_others() {
    for layout in LAYOUTS {
        let store = embedded_store();
        let repository = new(&store, layout);
        assert_eq!(repository.roles(), Roles { highest: Role::Admin, are_split: false });
        let (first, second) = (text(1), text(2));
        let before = back_up(&repository, "web", &first, false).snapshot;
        repository.hold(&[before], 0).unwrap();
        let [backup, delete, admin] = Role::ALL.map(|role| add(&repository, role));
        assert!(repository.roles().are_split);
        let [backup, delete, admin] = [backup, delete, admin].map(|key| {
            let opened = open_with(&store, &Unlock::Key(key.clone()));
            assert_eq!(opened.roles().highest, key.role());
            assert!(opened.roles().are_split && opened.info().encrypted);
            assert_eq!(*opened.agents_secret(), *repository.agents_secret());
            opened
        });

        // A backup key backs up, finds snapshots, restores and checks.
        let after = back_up(&backup, "web", &second, false).snapshot;
        back_up(&backup, "db", &second, false);
        assert_eq!(back_up(&backup, "web", &second, false).counts.new_bytes, 0);
        for (snapshot, disk) in [(before, &first), (after, &second)] {
            assert_eq!(restore(&backup, snapshot), disk.bytes);
        }
        assert!(check(&backup).is_clean());
        let cancel = CancelFlag::new();
        let verified = backup.verify(after, &Silent, &cancel).unwrap();
        assert!(verified.is_clean());
        // It removes nothing, and writes no record that permits a removal.
        let refusals: [Result<()>; 9] = [
            backup.forget(&[before]).map(drop),
            backup.hold(&[before], 0),
            backup.note_verified(after),
            backup.delete(&Silent, &cancel).map(drop),
            backup.prune(&thorough(), &Silent, &cancel).map(drop),
            backup.remove_vm("db", true, true).map(drop),
            backup.repair_leak("db", 24 << 20, &Silent, &cancel).map(drop),
            backup.salvage_catalog().map(drop),
            backup.draw_key(Role::Backup).map(drop),
        ];
        for (number, refused) in refusals.into_iter().enumerate() {
            let error = refused.expect_err("refused");
            assert_eq!(error.exit_code(), 21, "{number}: {error}");
            assert!(error.to_string().contains("is for backup"), "{number}: {error}");
        }
        assert_eq!(backup.remove_key("0").unwrap_err().exit_code(), 21);
        assert_eq!(backup.snapshots(None).unwrap().len(), 4);
        // A dry run needs no other role.
        let dry = PruneOptions { dry_run: true, ..thorough() };
        backup.prune(&dry, &Silent, &cancel).unwrap();

        // A delete key removes, but adds no keys.
        assert_eq!(delete.draw_key(Role::Backup).unwrap_err().exit_code(), 21);
        assert_eq!(delete.remove_key("0").unwrap_err().exit_code(), 21);
        delete.hold(&[after], u64::MAX).unwrap();
        delete.note_verified(after).unwrap();
        assert_eq!(delete.forget(&[before]).unwrap().forgotten, [before]);
        prune(&delete);
        if layout.is_fleet() {
            delete.remove_vm("db", true, true).unwrap();
        }
        assert!(check(&delete).is_clean(), "{layout:?}");
        assert_eq!(restore(&delete, after), second.bytes);
        // Its changes count for all handles, also those that were open before.
        let expected = if layout.is_fleet() { 2 } else { 3 };
        for handle in [&repository, &backup, &admin] {
            assert_eq!(handle.snapshots(None).unwrap().len(), expected);
            let held = handle.resolve(&after.to_string(), None).unwrap();
            assert!(held.is_verified && held.held_until_ms == u64::MAX);
        }
        // An admin key has all rights.
        let more = add(&admin, Role::Backup);
        back_up(&open_with(&store, &Unlock::Key(more)), "web", &first, false);
    }
}

#[test]
fn a_removed_key_opens_nothing_and_the_last_admin_key_stays() {
    let store = embedded_store();
    let repository = new(&store, Layout::Solo);
    let (backup, admin) = (add(&repository, Role::Backup), add(&repository, Role::Admin));
    let listed = repository.list_keys().unwrap();
    let roles: Vec<_> = listed.iter().map(|key| (key.role, key.is_password)).collect();
    assert_eq!(roles, [(Some(Role::Admin), true), (Some(Role::Backup), false), (Some(Role::Admin), false)]);
    assert!(listed.iter().all(|key| key.is_genuine == Some(true)));
    // Without the admin role it is unknown which keys are genuine.
    let seen = open_with(&store, &Unlock::Key(backup.clone())).list_keys().unwrap();
    assert_eq!(seen.iter().filter(|key| key.is_own).count(), 1);
    assert_eq!(seen[2].is_genuine, None);

    let id = backup.id().to_string();
    assert_eq!(repository.remove_key("zz").unwrap_err().code(), "not_found");
    assert_eq!(repository.remove_key("").unwrap_err().exit_code(), 1);
    assert_eq!(repository.remove_key(&id[..6]).unwrap().id, id);
    let Err(error) = try_open(&store, &Unlock::Key(backup)) else {
        panic!("it opens");
    };
    assert_eq!((error.exit_code(), error.code()), (12, "wrong_key"));

    // The password may be removed, and then the admin key stays.
    let by_key = open_with(&store, &Unlock::Key(admin.clone()));
    by_key.remove_key("0").unwrap();
    let Err(error) = try_open(&store, &password()) else {
        panic!("it opens");
    };
    assert_eq!(error.exit_code(), 12, "{error}");
    let mut found = Repository::find(Arc::new(store.clone())).unwrap().unwrap();
    assert!(found.needs_password().unwrap());
    let error = by_key.remove_key(&admin.id().to_string()).unwrap_err();
    assert_eq!(error.exit_code(), 21, "{error}");
    back_up(&open_with(&store, &Unlock::Key(admin)), "web", &text(1), false);
    // A key of another repository opens nothing here.
    let other = add(&new(&embedded_store(), Layout::Solo), Role::Admin);
    assert!(matches!(try_open(&store, &Unlock::Key(other)), Err(Error::WrongKey { .. })));
}

#[test]
fn an_unencrypted_repository_has_no_keys() {
    let store = embedded_store();
    let repository = init(&store);
    assert_eq!(repository.draw_key(Role::Backup).unwrap_err().exit_code(), 21);
    let key = add(&new(&embedded_store(), Layout::Solo), Role::Backup);
    assert!(matches!(try_open(&store, &Unlock::Key(key.clone())), Err(Error::PasswordNotUsed)));
    // A repository cannot be created with a key file.
    let options = InitOptions::new(Unlock::Key(key));
    let made = Repository::init(Arc::new(embedded_store()), IndexHome::Memory, &options);
    assert!(matches!(made, Err(Error::Invalid { .. })));
}

/// Without role keys nothing is signed: every file has a version that older programs read.
#[test]
fn a_repository_without_role_keys_has_the_older_format() {
    for layout in LAYOUTS {
        let store = embedded_store();
        let repository = new(&store, layout);
        let first = back_up(&repository, "web", &text(1), false).snapshot;
        for until_ms in 0..80 {
            repository.hold(&[first], until_ms).unwrap();
        }
        repository.hold(&[first], 0).unwrap();
        back_up(&repository, "web", &text(2), false);
        repository.forget(&[first]).unwrap();
        prune(&repository);
        let mut looked_at = 0;
        for (_, name, body) in files(&store) {
            let magic = &body[..body.len().min(8)];
            if [&b"COPALREC"[..], b"COPALCKP"].contains(&magic) {
                assert_eq!(body[8], 2, "{}", String::from_utf8_lossy(&name));
                looked_at += 1;
            }
        }
        assert!(looked_at > 30, "{looked_at}");
        assert!(!names(&store).contains(&"roles".to_owned()));
    }
}

/// Logs of several VMs that had records and checkpoints before, one of them without a record.
#[test]
fn adding_the_first_key_may_die_at_any_step_and_be_repeated() {
    for layout in LAYOUTS {
        let store = embedded_store();
        let repository = new(&store, layout);
        let disk = text(1);
        let first = back_up(&repository, "web", &disk, false).snapshot;
        back_up(&repository, "db", &disk, false);
        for until_ms in (0..70).rev() {
            repository.hold(&[first], until_ms).unwrap();
        }
        let second = back_up(&repository, "web", &disk, false).snapshot;
        repository.forget(&[first]).unwrap();
        drop(repository);
        let mut steps = 0;
        loop {
            let dying = copy(&store);
            let mortal = MortalStore::new(dying.clone(), steps);
            let opened = Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &password()).unwrap();
            let key = opened.draw_key(Role::Delete).unwrap();
            let added = opened.add_key(&key);
            drop(opened);
            if added.is_err() {
                assert!(mortal.is_dead(), "{layout:?} {steps}: {added:?}");
                add(&open_with(&dying, &password()), Role::Delete);
            }
            let repository = open_with(&dying, &password());
            assert!(repository.roles().are_split);
            let visible: Vec<_> = repository.snapshots(Some("web")).unwrap();
            assert_eq!(visible.len(), 1, "{layout:?} {steps}");
            assert_eq!(visible[0].id, second);
            let report = check(&repository);
            assert!(report.is_clean(), "{layout:?} {steps}: {:?}", report.damages);
            prune(&repository);
            assert_eq!(restore(&repository, second), disk.bytes);
            if added.is_ok() {
                assert!(steps > 8, "{steps}");
                break;
            }
            steps += 1;
        }
    }
}

/// A handle of another process that was open when the first key was added: it signs, or gets an error.
#[test]
fn a_handle_from_before_the_first_key_signs_from_then_on() {
    for layout in LAYOUTS {
        let store = embedded_store();
        let before = new(&store, layout).behave_as_another_process();
        let disk = text(1);
        let first = back_up(&before, "web", &disk, false).snapshot;
        let second = back_up(&before, "web", &disk, false).snapshot;
        add(&open_with(&store, &password()), Role::Backup);
        before.forget(&[first]).unwrap();
        back_up(&before, "db", &disk, false);
        let repository = open_with(&store, &password());
        let web: Vec<_> = repository.snapshots(Some("web")).unwrap();
        assert_eq!(web.len(), 1);
        assert_eq!(web[0].id, second);
        assert!(check(&repository).is_clean());
    }
}

/// Backups write no checkpoints; the delete role does, and nothing is lost in between.
#[test]
fn the_delete_role_shortens_logs_that_backups_wrote() {
    let store = embedded_store();
    let repository = new(&store, Layout::Solo);
    let (backup, delete) = (add(&repository, Role::Backup), add(&repository, Role::Delete));
    let backup = open_with(&store, &Unlock::Key(backup));
    let mut disk = Disk::new(BLOCK);
    for day in 0..40 {
        Random::new(day).fill(&mut disk.bytes);
        back_up(&backup, "web", &disk, false);
    }
    let records = |store: &LocalStore| names(store).iter().filter(|name| name.starts_with("v.")).count();
    assert_eq!(records(&store), 80);
    let delete = open_with(&store, &Unlock::Key(delete));
    prune(&delete);
    back_up(&backup, "web", &disk, false);
    prune(&delete);
    let checkpoints = names(&store).iter().filter(|name| name.starts_with("c.v.")).count();
    assert!(checkpoints > 0);
    assert_eq!(backup.snapshots(None).unwrap().len(), 41);
    assert!(check(&backup).is_clean());
}

/// The file that marks the use of role keys counts only with its signature.
#[test]
fn a_forged_file_of_roles_is_damage_and_disables_nothing() {
    let store = embedded_store();
    drop(new(&store, Layout::Solo));
    let catalog = store.list_volumes("", None, 10).unwrap();
    let (_, vid) = catalog.iter().find(|(name, _)| name.starts_with("cat-")).unwrap();
    let body = b"anything".to_vec();
    store.put(*vid, b"roles", body.into(), &PutOptions::default()).unwrap();
    let Err(error) = try_open(&store, &password()) else {
        panic!("it opens");
    };
    assert_eq!(error.exit_code(), 20, "{error}");
}
