//! The traffic limits and the DSCP that a pod requests in annotations.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::PodProblem;

/// A limit: its field in `qosControls`, its bounds, and its annotations, of which the last one
/// present counts.
struct Limit {
    field: &'static str,
    annotations: &'static [&'static str],
    min: i64,
    max: i64,
}

/// The burst of a bandwidth without an explicit burst, in bits.
const DEFAULT_BURST: i64 = 4 << 30;
/// The burst of a packet rate without an explicit burst, in packets.
const DEFAULT_PACKET_BURST: i64 = 5;

macro_rules! limit {
    ($dir:literal, $name:literal, $min:literal, $max:literal $(, $older:literal)?) => {
        Limit {
            field: concat!($dir, $name),
            annotations: &[
                $(concat!("kubernetes.io/", $dir, $older),)?
                concat!("qos.projectcalico.org/", $dir, $name),
            ],
            min: $min,
            max: $max,
        }
    };
}

macro_rules! direction {
    ($ingress:literal) => {
        [
            limit!(
                $ingress,
                "Bandwidth",
                1_000,
                1_000_000_000_000_000,
                "-bandwidth"
            ),
            limit!($ingress, "Burst", 1_000, 34_359_738_360),
            limit!($ingress, "Peakrate", 1_010, 1_010_000_000_000_000),
            limit!($ingress, "Minburst", 1_000, 100_000_000),
            limit!($ingress, "PacketRate", 1, 10_000),
            limit!($ingress, "PacketBurst", 1, 10_000),
            limit!($ingress, "MaxConnections", 1, 4_294_967_295),
        ]
    };
}

const DIRECTIONS: [[Limit; 7]; 2] = [direction!("ingress"), direction!("egress")];

const DSCP: &str = "qos.projectcalico.org/dscp";
const DSCP_NAMES: [&str; 21] = [
    "DF", "EF", "AF11", "AF12", "AF13", "AF21", "AF22", "AF23", "AF31", "AF32", "AF33", "AF41",
    "AF42", "AF43", "CS0", "CS1", "CS2", "CS3", "CS4", "CS5", "CS6",
];

/// Returns `spec.qosControls` of a pod, unless it would have no fields. An invalid value is
/// reported, but the pod still gets its endpoint (DS-79).
pub(super) fn qos_controls(
    annotations: &BTreeMap<String, String>,
    problems: &mut Vec<PodProblem>,
) -> Option<Value> {
    let mut controls = Map::new();
    for direction in &DIRECTIONS {
        for (limit, value) in direction
            .iter()
            .zip(values(direction, annotations, problems))
        {
            if value != 0 {
                controls.insert(limit.field.into(), value.into());
            }
        }
    }
    if let Some(dscp) = annotations.get(DSCP) {
        match parse_dscp(dscp) {
            Some(value) => _ = controls.insert("dscp".into(), value),
            None => problems.push(PodProblem::Limit {
                annotation: DSCP,
                reason: format!("invalid DSCP {dscp:?}"),
            }),
        }
    }
    (!controls.is_empty()).then_some(Value::Object(controls))
}

/// Returns the values of the limits of a direction, 0 for none. A limit that contradicts or lacks
/// the limit that it refines is ignored and reported.
fn values(
    limits: &[Limit; 7],
    annotations: &BTreeMap<String, String>,
    problems: &mut Vec<PodProblem>,
) -> [i64; 7] {
    let read = limits
        .each_ref()
        .map(|limit| limit.read(annotations, problems));
    let [
        bandwidth,
        burst,
        peakrate,
        minburst,
        packet_rate,
        packet_burst,
        max_connections,
    ] = read;
    let [
        _,
        burst_limit,
        peakrate_limit,
        minburst_limit,
        _,
        packet_burst_limit,
        _,
    ] = limits;

    let mut drop_without_base = |limit: &Limit, value: i64, has_base: bool, base: &str| {
        if value == 0 || has_base {
            return value;
        }
        let annotation = limit.annotations[limit.annotations.len() - 1];
        problems.push(PodProblem::Limit {
            annotation,
            reason: format!("ignored without {base}"),
        });
        0
    };
    let burst = drop_without_base(burst_limit, burst, bandwidth != 0, "a bandwidth");
    let has_lower = bandwidth != 0 && peakrate > bandwidth;
    let peakrate = drop_without_base(
        peakrate_limit,
        peakrate,
        has_lower,
        "a bandwidth below the peak rate",
    );
    let minburst = drop_without_base(minburst_limit, minburst, peakrate != 0, "a peak rate");
    let packet_burst = drop_without_base(
        packet_burst_limit,
        packet_burst,
        packet_rate != 0,
        "a packet rate",
    );
    let or_default = |value, of, default| {
        if of != 0 && value == 0 {
            default
        } else {
            value
        }
    };
    let burst = or_default(burst, bandwidth, DEFAULT_BURST);
    let packet_burst = or_default(packet_burst, packet_rate, DEFAULT_PACKET_BURST);
    [
        bandwidth,
        burst,
        peakrate,
        minburst,
        packet_rate,
        packet_burst,
        max_connections,
    ]
}

impl Limit {
    /// Returns the requested value, clamped to the bounds; 0 if there is no valid one. Reports
    /// changed and invalid values.
    fn read(&self, annotations: &BTreeMap<String, String>, problems: &mut Vec<PodProblem>) -> i64 {
        let present = self
            .annotations
            .iter()
            .rev()
            .find_map(|key| Some((*key, annotations.get(*key)?)));
        let Some((annotation, text)) = present else {
            return 0;
        };
        let Some(value) = parse_quantity(text) else {
            problems.push(PodProblem::Limit {
                annotation,
                reason: format!("invalid quantity {text:?}"),
            });
            return 0;
        };
        let clamped = value.clamp(self.min, self.max);
        if clamped != value {
            let reason = format!(
                "{text} is not within {}..={}; using {clamped}",
                self.min, self.max
            );
            problems.push(PodProblem::Limit { annotation, reason });
        }
        clamped
    }
}

/// Parses a number from 0 to 63, or the name of a DSCP.
fn parse_dscp(text: &str) -> Option<Value> {
    if let Ok(number) = text.parse::<u8>() {
        return (number < 64).then(|| number.into());
    }
    let name = text.to_ascii_uppercase();
    DSCP_NAMES.contains(&name.as_str()).then(|| name.into())
}

/// Parses a quantity, such as `10M`, `1.5Gi` or `2e3`, as a whole number, rounded away from zero
/// and clamped.
pub fn parse_quantity(text: &str) -> Option<i64> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (binary, ten) = scale(suffix)?;
    let digits = format!("{whole}{fraction}");
    let (magnitude, dropped) = significant(digits.trim_start_matches('0'));
    let shift = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let exponent = ten
        .saturating_sub(shift(fraction.len()))
        .saturating_add(shift(dropped));
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

/// Number of leading digits of a quantity that count. It exceeds the digits of the largest result
/// by one, and the product with the largest factor of [`scale`] fits into an `i128`.
const SIGNIFICANT: usize = 20;

/// Returns the number that the first digits form, rounded up, and the count of the digits after
/// them.
fn significant(digits: &str) -> (i128, usize) {
    let (first, rest) = digits.split_at(digits.len().min(SIGNIFICANT));
    let is_rounded = rest.bytes().any(|digit| digit != b'0');
    (
        first.parse().unwrap_or(0) + i128::from(is_rounded),
        rest.len(),
    )
}

/// Returns the factor and the power of ten that a suffix stands for.
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
    use serde_json::json;

    use super::*;

    fn controls(annotations: &[(&str, &str)]) -> (Option<Value>, usize) {
        let annotations = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let mut problems = Vec::new();
        (qos_controls(&annotations, &mut problems), problems.len())
    }

    #[test]
    fn calico_bandwidth_annotation_overrides_the_kubernetes_annotation() {
        let bandwidth = ("kubernetes.io/ingress-bandwidth", "1M");
        assert_eq!(
            controls(&[bandwidth]),
            (
                Some(json!({"ingressBandwidth": 1_000_000, "ingressBurst": 4_294_967_296_i64})),
                0
            )
        );
        let (found, _) = controls(&[bandwidth, ("qos.projectcalico.org/ingressBandwidth", "2M")]);
        assert_eq!(found.unwrap()["ingressBandwidth"], 2_000_000);
    }

    #[test]
    fn out_of_range_qos_values_are_clamped_and_invalid_values_reported() {
        assert_eq!(
            controls(&[
                ("qos.projectcalico.org/egressMaxConnections", "0"),
                ("qos.projectcalico.org/dscp", "af41")
            ]),
            (Some(json!({"egressMaxConnections": 1, "dscp": "AF41"})), 1)
        );
        assert_eq!(
            controls(&[("qos.projectcalico.org/egressPacketRate", "many")]),
            (None, 1)
        );
        assert_eq!(controls(&[("qos.projectcalico.org/dscp", "64")]), (None, 1));
        assert_eq!(controls(&[("qos.projectcalico.org/dscp", "")]), (None, 1));
    }

    #[test]
    fn problem_of_a_limit_names_the_annotation_of_the_pod() {
        for (key, text) in [
            ("kubernetes.io/ingress-bandwidth", "1"),
            ("qos.projectcalico.org/egressBurst", "many"),
        ] {
            let mut problems = Vec::new();
            qos_controls(
                &BTreeMap::from([(key.to_owned(), text.to_owned())]),
                &mut problems,
            );
            assert!(
                matches!(problems[..], [PodProblem::Limit { annotation, .. }] if annotation == key),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn qos_refinement_requires_its_base_setting() {
        let key = |name: &str| format!("qos.projectcalico.org/egress{name}");
        for lonely in ["Burst", "Peakrate", "Minburst", "PacketBurst"] {
            assert_eq!(controls(&[(&key(lonely), "2k")]), (None, 1), "{lonely}");
        }
        assert_eq!(
            controls(&[
                (&key("Bandwidth"), "1M"),
                (&key("Peakrate"), "1M"),
                (&key("PacketRate"), "7")
            ])
            .0,
            Some(json!({
                "egressBandwidth": 1_000_000, "egressBurst": 4_294_967_296_i64,
                "egressPacketRate": 7,
                "egressPacketBurst": 5,
            }))
        );
    }

    #[test]
    fn quantities_parse_as_in_kubernetes() {
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
            ("9223372036854775806", i64::MAX - 1),
            ("9223372036854775808", i64::MAX),
        ] {
            assert_eq!(parse_quantity(text), Some(value), "{text}");
        }
        let zeros = "0".repeat(40);
        for (text, value) in [
            (format!("1.{zeros}"), 1),
            (format!("1.{zeros}1"), 2),
            (format!("-1.{zeros}1"), -2),
            (format!("1000.{zeros}"), 1_000),
            (format!("1.{zeros}Ei"), 1 << 60),
            (format!("1.{}Ei", &zeros[..27]), 1 << 60),
            (format!("1{zeros}e-40"), 1),
            (format!("0.{zeros}1e41"), 1),
            (format!("1{zeros}"), i64::MAX),
        ] {
            assert_eq!(parse_quantity(&text), Some(value), "{text}");
        }
        for text in ["", "-", ".", "1.2.3", "1K", "1kk", "x", "1 M", "1e", "0x10"] {
            assert_eq!(parse_quantity(text), None, "{text}");
        }
    }
}
