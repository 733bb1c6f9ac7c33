//! systemd-networkd: it manages the interfaces to which a `.network` file applies, unless the file
//! has `Unmanaged=yes`.

use std::collections::BTreeMap;

use super::pattern::{Link, matches};
use super::{ConfigFile, entries};

/// Returns the file with which networkd manages an interface: the first one that applies.
pub(super) fn file_in_charge<'f>(files: &'f [ConfigFile], link: &Link) -> Option<&'f ConfigFile> {
    let first = files.iter().find(|file| applies(&file.text, link))?;
    (!is_unmanaged(&first.text)).then_some(first)
}

fn is_unmanaged(text: &str) -> bool {
    let settings =
        entries(text).filter(|entry| entry.section == "Link" && entry.key == "Unmanaged");
    settings
        .last()
        .is_some_and(|entry| ["yes", "true", "1", "on", "y", "t"].contains(&entry.value))
}

/// Returns true if all conditions hold. A file without conditions applies to no interface.
fn applies(text: &str, link: &Link) -> bool {
    let mut conditions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for entry in entries(text).filter(|entry| entry.section == "Match") {
        let patterns = conditions.entry(entry.key).or_default();
        // An empty value removes the earlier ones.
        if entry.value.is_empty() {
            patterns.clear();
        }
        patterns.extend(entry.value.split_whitespace());
    }
    conditions.retain(|_, patterns| !patterns.is_empty());
    let holds = |(key, patterns): (&&str, &Vec<&str>)| match *key {
        "Name" => is_one_of(patterns, &link.name),
        "Type" => is_one_of(patterns, "ether"),
        "Kind" | "Driver" => is_one_of(patterns, link.kind),
        "MACAddress" => patterns
            .iter()
            .any(|address| address.replace('-', ":").eq_ignore_ascii_case(link.mac)),
        // An interface pair has no such property.
        "Path" | "Property" | "SSID" | "BSSID" | "WLANInterfaceType" => is_one_of(patterns, ""),
        // A condition about the node, which this program cannot evaluate.
        _ => false,
    };
    !conditions.is_empty() && conditions.iter().all(holds)
}

/// Returns true if one of the patterns matches. `!` before the first one inverts the list.
fn is_one_of(patterns: &[&str], text: &str) -> bool {
    let is_inverted = patterns.first().is_some_and(|first| first.starts_with('!'));
    let found = patterns
        .iter()
        .any(|pattern| matches(pattern.trim_start_matches('!'), text));
    found != is_inverted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> ConfigFile {
        ConfigFile {
            path: name.into(),
            text: text.to_owned(),
        }
    }

    fn applies(text: &str) -> bool {
        file_in_charge(&[file("x", text)], &Link::of_pod("cali")).is_some()
    }

    #[test]
    fn file_with_a_pattern_for_all_interfaces_applies_to_pods() {
        for conditions in [
            "Name=*",
            "Name=eth0 cali*",
            "Type=ether",
            "Kind=veth",
            "Name=!eth*",
            "Driver=veth\nName=c*",
        ] {
            assert!(
                applies(&format!("[Match]\n{conditions}\n[Network]\nDHCP=yes\n")),
                "{conditions}"
            );
        }
        for conditions in [
            "",
            "Name=eth0",
            "Name=*\nName=\nName=e*",
            "Kind=veth\nName=ve-*",
            "Path=pci-*",
            "Host=x",
        ] {
            assert!(
                !applies(&format!("[Match]\n{conditions}\n[Network]\nDHCP=yes\n")),
                "{conditions}"
            );
        }
        // The default of Flatcar.
        assert!(!applies(
            "[Match]\nName=*\nType=!loopback bridge tunnel vxlan wireguard\nDriver=!veth dummy\n"
        ));
        assert!(!applies("[Network]\nDHCP=yes\n"));
    }

    #[test]
    fn first_file_that_applies_decides() {
        let all = file("50-all.network", "[Match]\nName=*\n[Network]\nDHCP=yes\n");
        let calico = file(
            "10-calico.network",
            "[Match]\nName=cali*\n[Link]\nUnmanaged=yes\n",
        );
        let eth0 = file("05-eth0.network", "[Match]\nName=eth0\n");
        let link = Link::of_pod("cali");
        assert_eq!(
            file_in_charge(&[eth0.clone(), calico.clone(), all.clone()], &link),
            None
        );
        assert_eq!(
            file_in_charge(&[eth0.clone(), all.clone(), calico], &link),
            Some(&all)
        );
        assert_eq!(file_in_charge(&[eth0], &link), None);
    }
}
