//! [`GoDuration`]: a duration in the text form of Go, `5m0s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NANOSECONDS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Pattern of the texts that [`GoDuration`] and Go's `time.ParseDuration` accept. It also matches
/// durations longer than 292 years, which both reject.
#[cfg(any(test, feature = "schema"))]
const PATTERN: &str = r"^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";

/// A duration, possibly negative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration {
    nanoseconds: i64,
}

/// A text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration; write numbers with units, such as `90s`, `5m` or `1h30m`")]
pub struct DurationError {
    text: String,
}

impl GoDuration {
    /// Returns a duration of `seconds`.
    pub const fn from_secs(seconds: u32) -> Self {
        GoDuration {
            nanoseconds: seconds as i64 * 1_000_000_000,
        }
    }

    /// Returns a duration of `minutes`.
    pub const fn from_mins(minutes: u32) -> Self {
        GoDuration {
            nanoseconds: minutes as i64 * 60_000_000_000,
        }
    }

    /// Returns the duration; zero if it is negative.
    pub fn duration(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanoseconds).unwrap_or_default())
    }
}

/// Durations longer than Go's maximum of 292 years become that maximum.
impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        GoDuration {
            nanoseconds: i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX),
        }
    }
}

/// Parses one or more decimal numbers, each with a unit, or a `0` without a unit, after an optional
/// sign.
impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        parse(text)
            .map(|nanoseconds| GoDuration { nanoseconds })
            .ok_or_else(|| DurationError { text: text.into() })
    }
}

fn parse(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0i128;
    while !rest.is_empty() {
        let (number, from_unit) = split_at(rest, |c| !c.is_ascii_digit() && c != '.');
        let unit;
        (unit, rest) = split_at(from_unit, |c| c.is_ascii_digit() || c == '.');
        let (_, scale) = NANOSECONDS.into_iter().find(|(name, _)| *name == unit)?;
        total += of_units(number, scale)?;
        // The total may reach the magnitude of `i64::MIN`, which Go also accepts and which has no
        // positive counterpart.
        i64::try_from(-total).ok()?;
    }
    i64::try_from(sign * total).ok()
}

fn split_at(text: &str, is_end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

/// Returns `number` times `scale`, truncated to whole nanoseconds; `None` if `number` is not a
/// decimal number or is too large.
fn of_units(number: &str, scale: i64) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_decimal = fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !is_decimal || whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| {
        if text.is_empty() {
            Some(0)
        } else {
            text.parse::<u64>().ok().map(i128::from)
        }
    };
    // Digits after the eighteenth decimal place stand for less than a nanosecond, even if the unit
    // is an hour.
    let fraction: &str = fraction.get(..fraction.len().min(18))?;
    let part = digits(fraction)? * i128::from(scale) / 10i128.pow(fraction.len() as u32);
    Some(digits(whole)? * i128::from(scale) + part)
}

/// Formats a duration as Go does, such as `1h0m0s`, `15m0s`, `1.5s`, `20ms` or `0s`.
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.nanoseconds.unsigned_abs();
        if self.nanoseconds < 0 {
            f.write_str("-")?;
        }
        let small = NANOSECONDS
            .iter()
            .filter(|(_, scale)| (*scale as u64) < 1_000_000_000);
        if let Some((unit, scale)) = small
            .rev()
            .find(|(unit, scale)| *unit != "μs" && nanoseconds >= *scale as u64)
            && nanoseconds < 1_000_000_000
        {
            return write!(f, "{}{unit}", decimal(nanoseconds, *scale as u64));
        }
        let (hours, minutes) = (
            nanoseconds / 3_600_000_000_000,
            nanoseconds / 60_000_000_000 % 60,
        );
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(
            f,
            "{}s",
            decimal(nanoseconds % 60_000_000_000, 1_000_000_000)
        )
    }
}

fn decimal(nanoseconds: u64, scale: u64) -> String {
    let places = scale.ilog10() as usize;
    let (whole, fraction) = (nanoseconds / scale, nanoseconds % scale);
    let text = format!("{whole}.{fraction:0places$}");
    if fraction == 0 {
        whole.to_string()
    } else {
        text.trim_end_matches('0').to_owned()
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for GoDuration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": PATTERN })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn go_duration_formats_as_go_prints() {
        for (given, written) in [
            ("5m", "5m0s"),
            ("300s", "5m0s"),
            ("90m", "1h30m0s"),
            ("1h", "1h0m0s"),
            ("1.5s", "1.5s"),
            ("0.5m", "30s"),
            ("1500ms", "1.5s"),
            ("20ms", "20ms"),
            ("1.25ms", "1.25ms"),
            ("7us", "7µs"),
            ("7µs", "7µs"),
            ("7μs", "7µs"),
            ("9ns", "9ns"),
            ("0", "0s"),
            ("0s", "0s"),
            ("-1m", "-1m0s"),
            ("+2s", "2s"),
            ("1h1m1.001s", "1h1m1.001s"),
            (".5s", "500ms"),
            ("1.s", "1s"),
        ] {
            let duration: GoDuration = given.parse().unwrap();
            assert_eq!(duration.to_string(), written, "{given}");
        }
    }

    #[test]
    fn invalid_go_duration_is_rejected() {
        for text in [
            "",
            "5",
            "m",
            "-",
            "5x",
            "5 m",
            "1.2.3s",
            ".s",
            "9999999999h",
            "five",
            "5m5",
        ] {
            let error = text.parse::<GoDuration>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is not a duration")),
                "{error}"
            );
        }
    }

    /// The texts of Go's own test of `time.ParseDuration`.
    #[test]
    fn duration_texts_of_gos_tests_parse_as_in_go() {
        let pattern = regex::Regex::new(PATTERN).unwrap();
        for text in [
            "0",
            "5s",
            "30s",
            "1478s",
            "-5s",
            "+5s",
            "-0",
            "+0",
            "5.0s",
            "5.6s",
            "5.s",
            ".5s",
            "1.0040s",
            "100.00100s",
            "10ns",
            "11us",
            "12µs",
            "12μs",
            "13ms",
            "14s",
            "15m",
            "16h",
            "3h30m",
            "10.5s4m",
            "-2m3.4s",
            "1h2m3s4ms5us6ns",
            "39h9m14.425s",
            "52763797000ns",
            "0.3333333333333333333h",
            "9007199254740993ns",
            "9223372036854775807ns",
            "9223372036854775.807us",
            "9223372036s854ms775us807ns",
            "-9223372036854775808ns",
            "-9223372036854775.808us",
            "-9223372036s854ms775us808ns",
            "-2562047h47m16.854775808s",
            "0.100000000000000000000h",
            "0.830103483285477580700h",
        ] {
            assert!(
                text.parse::<GoDuration>().is_ok() && pattern.is_match(text),
                "{text}"
            );
        }
        for text in [
            "",
            "3",
            "-",
            "s",
            ".",
            "-.",
            ".s",
            "+.s",
            "1d",
            "15",
            "1.123456789012345678.9s",
            "5m ",
            "5m\n",
        ] {
            assert!(
                text.parse::<GoDuration>().is_err() && !pattern.is_match(text),
                "{text}"
            );
        }
        for text in [
            "9223372036854775808ns",
            "-9223372036854775809ns",
            "3000000h",
            "9223372036854ms775us808ns9223372036s",
        ] {
            assert!(
                text.parse::<GoDuration>().is_err() && pattern.is_match(text),
                "{text}"
            );
        }
    }

    #[test]
    fn negative_go_duration_counts_as_zero() {
        assert_eq!(
            "-5m".parse::<GoDuration>().unwrap().duration(),
            Duration::ZERO
        );
        assert_eq!(
            GoDuration::from_mins(15).duration(),
            Duration::from_secs(900)
        );
        assert_eq!(GoDuration::from_mins(1), GoDuration::from_secs(60));
    }

    proptest! {
        /// A number has at most six digits: no duration is longer than 292 years, which the pattern
        /// does not limit.
        #[test]
        fn duration_pattern_matches_exactly_the_parsable_texts(
            text in "[-+]?([0-9.]{0,2}(ns|us|µs|μs|ms|s|m|h|d| )?){0,3}",
        ) {
            let pattern = regex::Regex::new(PATTERN).unwrap();
            prop_assert_eq!(text.parse::<GoDuration>().is_ok(), pattern.is_match(&text));
        }

        #[test]
        fn go_duration_round_trips_through_text(nanoseconds: i64) {
            let duration = GoDuration { nanoseconds };
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }
    }
}
