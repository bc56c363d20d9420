//! The cluster's figures, beside those of BeanFS.

mod copies;
pub(crate) mod figure10;
pub(crate) mod figure11;
pub(crate) mod figure2;
pub(crate) mod figure7;
pub(crate) mod figure8bc;
pub(crate) mod figure9;
mod hosted;
pub(crate) mod mails;
pub(crate) mod meta;
mod operations;
pub(crate) mod priority;
pub(crate) mod rereplicate;
pub(crate) mod running;
mod throttled;
