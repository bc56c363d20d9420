//! The vectors of all snapshots that stay, merged block by block.

use crate::catalog::vm::Published;
use crate::error::Result;
use crate::parts::Parts;
use crate::summary::store::{self, Stored};
use crate::summary::{Block, Geometry};
use uuid::Uuid;

/// See the module. Memory: one block.
pub(super) struct Merged<'a> {
    parts: &'a Parts,
    vectors: Vec<Stored>,
    /// `None`: no snapshot stays.
    block: Option<(Geometry, Block)>,
}

impl<'a> Merged<'a> {
    /// That of these snapshots; `None`: one of them has no vector that can be used, or one of another geometry.
    pub(super) fn of(parts: &'a Parts, vm: Uuid, stay: &[Published]) -> Result<Option<Merged<'a>>> {
        let mut vectors = Vec::with_capacity(stay.len());
        for published in stay {
            match store::find_trusted(parts, vm, published)? {
                Some(vector) => vectors.push(vector),
                None => return Ok(None),
            }
        }
        let geometry = vectors.first().map(|vector: &Stored| vector.header.geometry);
        if vectors
            .iter()
            .any(|vector| Some(vector.header.geometry) != geometry)
        {
            return Ok(None);
        }
        Ok(Some(Merged {
            parts,
            vectors,
            block: geometry.map(|geometry| (geometry, Block::new(geometry))),
        }))
    }

    pub(super) fn blocks(&self) -> u32 {
        self.block.as_ref().map_or(1, |(geometry, _)| geometry.blocks())
    }

    pub(super) fn block_of(&self, id: &[u8; 16]) -> u32 {
        self.block
            .as_ref()
            .map_or(0, |(geometry, _)| geometry.block_of(id))
    }

    /// Merges block `number` of all. `false`: one of them cannot be read.
    pub(super) fn load(&mut self, number: u32) -> Result<bool> {
        let Some((_, block)) = &mut self.block else {
            return Ok(true);
        };
        block.clear();
        for vector in &self.vectors {
            if !vector.merge_into(block, number, self.parts)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a snapshot that stays refers to an id of the block that is loaded; now and then said of one that none does.
    pub(super) fn has(&self, id: &[u8; 16]) -> bool {
        self.block.as_ref().is_some_and(|(_, block)| block.has(id))
    }

    /// How often that is, in the block that is loaded.
    pub(super) fn error_rate(&self) -> f64 {
        self.block.as_ref().map_or(0.0, |(_, block)| block.error_rate())
    }
}
