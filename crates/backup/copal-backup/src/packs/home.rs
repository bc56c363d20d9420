//! Owners and kinds of packs.

use uuid::Uuid;

/// Kind of the frames in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PackKind {
    /// Chunks, shared by the VMs of the domain.
    Shared,
    /// Recipes, pages and roots of one VM.
    Recipes,
    /// Chunks of one VM.
    Private,
}

impl PackKind {
    pub(crate) fn code(self) -> u8 {
        match self {
            PackKind::Shared => 1,
            PackKind::Recipes => 2,
            PackKind::Private => 3,
        }
    }
    pub(crate) fn from_code(code: u8) -> Option<PackKind> {
        match code {
            1 => Some(PackKind::Shared),
            2 => Some(PackKind::Recipes),
            3 => Some(PackKind::Private),
            _ => None,
        }
    }
    /// Whether its frames are chunks.
    pub(crate) fn has_chunks(self) -> bool {
        self != PackKind::Recipes
    }
}

/// Owner and kind of packs; determines their volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PackHome {
    /// Chunks of the domain: all chunks in the layout solo, the popular ones in a fleet.
    Shared,
    /// Chunks of one VM; no other VM refers to them.
    Private(Uuid),
    /// Recipes of one VM.
    Recipes(Uuid),
}

impl PackHome {
    pub(crate) fn kind(self) -> PackKind {
        match self {
            PackHome::Shared => PackKind::Shared,
            PackHome::Private(_) => PackKind::Private,
            PackHome::Recipes(_) => PackKind::Recipes,
        }
    }

    /// The VM that owns the home; `None`: the domain.
    pub(crate) fn vm(self) -> Option<Uuid> {
        match self {
            PackHome::Shared => None,
            PackHome::Private(vm) | PackHome::Recipes(vm) => Some(vm),
        }
    }

    /// Whether chunks lie there.
    pub(crate) fn has_chunks(self) -> bool {
        self.kind().has_chunks()
    }

    /// The home of packs of this kind; `vm` is ignored for shared packs.
    pub(crate) fn of(kind: PackKind, vm: Uuid) -> PackHome {
        match kind {
            PackKind::Shared => PackHome::Shared,
            PackKind::Private => PackHome::Private(vm),
            PackKind::Recipes => PackHome::Recipes(vm),
        }
    }

    /// The home that a volume name stands for; `None` for volumes of the domain and other volumes.
    pub(super) fn of_volume(name: &str) -> Option<PackHome> {
        let (vm, rest) = name.strip_prefix("vm-")?.split_once('.')?;
        let vm = Uuid::try_parse(vm).ok()?;
        match rest.strip_prefix('c') {
            Some(number) => number.parse::<u32>().ok().map(|_| PackHome::Private(vm)),
            // Volumes of manifests count too: a VM may have no others.
            None => Some(PackHome::Recipes(vm)),
        }
    }
}
