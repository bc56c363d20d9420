//! Sizes of mails as the paper's operators measured them, for all suites that draw mails.
//!
//! Paper: beanfs §2.2 (figure 2: 507,306,028 mails, January to September 2007)
//! The paper gives three numbers, which the knots below reproduce; between knots the logarithm of the size is
//! uniform. The rest, such as the mean of 28.6 KB, follows from "several tens of KB" and from the largest
//! size that gives large mails their share of the bytes.

use copal_testkit::Random;

/// Share of mails below a size in bytes.
const KNOTS: [(f64, f64); 7] = [
    (0.0, 600.0),
    (0.15, 3_000.0),
    (0.50, 14_000.0),
    (0.80, 30_000.0),
    (0.95, 55_000.0),
    (0.985, 100_000.0),
    (1.0, 2_382_000.0),
];

/// Draws the size of a mail in bytes: from 600 to 2,382,000, on average 28,640.
pub(crate) fn mail_bytes(random: &mut Random) -> u64 {
    let share = random.unit();
    let above = KNOTS.partition_point(|(knot, _)| *knot <= share).min(KNOTS.len() - 1);
    let ((low_share, low), (high_share, high)) = (KNOTS[above - 1], KNOTS[above]);
    let way = (share - low_share) / (high_share - low_share);
    (low * (high / low).powf(way)) as u64
}
