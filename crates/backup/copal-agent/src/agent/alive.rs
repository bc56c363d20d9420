//! Who is there: agents whose beats are fresh.

use crate::asker::Member;
use copal_backup::Repository;
use std::time::Duration;

/// Whoever has not been heard of for so long is not waited for.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(180);

/// Agents that were heard of lately, each once.
/// # Errors
/// Those of the store.
pub fn alive(repository: &Repository) -> copal_backup::Result<Vec<Member>> {
    let mut holders = repository.holders()?;
    holders.retain(|holder| {
        !holder.address.is_empty() && u128::from(holder.beat_age_ms) < SILENT_AFTER.as_millis()
    });
    // Of several of one name, the one that was heard of last.
    holders.sort_by(|a, b| (&a.name, a.beat_age_ms).cmp(&(&b.name, b.beat_age_ms)));
    holders.dedup_by(|later, kept| later.name == kept.name);
    let members = holders.into_iter().map(|holder| Member {
        name: holder.name,
        address: holder.address,
    });
    Ok(members.collect())
}
