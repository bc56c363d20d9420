//! Orderings that crash safety rests on, each of which the tests can break to see the crash enumerator catch it.
//!
//! Outside of tests `Engine::broken` answers `false` at compile time.

/// One ordering that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flaw {
    /// A flush deletes its log before its tables are installed.
    LogDeletedEarly,
    /// A merge deletes its inputs before its outputs are installed.
    InputsDeletedEarly,
    /// An ingest installs one table at a time.
    IngestInParts,
    /// A purge drops value objects while its tombstone is still on its way to a table.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests ask for it"))]
    ValuesDroppedEarly,
    /// The log does not wait for the values it points to.
    LogBeforeValues,
    /// A kill-safe group is acknowledged without its copy in the waiting room.
    RoomPassedBy,
    /// An opening leaves the waiting room to the session before.
    SessionGoesOn,
    /// A bay of the waiting room is used again while its records are on their way into the log.
    BayReusedEarly,
}
