//! Measurements of the cluster, beside the figures of BeanFS.

mod copies;
pub(crate) mod email;
pub(crate) mod failover;
pub(crate) mod figure10;
pub(crate) mod figure11;
pub(crate) mod figure2;
pub(crate) mod figure7;
pub(crate) mod figure8a;
pub(crate) mod figure8bc;
pub(crate) mod figure9;
pub(crate) mod gate;
mod hosted;
pub(crate) mod large;
pub(crate) mod listing;
mod load;
pub(crate) mod mails;
pub(crate) mod meta;
pub(crate) mod operations;
pub(crate) mod powercut;
pub(crate) mod priority;
pub(crate) mod rereplicate;
pub(crate) mod running;
pub(crate) mod s3;
mod throttled;
