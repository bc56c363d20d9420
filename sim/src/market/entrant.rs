//! Plans of memory that are compared.

/// Where found rows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CachePlan {
    /// Each row by itself; of the blocks only the last few.
    Rows,
    Blocks,
    /// Blocks, and rows out of blocks that leave.
    Both,
}

/// Where the memory of filter columns comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnPlan {
    /// At most 4 bits for each key, and at most a quarter.
    Share,
    Market,
    /// Free memory at the first load; later they move only when a merge writes them.
    AtMerges,
}

/// One plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entrant {
    pub(super) name: &'static str,
    /// Reserves that nobody uses are lent.
    pub(super) is_lent: bool,
    /// Bytes of a row beside its own.
    pub(super) row_overhead: u64,
    pub(super) columns: ColumnPlan,
    pub(super) caches: CachePlan,
    /// Outputs of a merge take the place of their cached inputs.
    pub(super) hands_heat_on: bool,
}

const TODAY: Entrant = Entrant {
    name: "today",
    is_lent: false,
    row_overhead: 288,
    columns: ColumnPlan::Share,
    caches: CachePlan::Rows,
    hands_heat_on: false,
};

const MARKET: Entrant = Entrant {
    name: "market",
    is_lent: true,
    row_overhead: 64,
    columns: ColumnPlan::Market,
    caches: CachePlan::Both,
    hands_heat_on: true,
};

/// All plans, today's first.
pub(super) const ALL: [Entrant; 10] = [
    TODAY,
    Entrant { name: "today, blocks", caches: CachePlan::Blocks, ..TODAY },
    Entrant { name: "idle lent", is_lent: true, ..TODAY },
    Entrant { name: "small rows", row_overhead: 64, ..TODAY },
    Entrant { name: "free columns", columns: ColumnPlan::Market, ..TODAY },
    Entrant { name: "blocks beside rows", caches: CachePlan::Both, ..TODAY },
    Entrant { name: "rows only", caches: CachePlan::Rows, ..MARKET },
    Entrant { name: "blocks only", caches: CachePlan::Blocks, ..MARKET },
    MARKET,
    Entrant { name: "market, columns at merges", columns: ColumnPlan::AtMerges, ..MARKET },
];

impl Entrant {
    /// Bytes of a budget that pools may have.
    pub(super) fn elastic_bytes(&self, budget: u64) -> u64 {
        // Reserves take 17/32 of a budget up to 64 MiB.
        if self.is_lent { budget } else { budget * 15 / 32 }
    }
}
