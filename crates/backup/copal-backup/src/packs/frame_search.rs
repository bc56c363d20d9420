//! Finds many frames at once. Locations in references are hints: after a prune the frames are elsewhere, and
//! the index knows where.
//!
//! The rows of all frames that are not at their location are looked up together. Looked up one by one, each
//! would cost a read of a block of the index. The footers of their packs are loaded together, too.

use crate::packs::pack::FrameLocation;
use crate::packs::pack_store::{LocatedFrame, PackStore};
use crate::request::error::Result;
use std::collections::BTreeMap;

impl PackStore {
    /// Finds frames by location and short id. `take` gets each once, in any order; `None`: neither its location
    /// nor the index leads to it, or the way there is damaged. [`PackStore::locate`] has the reason.
    /// # Errors
    /// Errors of the store and the index that are not damage; those of `take`.
    pub(crate) fn find_frames(
        &self,
        wanted: &[(FrameLocation, [u8; 16])],
        take: &mut dyn FnMut(usize, Option<LocatedFrame>) -> Result<()>,
    ) -> Result<()> {
        self.load_footers(wanted.iter().map(|(location, _)| location.place_of_pack()))?;
        let mut elsewhere: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (at, (location, id)) in wanted.iter().enumerate() {
            match self.at(*location, id) {
                Ok(Some(located)) => take(at, Some(located))?,
                Err(error) if !error.is_corruption() => return Err(error),
                Ok(None) | Err(_) => elsewhere.entry(location.home).or_default().push(at),
            }
        }
        for (home, missing) in elsewhere {
            self.know_index(home)?;
            let ids: Vec<[u8; 16]> = missing.iter().map(|at| wanted[*at].1).collect();
            let rows = match self.index.rows_of(home, &ids) {
                Err(error) if error.is_corruption() => vec![Vec::new(); ids.len()],
                rows => rows?,
            };
            let mut others = Vec::with_capacity(missing.len());
            for (at, rows) in missing.into_iter().zip(rows) {
                others.push((at, self.others_of(wanted[at].0, rows)?));
            }
            let all = others.iter().flat_map(|(_, locations)| locations);
            self.load_footers(all.map(FrameLocation::place_of_pack))?;
            for (at, locations) in others {
                let (_, id) = &wanted[at];
                let mut found = None;
                for location in locations {
                    match self.at(location, id) {
                        Err(error) if !error.is_corruption() => return Err(error),
                        located => found = located.ok().flatten(),
                    }
                    if found.is_some() {
                        break;
                    }
                }
                take(at, found)?;
            }
        }
        Ok(())
    }
}
