//! Many LRU lists over one dense slab: links are indices, every move is O(1) and allocates nothing.
//!
//! A node is a partition's number and is in at most one list; its owner knows which. A list runs from its LRU
//! end (touched longest ago) to its MRU end.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct ListLinks {
    /// Towards the LRU end.
    older: u32,
    /// Towards the MRU end.
    newer: u32,
}

/// Bytes for each node.
pub(super) const NODE_BYTES: usize = size_of::<ListLinks>();

const APART: ListLinks = ListLinks { older: NONE, newer: NONE };

#[derive(Clone, Copy)]
struct ListEnds {
    lru: u32,
    mru: u32,
}

const EMPTY: ListEnds = ListEnds { lru: NONE, mru: NONE };

/// A set of LRU lists; see the module.
pub(super) struct LruLists {
    ends: Vec<ListEnds>,
    links: Vec<ListLinks>,
}

impl LruLists {
    /// `count` empty lists.
    pub(super) fn new(count: usize) -> LruLists {
        LruLists { ends: vec![EMPTY; count], links: Vec::new() }
    }

    /// Puts a node that is in no list at the MRU end of `list`.
    pub(super) fn push_mru(&mut self, list: usize, node: u32) {
        let mru = self.ends[list].mru;
        self.place(list, node, ListLinks { older: mru, newer: NONE });
    }

    /// Puts a node that is in no list at the LRU end of `list`.
    pub(super) fn push_lru(&mut self, list: usize, node: u32) {
        let lru = self.ends[list].lru;
        self.place(list, node, ListLinks { older: NONE, newer: lru });
    }

    fn place(&mut self, list: usize, node: u32, links: ListLinks) {
        if node as usize >= self.links.len() {
            self.links.resize(node as usize + 1, APART);
        }
        self.links[node as usize] = links;
        self.connect(list, links.older, node);
        self.connect(list, node, links.newer);
    }

    /// Makes two nodes of a list neighbours; one of them may stand for the end of the list.
    fn connect(&mut self, list: usize, older: u32, newer: u32) {
        match older {
            NONE => self.ends[list].lru = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.ends[list].mru = older,
            newer => self.links[newer as usize].older = older,
        }
    }

    /// Removes the node from `list`, which must contain it.
    pub(super) fn remove(&mut self, list: usize, node: u32) {
        let gone = std::mem::replace(&mut self.links[node as usize], APART);
        self.connect(list, gone.older, gone.newer);
    }

    /// Moves all nodes of list `from` to the LRU end of list `to`; the order within each stays.
    pub(super) fn join_below(&mut self, from: usize, to: usize) {
        let (below, above) = (std::mem::replace(&mut self.ends[from], EMPTY), self.ends[to]);
        if below.lru == NONE {
            return;
        }
        self.ends[to] =
            ListEnds { lru: below.lru, mru: if above.mru == NONE { below.mru } else { above.mru } };
        if above.lru != NONE {
            self.links[below.mru as usize].newer = above.lru;
            self.links[above.lru as usize].older = below.mru;
        }
    }

    /// The node at the LRU end.
    pub(super) fn lru(&self, list: usize) -> Option<u32> {
        known(self.ends[list].lru)
    }

    /// The node at the MRU end.
    pub(super) fn mru(&self, list: usize) -> Option<u32> {
        known(self.ends[list].mru)
    }

    /// The next node towards the MRU end.
    pub(super) fn newer(&self, node: u32) -> Option<u32> {
        known(self.links[node as usize].newer)
    }

    /// A list's nodes from the LRU end to the MRU end.
    pub(super) fn iter(&self, list: usize) -> impl Iterator<Item = u32> {
        std::iter::successors(self.lru(list), |&node| self.newer(node))
    }
}

fn known(node: u32) -> Option<u32> {
    (node != NONE).then_some(node)
}
