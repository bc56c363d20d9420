//! Reports for administrators: the cluster, its disks, its copies, and the history of one group.

pub(crate) mod cluster_status;
pub(crate) mod disk_usage;
pub(crate) mod group_story;
pub(crate) mod recovery_tasks;
