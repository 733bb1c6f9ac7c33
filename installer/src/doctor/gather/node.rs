//! Kernel and files.

use std::fs;

use crate::doctor::facts::{SETTINGS, Setting};
use crate::host_network::{HostNetwork, Interface};
use crate::layout::Layout;

/// The interfaces with a default route of either family.
pub(super) fn uplinks(network: &dyn HostNetwork) -> Vec<Interface> {
    let mut names = default_routes(&read("/proc/net/route"));
    names.extend(default_routes_ipv6(&read("/proc/net/ipv6_route")));
    let interfaces = network.interfaces().unwrap_or_default().into_iter();
    interfaces.filter(|interface| names.contains(&interface.name)).collect()
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask …`, numbers in hexadecimal digits.
fn default_routes(table: &str) -> Vec<String> {
    let is_default = |fields: &[&str]| fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000");
    interfaces(table, 0, is_default)
}

/// `destination length source length gateway metric refs use flags interface`.
fn default_routes_ipv6(table: &str) -> Vec<String> {
    // The kernel's own, which refuses, is on lo.
    let is_default = |fields: &[&str]| fields.get(1) == Some(&"00") && fields.get(9).is_some_and(|name| *name != "lo");
    interfaces(table, 9, is_default)
}

fn interfaces(table: &str, column: usize, wanted: impl Fn(&[&str]) -> bool) -> Vec<String> {
    let lines = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    lines.filter(|fields| wanted(fields)).filter_map(|fields| Some((*fields.get(column)?).to_owned())).collect()
}

/// The kernel settings that matter, as they are.
pub(super) fn settings() -> Vec<Setting> {
    let value = |name: &str| fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok();
    SETTINGS.map(|name| Setting { name, value: value(name).map(|text| text.trim().to_owned()) }).into()
}

/// How many entries the journal of DELs has.
pub(super) fn journal(layout: &Layout) -> usize {
    let entries = fs::read_dir(layout.state_dir().join(crate::layout::JOURNAL)).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json")).count()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_are_found_by_destination_and_mask() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n\
            eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        assert_eq!(default_routes(table), ["eth0"]);
        let zero = "0".repeat(32);
        let line =
            |length: &str, name: &str| format!("{zero} {length} {zero} 00 {zero} 00000400 1 0 00000003 {name}\n");
        let table = [line("00", "eth1"), line("40", "eth2"), line("00", "lo")].concat();
        assert_eq!(default_routes_ipv6(&table), ["eth1"]);
        assert!(default_routes("").is_empty() && default_routes_ipv6("x\n").is_empty());
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        assert!(settings().iter().any(|setting| setting.value.is_some()));
    }
}
