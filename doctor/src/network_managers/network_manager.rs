//! NetworkManager: it manages each interface that no `unmanaged-devices` and no section `device`
//! excludes.

use super::pattern::{Link, matches};
use super::{ConfigFile, entries};

/// Returns true if the configuration excludes an interface.
pub(super) fn leaves_alone(files: &[ConfigFile], link: &Link) -> bool {
    let mut unmanaged: Vec<&str> = Vec::new();
    let entries_of_all = files.iter().flat_map(|file| entries(&file.text));
    for entry in entries_of_all.filter(|entry| entry.section == "keyfile") {
        let values = entry
            .value
            .split([',', ';'])
            .map(str::trim)
            .filter(|value| !value.is_empty());
        match entry.key {
            "unmanaged-devices" => unmanaged = values.collect(),
            "unmanaged-devices+" => unmanaged.extend(values),
            "unmanaged-devices-" => {
                let removed: Vec<&str> = values.collect();
                unmanaged.retain(|kept| !removed.contains(kept));
            }
            _ => {}
        }
    }
    is_in_list(&unmanaged, link)
        || files
            .iter()
            .any(|file| has_unmanaged_section(&file.text, link))
}

/// Returns true if a section `device` matches an interface and does not let NetworkManager manage
/// it.
fn has_unmanaged_section(text: &str, link: &Link) -> bool {
    let mut sections: Vec<(&str, bool, bool)> = Vec::new();
    for entry in entries(text).filter(|entry| entry.section.starts_with("device")) {
        if sections
            .last()
            .is_none_or(|(name, ..)| *name != entry.section)
        {
            sections.push((entry.section, true, false));
        }
        let Some((_, applies, is_unmanaged)) = sections.last_mut() else {
            continue;
        };
        match entry.key {
            "match-device" => {
                *applies = is_in_list(
                    &entry
                        .value
                        .split([',', ';'])
                        .map(str::trim)
                        .collect::<Vec<_>>(),
                    link,
                )
            }
            "managed" => *is_unmanaged = ["0", "false", "no", "off"].contains(&entry.value),
            _ => {}
        }
    }
    sections
        .iter()
        .any(|(_, applies, is_unmanaged)| *applies && *is_unmanaged)
}

/// Returns true if a list of devices contains an interface. A list of nothing but exceptions
/// contains all others.
fn is_in_list(list: &[&str], link: &Link) -> bool {
    let (excepted, included): (Vec<&str>, Vec<&str>) = list
        .iter()
        .filter(|device| !device.is_empty())
        .partition(|device| device.starts_with("except:"));
    if excepted.is_empty() && included.is_empty() {
        return false;
    }
    let is_excepted = excepted
        .iter()
        .any(|device| is_device(device.trim_start_matches("except:"), link));
    !is_excepted && (included.is_empty() || included.iter().any(|device| is_device(device, link)))
}

fn is_device(device: &str, link: &Link) -> bool {
    if device == "*" {
        return true;
    }
    match device.split_once(':') {
        Some(("interface-name", name)) => match name.strip_prefix('=') {
            Some(exact) => exact == link.name,
            None => matches(name.strip_prefix('~').unwrap_or(name), &link.name),
        },
        Some(("type" | "driver", kind)) => matches(kind, link.kind),
        Some(("mac", address)) => address.eq_ignore_ascii_case(link.mac),
        _ => device.eq_ignore_ascii_case(link.mac) || device == link.name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves_alone(texts: &[&str]) -> bool {
        let file = |text: &&str| ConfigFile {
            path: "/etc/x.conf".into(),
            text: (*text).to_owned(),
        };
        super::leaves_alone(
            &texts.iter().map(file).collect::<Vec<_>>(),
            &Link::of_pod("cali"),
        )
    }

    #[test]
    fn unmanaged_devices_of_the_last_file_exclude_interfaces_of_pods() {
        let calico = "[keyfile]\nunmanaged-devices=interface-name:cali*;interface-name:tunl*\n";
        let other = "[keyfile]\nunmanaged-devices=interface-name:docker0\n";
        assert!(leaves_alone(&[calico]) && leaves_alone(&[other, calico]));
        assert!(!leaves_alone(&[]) && !leaves_alone(&[other]) && !leaves_alone(&[calico, other]));
        assert!(leaves_alone(&[
            calico,
            "[keyfile]\nunmanaged-devices+=interface-name:docker0"
        ]));
        assert!(!leaves_alone(&[
            calico,
            "[keyfile]\nunmanaged-devices-=interface-name:cali*"
        ]));
        // The key of another section, and a comment.
        assert!(!leaves_alone(&[
            "[main]\nunmanaged-devices=*",
            "[keyfile]\n#unmanaged-devices=*"
        ]));
    }

    #[test]
    fn lists_of_devices_have_exceptions_and_kinds() {
        let with = |list: &str| leaves_alone(&[&format!("[keyfile]\nunmanaged-devices={list}\n")]);
        // The file of Ubuntu servers.
        assert!(with("*,except:type:wifi,except:type:gsm,except:type:cdma"));
        for list in [
            "type:veth",
            "driver:veth",
            "mac:EE:EE:EE:EE:EE:EE",
            "except:interface-name:eth0",
            "*",
        ] {
            assert!(with(list), "{list}");
        }
        for list in [
            "",
            "*;except:interface-name:cali*",
            "type:wifi",
            "interface-name:=cali",
            "interface-name:cal",
        ] {
            assert!(!with(list), "{list}");
        }
    }

    #[test]
    fn sections_of_devices_exclude_interfaces_of_pods() {
        assert!(leaves_alone(&[
            "[device-calico]\nmatch-device=interface-name:cali*\nmanaged=0\n"
        ]));
        assert!(!leaves_alone(&[
            "[device-calico]\nmatch-device=interface-name:cali*\nmanaged=1\n"
        ]));
        assert!(!leaves_alone(&[
            "[device-x]\nmatch-device=interface-name:eth*\nmanaged=0\n[device-y]\nx=1\n"
        ]));
        assert!(leaves_alone(&["[device]\nmanaged=false\n"]));
    }
}
