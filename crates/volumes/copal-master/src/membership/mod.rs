//! Data servers and the members of groups: joining, heartbeats, replacement, moves and clocks.

pub(crate) mod clocks;
pub(crate) mod disk_facts;
pub(crate) mod drains;
pub(crate) mod force_accept;
pub(crate) mod full_disks;
pub(crate) mod layout;
pub(crate) mod member_roles;
pub(crate) mod moves;
pub(crate) mod orders;
pub(crate) mod racks;
pub(crate) mod replacement;
pub(crate) mod servers;
