//! The cluster's figures, beside those of BeanFS.

pub(crate) mod figure2;
pub(crate) mod mails;
pub(crate) mod meta;
