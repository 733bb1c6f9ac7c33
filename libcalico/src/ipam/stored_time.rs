//! Times as they are stored in blocks: RFC 3339, UTC, whole seconds.

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// Formats a time as in `2026-08-22T01:02:03Z`.
pub(super) fn stored_seconds(at: OffsetDateTime) -> String {
    let at = at.checked_to_offset(UtcOffset::UTC).unwrap_or(at);
    let (date, time) = (at.date(), at.time());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// Parses the result of [`stored_seconds`], and other offsets and fractions, too.
pub(super) fn parse_stored(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// Returns the nanoseconds since the epoch, clamped to the range of a sequence number.
pub(super) fn clock_nanoseconds(at: OffsetDateTime) -> u64 {
    u64::try_from(at.unix_timestamp_nanos().max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn seconds_are_utc_and_whole() {
        assert_eq!(stored_seconds(datetime!(2026-08-22 03:02:03.999 +2)), "2026-08-22T01:02:03Z");
        assert_eq!(parse_stored("2026-08-22T01:02:03Z"), Some(datetime!(2026-08-22 01:02:03 UTC)));
        assert_eq!(parse_stored("yesterday"), None);
    }

    #[test]
    fn a_clock_before_the_epoch_is_zero() {
        assert_eq!(clock_nanoseconds(datetime!(1969-12-31 23:59:59 UTC)), 0);
        assert_eq!(clock_nanoseconds(datetime!(1970-01-01 00:00:01 UTC)), 1_000_000_000);
    }
}
