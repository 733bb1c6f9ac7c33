//! Merges the result of an ADD with the result of the preceding plugin in the configuration list, which upstream drops.

use netconf::CniResult;

/// Returns the interfaces, addresses and routes of `previous` followed by those of `ours`. The DNS settings are those
/// of `ours`, or of `previous` if `ours` has none.
pub fn merge(previous: Option<CniResult>, ours: CniResult) -> CniResult {
    let Some(mut merged) = previous else { return ours };
    let offset = merged.interfaces.len();
    merged.interfaces.extend(ours.interfaces);
    merged.ips.extend(ours.ips.into_iter().map(|mut ip| {
        ip.interface = ip.interface.map(|index| index + offset);
        ip
    }));
    merged.routes.extend(ours.routes);
    if !ours.dns.is_empty() {
        merged.dns = ours.dns;
    }
    merged
}

#[cfg(test)]
mod tests {
    use netconf::Version;

    use super::*;

    fn result(text: &str) -> CniResult {
        CniResult::parse(text.as_bytes(), Version::V1_0_0).unwrap()
    }

    #[test]
    fn indexes_go_on_where_the_previous_result_ends() {
        let previous = result(
            r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "a"}], "dns": {"nameservers": ["1.1.1.1"]},
                "ips": [{"address": "10.0.0.1/24", "interface": 0}]}"#,
        );
        let ours = result(
            r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "b"}, {"name": "c", "sandbox": "/n"}],
                "ips": [{"address": "10.65.0.1/32", "interface": 1}]}"#,
        );
        let both = merge(Some(previous), ours.clone());
        let names: Vec<_> = both.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(both.ips[0].interface, Some(0));
        assert_eq!(both.ips[1].interface, Some(2));
        assert_eq!(both.dns.nameservers, ["1.1.1.1"]);
        assert_eq!(merge(None, ours.clone()), ours);
    }
}
