//! Time of the object store: that of its last answer, and the time since then on this machine.
//!
//! Nothing is decided by it; it stamps files so that people see when they were written.

use parking_lot::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    last: Mutex<Option<(u64, Instant)>>,
}

impl ServerClock {
    /// Takes the time of an answer's `Date` header; a text in another form is ignored.
    pub(super) fn observe(&self, date: &str) {
        if let Some(ms) = parse_date(date) {
            self.observe_ms(ms);
        }
    }

    /// Takes a time of the store: ms since 1970.
    pub(super) fn observe_ms(&self, ms: u64) {
        *self.last.lock() = Some((ms, Instant::now()));
    }

    /// The store's time now: ms since 1970. This machine's before the first answer.
    pub(super) fn now_ms(&self) -> u64 {
        match *self.last.lock() {
            Some((ms, at)) => ms + at.elapsed().as_millis() as u64,
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        }
    }

    /// Time of the store minus that of this machine, once it has answered.
    pub(super) fn offset(&self) -> Option<(Duration, bool)> {
        let (ms, at) = (*self.last.lock())?;
        let own = SystemTime::now().duration_since(UNIX_EPOCH).ok()? - at.elapsed();
        let theirs = Duration::from_millis(ms);
        Some((theirs.abs_diff(own), theirs > own))
    }
}

/// Milliseconds since 1970 of a date as in `Sun, 06 Nov 1994 08:49:37 GMT`.
fn parse_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.split_once(", ")?;
    let mut words = rest.split(' ');
    let mut next = || words.next();
    let day: u64 = next()?.parse().ok()?;
    let name = next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as u64 + 1;
    let year: u64 = next()?.parse().ok()?;
    let mut time = next()?.split(':').map(|part| part.parse::<u64>().ok());
    let (hours, minutes, seconds) = (time.next()??, time.next()??, time.next()??);
    if !(1970..=9999).contains(&year)
        || !(1..=31).contains(&day)
        || hours > 23
        || minutes > 59
        || seconds > 60
    {
        return None;
    }
    // Days since 0000-03-01 of the proleptic Gregorian calendar, with the year beginning in March.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * shifted_year + shifted_year / 4 - shifted_year / 100
        + shifted_year / 400
        + (153 * shifted_month + 2) / 5
        + day
        - 1;
    const DAYS_TO_1970: u64 = 719_468;
    Some((((days - DAYS_TO_1970) * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_answers() {
        assert_eq!(parse_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777_000));
        assert_eq!(parse_date("Thu, 29 Feb 2024 23:59:59 GMT"), Some(1_709_251_199_000));
        for other in ["", "Sunday", "Sun, 99 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 94 08:49:37 GMT"] {
            assert_eq!(parse_date(other), None, "{other}");
        }
    }
}
