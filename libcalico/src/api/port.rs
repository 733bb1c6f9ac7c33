//! [`Port`] and [`Protocol`], which JSON represents as a number or as text (DS-108).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest name of a port, in bytes.
const MAX_NAME: usize = 128;

/// The protocols whose names [`Protocol::parse`] recognizes in any case.
const PROTOCOLS: [&str; 6] = ["TCP", "UDP", "SCTP", "ICMP", "ICMPv6", "UDPLite"];

/// A protocol by number or name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum Protocol {
    /// Its number in the IP header.
    Number(u8),
    /// Its name.
    Name(String),
}

/// A port, a range of ports, or the name of a port of the endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Port {
    /// The numbers from the first to the second, inclusive. Both are the same for a single port.
    Numbers(u16, u16),
    /// The name of a port.
    Named(String),
}

/// A text that is not a port. The messages are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortParseError {
    /// A number outside the range of ports.
    #[error("invalid port number ({0})")]
    Number(String),
    /// A range with a bound outside the range of ports.
    #[error("invalid port number in range ({0})")]
    Bound(String),
    /// A range whose end is less than its beginning.
    #[error("minimum port number ({0}) is greater than maximum port number ({1}) in port range")]
    Order(u16, u16),
    /// A text that is neither a number, a range nor a valid name.
    #[error("invalid name for named port ({0})")]
    Name(String),
}

impl Protocol {
    /// Parses a number from 0 to 255, or a name. A known name is converted to Calico's spelling;
    /// any other text becomes a name unchanged.
    pub fn parse(text: &str) -> Self {
        if let Ok(number) = text.parse() {
            return Protocol::Number(number);
        }
        let known = PROTOCOLS
            .iter()
            .find(|known| known.eq_ignore_ascii_case(text));
        Protocol::Name(known.map_or(text, |known| *known).to_owned())
    }

    /// Returns true if the protocol has ports: TCP, UDP or SCTP.
    pub fn has_ports(&self) -> bool {
        match self {
            Protocol::Number(number) => matches!(number, 6 | 17 | 132),
            Protocol::Name(name) => ["TCP", "UDP", "SCTP"]
                .iter()
                .any(|with| with.eq_ignore_ascii_case(name)),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Number(number) => number.fmt(f),
            Protocol::Name(name) => f.write_str(name),
        }
    }
}

impl Port {
    /// Parses `80`, `80:90` or `http` (KC-308).
    pub fn parse(text: &str) -> Result<Self, PortParseError> {
        if is_digits(text) {
            let number = text
                .parse()
                .map_err(|_| PortParseError::Number(text.into()))?;
            return Ok(Port::Numbers(number, number));
        }
        if let Some((min, max)) = text
            .split_once(':')
            .filter(|(min, max)| is_digits(min) && is_digits(max))
        {
            let bound = |bound: &str| {
                bound
                    .parse()
                    .map_err(|_| PortParseError::Bound(text.into()))
            };
            let (min, max) = (bound(min)?, bound(max)?);
            return if min <= max {
                Ok(Port::Numbers(min, max))
            } else {
                Err(PortParseError::Order(min, max))
            };
        }
        let is_of_name =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_of_name) {
            return Ok(Port::Named(text.into()));
        }
        Err(PortParseError::Name(text.into()))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Numbers(min, max) if min == max => min.fmt(f),
            Port::Numbers(min, max) => write!(f, "{min}:{max}"),
            Port::Named(name) => f.write_str(name),
        }
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Port::Numbers(min, max) if min == max => serializer.serialize_u16(*min),
            other => serializer.collect_str(other),
        }
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(number) => Ok(Port::Numbers(number, number)),
            NumberOrText::Text(text) => Port::parse(&text).map_err(serde::de::Error::custom),
        }
    }
}

/// Decodes a number from 0 to 255, which may also be a text, or a name, which is kept unchanged.
impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(number) => {
                let outside = |_| {
                    serde::de::Error::custom(format!(
                        "invalid protocol number {number}; use 0 to 255"
                    ))
                };
                u8::try_from(number).map(Protocol::Number).map_err(outside)
            }
            NumberOrText::Text(text) => {
                Ok(text.parse().map_or(Protocol::Name(text), Protocol::Number))
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u16),
    Text(String),
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn ports_parse_from_numbers_and_text_in_json() {
        for (given, written) in [
            (json!(80), json!(80)),
            (json!("80"), json!(80)),
            (json!("80:80"), json!(80)),
            (json!("0:65535"), json!("0:65535")),
            (json!("http"), json!("http")),
            (json!("-50"), json!("-50")),
        ] {
            let port: Port = serde_json::from_value(given.clone()).unwrap();
            assert_eq!(serde_json::to_value(port).unwrap(), written, "{given}");
        }
        for wrong in [
            json!("90:80"),
            json!(70000),
            json!("70000"),
            json!(""),
            json!("a:b"),
            json!(-1),
            json!(null),
        ] {
            assert!(
                serde_json::from_value::<Port>(wrong.clone()).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn invalid_ports_are_rejected_with_the_reason() {
        let error = |text: &str| Port::parse(text).unwrap_err().to_string();
        assert_eq!(error("-50:-1"), "invalid name for named port (-50:-1)");
        assert_eq!(error("http:90"), "invalid name for named port (http:90)");
        assert_eq!(error("65536"), "invalid port number (65536)");
        assert_eq!(error("1:65536"), "invalid port number in range (1:65536)");
        assert_eq!(
            error("2:1"),
            "minimum port number (2) is greater than maximum port number (1) in port range"
        );
        assert_eq!(
            error(&"n".repeat(129)),
            format!("invalid name for named port ({})", "n".repeat(129))
        );
    }

    #[test]
    fn protocols_are_normalized_and_only_some_have_ports() {
        assert_eq!(Protocol::parse("icmpV6"), Protocol::Name("ICMPv6".into()));
        assert_eq!(Protocol::parse("foo"), Protocol::Name("foo".into()));
        assert_eq!(Protocol::parse("17"), Protocol::Number(17));
        let json = |value: Value| {
            serde_json::to_value(serde_json::from_value::<Protocol>(value).unwrap()).unwrap()
        };
        assert_eq!(
            [json(json!("tcp")), json(json!("6")), json(json!(6))],
            [json!("tcp"), json!(6), json!(6)]
        );
        assert!(serde_json::from_value::<Protocol>(json!(256)).is_err());
        assert!(Protocol::Number(132).has_ports() && Protocol::Name("udp".into()).has_ports());
        assert!(!Protocol::Number(1).has_ports() && !Protocol::Name("ICMP".into()).has_ports());
    }

    proptest! {
        #[test]
        fn parsed_port_round_trips_and_parsing_never_panics(text in ".{0,12}|[0-9:]{0,12}") {
            if let Ok(port) = Port::parse(&text) {
                prop_assert_eq!(Port::parse(&port.to_string()), Ok(port));
            }
        }
    }
}
