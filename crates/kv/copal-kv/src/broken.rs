//! Switches that disable one crash-safety ordering each, so that tests can show that the crash enumerator
//! detects it.
//!
//! Outside of tests `Engine::broken` answers `false` at compile time.

/// A disabled ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flaw {
    /// KV-6: A flush deletes its log before its tables are installed.
    LogDeletedEarly,
    /// KV-5: A merge deletes its inputs before its outputs are installed.
    InputsDeletedEarly,
    /// KV-8: A purge drops value objects before its tombstone is in a table.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests ask for it"))]
    ValuesDroppedEarly,
    /// KV-4: The log does not wait for the values that it points to.
    LogBeforeValues,
    /// KV-9: A kill-safe group is acknowledged without its copy in the page-cache log.
    PageCacheLogPassedBy,
    /// KV-9: An opening does not take over the page-cache log from the previous session.
    SessionGoesOn,
    /// KV-9: Half of the page-cache log is reused while its records are still being written to the log.
    HalfReusedEarly,
}
