//! The placement class of an object.

use crate::ObjectLifetime;

/// Streams have class 0.
pub(crate) fn placement_class(lifetime: ObjectLifetime) -> usize {
    match lifetime {
        ObjectLifetime::Short => 1,
        ObjectLifetime::Medium => 2,
        ObjectLifetime::Long => 3,
    }
}
