//! Orderings that crash safety rests on, each of which the tests can break to see the crash enumerator catch
//! it.
//!
//! Outside of tests `Engine::broken` answers `false` at compile time.

/// One ordering that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flaw {
    /// KV-6: A flush deletes its log before its tables are installed.
    LogDeletedEarly,
    /// KV-5: A merge deletes its inputs before its outputs are installed.
    InputsDeletedEarly,
    /// KV-8: A purge drops value objects while its tombstone is still on its way to a table.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests ask for it"))]
    ValuesDroppedEarly,
    /// KV-4: The log does not wait for the values it points to.
    LogBeforeValues,
    /// KV-9: A kill-safe group is acknowledged without its copy in the page-cache log.
    PageCacheLogPassedBy,
    /// KV-9: An opening leaves the page-cache log to the session before.
    SessionGoesOn,
    /// KV-9: A half of the page-cache log is used again while its records are on their way into the log.
    HalfReusedEarly,
}
