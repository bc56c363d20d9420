//! Seconds since 1970 as dates: RFC 7231 for headers, ISO 8601 for XML.

/// Last second of the year 9999; later times have no four-digit year.
const LAST_SECOND: i64 = 253_402_300_799;

struct CivilTime {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

impl CivilTime {
    /// The Gregorian date, by the algorithm `civil_from_days` of Howard Hinnant. Times outside the years
    /// 1970 to 9999 become the nearest one inside.
    fn of(unix: i64) -> CivilTime {
        let unix = unix.clamp(0, LAST_SECOND);
        let (days, in_day) = (unix / 86_400, unix % 86_400);
        let shifted = days + 719_468;
        let (era, in_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
        let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * in_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        CivilTime {
            year: era * 400 + year_of_era + i64::from(month <= 2),
            month: month as usize,
            day: in_year - (153 * from_march + 2) / 5 + 1,
            weekday: ((days + 4) % 7) as usize,
            hour: in_day / 3600,
            minute: in_day / 60 % 60,
            second: in_day % 60,
        }
    }
}

/// Such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn http_date(unix: i64) -> String {
    const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let CivilTime { year, month, day, weekday, hour, minute, second } = CivilTime::of(unix);
    let (weekday, month) = (WEEKDAYS[weekday], MONTHS[month - 1]);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Such as `1994-11-06T08:49:37.000Z`.
pub(super) fn iso_date(unix: i64) -> String {
    let CivilTime { year, month, day, hour, minute, second, .. } = CivilTime::of(unix);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

#[cfg(test)]
mod tests {
    use super::{http_date, iso_date};

    #[test]
    fn dates_are_those_of_the_standards() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(iso_date(784_111_777), "1994-11-06T08:49:37.000Z");
        assert_eq!(iso_date(951_782_399), "2000-02-28T23:59:59.000Z");
        assert_eq!(iso_date(951_868_799), "2000-02-29T23:59:59.000Z");
        assert_eq!(http_date(i64::MIN), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(iso_date(i64::MAX), "9999-12-31T23:59:59.000Z");
    }
}
