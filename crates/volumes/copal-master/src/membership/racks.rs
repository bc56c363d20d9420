//! Racks and zones as numbers, from the names that servers report.
//!
//! Design: docs/design/cluster.md#rules VOL-29
//! Not here: the choice of members by racks (`copal_volume::group::placement`), mass failures
//! (`copal_volume::group::recovery`).

use crate::tables::meta_store::ServerRow;
use copal_volume::group::placement::DiskSite;
use std::collections::BTreeMap;

/// The site of each disk. A rack is identified by its name and by the name of its zone. A disk without a
/// reported rack counts as a rack of its own.
pub(crate) fn sites<'a>(servers: impl Iterator<Item = &'a ServerRow> + Clone) -> BTreeMap<u32, DiskSite> {
    // The number of a rack or zone is that of its first disk, so it is unique.
    let (mut racks, mut zones) = (BTreeMap::new(), BTreeMap::new());
    for server in servers.clone() {
        racks.entry((&server.zone, &server.rack)).or_insert(server.disk);
        zones.entry(&server.zone).or_insert(server.disk);
    }
    let site = |server: &ServerRow| DiskSite {
        rack: match server.rack.is_empty() {
            true => server.disk,
            false => racks[&(&server.zone, &server.rack)],
        },
        zone: match server.zone.is_empty() {
            true => server.disk,
            false => zones[&server.zone],
        },
    };
    servers.map(|server| (server.disk, site(server))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::layout::tests::server;
    use crate::tables::meta_store::ServerRow;

    fn at(number: u8, zone: &str, rack: &str) -> ServerRow {
        ServerRow { zone: zone.to_owned(), rack: rack.to_owned(), ..server(number) }
    }

    #[test]
    fn one_rack_is_one_name_in_one_zone() {
        let servers = [
            at(1, "", ""),
            at(2, "", ""),
            at(3, "north", "r1"),
            at(4, "north", "r1"),
            at(5, "south", "r1"),
            at(6, "south", ""),
            at(7, "", "r1"),
            at(8, "", "r1"),
        ];
        let sites = sites(servers.iter());
        let numbers: Vec<(u32, u32)> = sites.values().map(|site| (site.rack, site.zone)).collect();
        assert_eq!(numbers, [(1, 1), (2, 2), (3, 3), (3, 3), (5, 5), (6, 5), (7, 7), (7, 8)]);
    }
}
