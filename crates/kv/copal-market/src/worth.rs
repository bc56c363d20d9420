//! The currency of the market: reads of the device that one byte saves in one Get.

/// Worth of one byte more, and of one byte less, to a pool. Both are reads per byte and Get.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ByteWorth {
    /// Reads that one byte more would save.
    pub gain: f64,
    /// Reads that one byte less would cost.
    pub loss: f64,
}

/// A gain must be more than this many times the loss of the payer.
///
/// No tuning knob: 4 gives the same within a few percent, 1.2 lets pools take turns.
pub const FACTOR: f64 = 2.0;

/// Offer of the market to the rule of filter columns, and its request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ColumnOffer {
    /// Unused bytes.
    pub free_bytes: u64,
    /// Least loss of a cache: the price of a byte that is not free.
    pub price: f64,
    /// Bytes that the caches give at that price.
    pub for_sale: u64,
    /// Greatest gain of a cache: columns worth less than half of it are given back.
    pub bid: f64,
    /// Most bytes of columns that are asked for at that bid.
    pub wanted: u64,
}
