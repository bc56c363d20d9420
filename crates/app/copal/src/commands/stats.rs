//! `copal stats` and `copal repair index`.

use super::{CommandContext, close, fields::MeasuredFields};
use crate::{
    failure::{Failure, Outcome, exit},
    human,
    place::RepositoryPlace,
    repository::RemoteView,
};
use copal_backup::{RepositoryInfo, RepositoryStats};
use copal_node::{Access, StoreLocation};
use copal_object::StoreSpace;
use serde::Serialize;
use serde_json::{Value, json};

pub(super) fn stats(context: &CommandContext<'_>) -> Outcome<()> {
    let opened = context.open_for(Access::Read, RemoteView::Indexed)?;
    let (info, space) = (opened.repository().info(), opened.store().map(|store| store.objects().space()));
    let stats = opened.repository().stats().map_err(Failure::from);
    let stats = close(opened, stats)?;
    let place = RepositoryPlace::find(&context.arguments.common)?;
    let found = RepositoryFigures {
        info,
        stats,
        space,
        is_bounded: matches!(&place, RepositoryPlace::Store(location) if !matches!(location, StoreLocation::Files(_))),
        allocated_bytes: place.allocated_bytes(),
        elsewhere: match &place {
            RepositoryPlace::Store(_) => String::new(),
            RepositoryPlace::Cluster(_) => "in a cluster (`copal status`)".to_owned(),
            RepositoryPlace::Remote(url) => format!("in an object store ({url})"),
        },
    };
    context.output.answer(MeasuredFields::new("stats", found.fields()), || found.as_text());
    Ok(())
}

/// Fields of the summary.
#[derive(Serialize)]
struct StatsFields<'a> {
    #[serde(flatten)]
    info: &'a RepositoryInfo,
    #[serde(flatten)]
    stats: &'a RepositoryStats,
    /// Bytes of the store.
    store: Option<Value>,
}

/// Size and counts of a repository.
struct RepositoryFigures {
    info: RepositoryInfo,
    stats: RepositoryStats,
    /// `None` for a repository in a cluster, whose servers have their own stores.
    space: Option<StoreSpace>,
    /// Whether the store has a size of its own: a directory of files is bounded by its file system only.
    is_bounded: bool,
    allocated_bytes: Option<u64>,
    /// Place of a store that is not on this machine.
    elsewhere: String,
}

impl RepositoryFigures {
    fn bounded(&self, bytes: u64) -> Option<u64> {
        self.is_bounded.then_some(bytes)
    }

    fn fields(&self) -> StatsFields<'_> {
        let store = self.space.map(|space| {
            json!({
                "size_bytes": self.bounded(space.size_bytes),
                "allocated_bytes": self.allocated_bytes,
                "live_bytes": space.live_bytes,
                "staged_bytes": space.staged_bytes,
                "quarantine_bytes": space.quarantine_bytes,
                "reserved_bytes": self.bounded(space.reserved_bytes),
                "free_bytes": self.bounded(space.free_bytes),
                "given_back_bytes": self.bounded(space.hollow_bytes),
            })
        });
        StatsFields { info: &self.info, stats: &self.stats, store }
    }

    fn as_text(&self) -> String {
        let RepositoryFigures { info, stats, space, .. } = self;
        let packs = stats.chunk_pack_bytes + stats.recipe_pack_bytes;
        let snapshots = match stats.damaged_snapshots {
            0 => stats.snapshots.to_string(),
            damaged => format!("{}, {damaged} of them damaged", stats.snapshots),
        };
        let mut rows = vec![
            ("VMs", stats.vms.to_string()),
            ("Snapshots", snapshots),
            ("Disks as they were", human::bytes(stats.logical_bytes)),
            ("  of it holes", human::bytes(stats.hole_bytes)),
            ("In packs", in_packs(stats.logical_bytes, packs)),
            ("  of it recipes", human::bytes(stats.recipe_pack_bytes)),
            ("Catalog", human::bytes(stats.metadata_bytes)),
            ("Packs, chunks", format!("{}, {}", stats.packs, stats.chunks)),
            ("Unfinished backups", stats.unfinished_sessions.to_string()),
        ];
        let or_dash = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), human::bytes);
        match space {
            None => rows.push(("Store", self.elsewhere.clone())),
            Some(space) => {
                let size = self.bounded(space.size_bytes).map(human::bytes);
                rows.extend([
                    ("Store", size.unwrap_or_else(|| "one file per object".to_owned())),
                    ("  on its file system", or_dash(self.allocated_bytes)),
                    ("  of it used", human::bytes(space.live_bytes)),
                    ("  free inside", or_dash(self.bounded(space.free_bytes))),
                    ("  given back inside", or_dash(self.bounded(space.hollow_bytes))),
                ]);
            }
        }
        rows.extend([
            ("Encrypted", if info.encrypted { "yes" } else { "no" }.to_owned()),
            ("Made", human::local_time(info.created_ms)),
        ]);
        rows.iter().map(|(name, value)| format!("{name:<20} {value}\n")).collect()
    }
}

/// Size in packs, with the ratio to the disks if it is smaller.
fn in_packs(logical_bytes: u64, packs: u64) -> String {
    if packs == 0 {
        return "nothing yet".to_owned();
    }
    // Packs may also hold data of forgotten snapshots, more than the disks hold.
    if logical_bytes <= packs {
        return human::bytes(packs);
    }
    let ratio = logical_bytes as f64 / packs as f64;
    format!("{} ({ratio:.1} times less)", human::bytes(packs))
}

pub(super) fn repair_index(context: &CommandContext<'_>) -> Outcome<()> {
    let elsewhere = match RepositoryPlace::find(&context.arguments.common)? {
        RepositoryPlace::Store(_) => None,
        RepositoryPlace::Cluster(_) => {
            Some("the index of a repository in a cluster is rebuilt at each opening")
        }
        RepositoryPlace::Remote(_) => Some(
            "the index of a repository in an object store lies in the cache of each host, and the next command makes it \
             anew if you delete that directory (--cache DIR)",
        ),
    };
    if let Some(why) = elsewhere {
        return Err(Failure::new(
            exit::DENIED,
            "denied",
            format!(
                "`copal repair index` works on a repository of this machine only: {why}; nothing was changed"
            ),
        ));
    }
    let opened = context.open(Access::Write)?;
    let meter = context.meter();
    let summary = opened.repository().repair_index(&meter, &context.cancel).map_err(Failure::from);
    drop(meter);
    let summary = close(opened, summary)?;
    context.output.summary(MeasuredFields::new("repair index", summary), || {
        format!(
            "index rebuilt: {} rows from {} packs, {} packs unreadable\n",
            summary.rows, summary.packs, summary.damaged_packs
        )
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::in_packs;

    /// Symptom: an empty repository was reported as `0.0 times less`, and so was one with only forgotten
    /// snapshots.
    /// Cause: the ratio was printed unconditionally.
    /// Fix: it is printed only if the packs are smaller.
    #[test]
    fn the_ratio_is_printed_only_if_the_packs_are_smaller() {
        assert_eq!(in_packs(0, 0), "nothing yet");
        assert_eq!(in_packs(0, 5_000_000), "5.00 MB");
        assert_eq!(in_packs(1_000_000, 5_000_000), "5.00 MB");
        assert_eq!(in_packs(12_000_000, 5_000_000), "5.00 MB (2.4 times less)");
    }
}
