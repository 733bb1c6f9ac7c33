//! Kubernetes quantities: `10M`, `1.5Gi`, `2e3`.

/// Parses a quantity as a whole number, rounded away from zero; returns `None` for a text that is not a quantity.
/// Numbers that are too large become the largest.
pub fn quantity(text: &str) -> Option<i64> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (binary, ten) = scale(suffix)?;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    // A longer number is out of range, or its tail only affects the rounding.
    let magnitude = if digits.len() > 30 { i128::MAX } else { digits.parse().unwrap_or(0) };
    let exponent = ten.saturating_sub(i32::try_from(fraction.len()).unwrap_or(i32::MAX));
    let scaled = magnitude.saturating_mul(binary);
    let value = match 10i128.checked_pow(exponent.unsigned_abs()) {
        Some(power) if exponent >= 0 => scaled.saturating_mul(power),
        Some(power) => scaled / power + i128::from(scaled % power != 0),
        None if scaled == 0 => 0,
        None if exponent > 0 => i128::MAX,
        None => 1,
    };
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    Some(if negative { -value } else { value })
}

/// Returns the factor and the power of ten of a suffix.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(at) = BINARY.iter().position(|known| *known == suffix) {
        return Some((1 << (10 * (at + 1)), 0));
    }
    let ten = match suffix {
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        _ => suffix.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    Some((1, ten))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        for (text, value) in [
            ("0", 0),
            ("10M", 10_000_000),
            ("1.5Gi", 1_610_612_736),
            ("1.01k", 1_010),
            ("2e3", 2_000),
            ("1E", 1_000_000_000_000_000_000),
            ("100m", 1),
            ("1n", 1),
            (".5", 1),
            ("5.", 5),
            ("+7", 7),
            ("-1.5", -2),
            ("32Gi", 34_359_738_360 + 8),
            ("9E1", 90),
            ("99E", i64::MAX),
            ("1e400", i64::MAX),
            ("1e-400", 1),
            ("0e400", 0),
        ] {
            assert_eq!(quantity(text), Some(value), "{text}");
        }
        for text in ["", "-", ".", "1.2.3", "1K", "1kk", "x", "1 M", "1e", "0x10"] {
            assert_eq!(quantity(text), None, "{text}");
        }
    }
}
