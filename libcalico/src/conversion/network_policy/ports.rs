//! Converts the ports of a rule, grouped by protocol.

use std::collections::BTreeMap;

use super::RuleProblem;
use crate::api::{Port, Protocol};
use crate::kubernetes::{NumberOrName, PolicyPort};

const DEFAULT_PROTOCOL: &str = "TCP";

/// Returns the ports of each protocol. An empty list stands for all ports, an empty name for any
/// protocol.
pub(super) fn by_protocol(
    given: &[PolicyPort],
) -> Result<BTreeMap<String, Vec<Port>>, RuleProblem> {
    if given.is_empty() {
        return Ok([(String::new(), Vec::new())].into());
    }
    let mut groups: BTreeMap<String, Option<Vec<Port>>> = BTreeMap::new();
    for entry in given {
        let protocol = entry
            .protocol
            .as_deref()
            .filter(|name| !name.is_empty())
            .unwrap_or(DEFAULT_PROTOCOL);
        let protocol = Protocol::parse(protocol).to_string();
        let port = port(entry)?;
        let group = groups.entry(protocol).or_insert_with(|| Some(Vec::new()));
        match (port, group.as_mut()) {
            (None, _) => *group = None,
            (Some(port), Some(ports)) => ports.push(port),
            (Some(_), None) => {}
        }
    }
    Ok(groups
        .into_iter()
        .map(|(protocol, ports)| (protocol, simplify_ports(ports.unwrap_or_default())))
        .collect())
}

/// Returns the port or range of an entry. The end of a range counts only with a port (KC-308).
fn port(entry: &PolicyPort) -> Result<Option<Port>, RuleProblem> {
    let mut text = match &entry.port {
        None => return Ok(None),
        Some(NumberOrName::Number(number)) => number.to_string(),
        Some(NumberOrName::Name(name)) => name.clone(),
    };
    if let Some(end) = entry.end_port {
        text = format!("{text}:{end}");
    }
    Port::parse(&text)
        .map(Some)
        .map_err(|problem| RuleProblem::Port { text, problem })
}

/// Returns the same ports, with adjacent and overlapping numbers merged into ranges, the names
/// first. A list with at most one number is returned unchanged (KC-311).
pub fn simplify_ports(ports: Vec<Port>) -> Vec<Port> {
    let (mut names, mut ranges) = (Vec::new(), Vec::new());
    for port in &ports {
        match port {
            Port::Named(_) => names.push(port.clone()),
            Port::Numbers(min, max) => ranges.push((*min, *max)),
        }
    }
    let numbers: u32 = ranges
        .iter()
        .map(|(min, max)| u32::from(max - min) + 1)
        .fold(0, u32::saturating_add);
    if ports.len() <= 1 || numbers <= 1 {
        return ports;
    }
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (min, max) in ranges {
        match merged.last_mut() {
            Some((_, last)) if u32::from(min) <= u32::from(*last) + 1 => *last = max.max(*last),
            _ => merged.push((min, max)),
        }
    }
    names.extend(merged.into_iter().map(|(min, max)| Port::Numbers(min, max)));
    names
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn simplified(text: &str) -> String {
        let ports = text
            .split(',')
            .map(|port| Port::parse(port).unwrap())
            .collect();
        simplify_ports(ports)
            .iter()
            .map(Port::to_string)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// The first entry is from upstream's test.
    #[test]
    fn simplified_ports_match_upstreams_vectors() {
        for (given, expected) in [
            (
                "81:90,4,2,foo,80:81,3,1,9090,http",
                "foo,http,1:4,80:90,9090",
            ),
            ("80", "80"),
            ("80,80", "80"),
            ("80,zz", "80,zz"),
            ("b,a,b", "b,a,b"),
            ("81:82", "81:82"),
            ("3,1", "1,3"),
            ("0:65535,80", "0:65535"),
            ("65535,65534,0", "0,65534:65535"),
            ("10:20,12:14", "10:20"),
        ] {
            assert_eq!(simplified(given), expected, "{given}");
        }
    }

    fn any_port() -> impl Strategy<Value = Port> {
        prop_oneof![
            (0u16..40, 0u16..6).prop_map(|(min, more)| Port::Numbers(min, min + more)),
            (65530u16..=65535).prop_map(|port| Port::Numbers(port, port)),
            "[a-c]".prop_map(Port::Named),
        ]
    }

    fn numbers(ports: &[Port]) -> BTreeSet<u16> {
        let ranges = ports.iter().filter_map(|port| match port {
            Port::Numbers(min, max) => Some(*min..=*max),
            Port::Named(_) => None,
        });
        ranges.flatten().collect()
    }

    fn names(ports: &[Port]) -> Vec<&Port> {
        ports
            .iter()
            .filter(|port| matches!(port, Port::Named(_)))
            .collect()
    }

    proptest! {
        #[test]
        fn simplified_ports_cover_the_same_ports_without_overlap(
            ports in proptest::collection::vec(any_port(), 0..12),
        ) {
            let simple = simplify_ports(ports.clone());
            prop_assert_eq!(numbers(&simple), numbers(&ports));
            prop_assert_eq!(names(&simple), names(&ports));
            prop_assert_eq!(simplify_ports(simple.clone()), simple.clone());
            let sizes: usize = simple
                .iter()
                .map(|port| numbers(std::slice::from_ref(port)).len())
                .sum();
            prop_assert_eq!(sizes, numbers(&simple).len(), "no two overlap");
        }
    }
}
