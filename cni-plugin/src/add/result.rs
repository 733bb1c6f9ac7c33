use libcalico::api::WorkloadEndpoint;
use netconf::result::{Interface, IpConfig, IpNet};
use netconf::{Call, CniError, CniResult};

use crate::interface::CreatedInterface;

/// Returns `result`, the result of IPAM, with both ends of the created interface. Its addresses
/// then belong to the container's end and have no gateway.
pub(super) fn from_created(
    created: &CreatedInterface,
    mut result: CniResult,
    call: &Call,
) -> CniResult {
    result.interfaces = interface_ends(
        &created.host_ifname,
        &call.ifname,
        &created.mac,
        created.mtu,
        call,
    );
    for ip in &mut result.ips {
        if created.has_host_prefixes {
            ip.address = IpNet::host(ip.address.addr());
        }
        ip.gateway = None;
        ip.interface = Some(1);
    }
    result
}

/// Returns the result of an ADD of a plain container whose endpoint already exists (CNI-149).
pub(super) fn from_endpoint(
    endpoint: &WorkloadEndpoint,
    call: &Call,
) -> Result<CniResult, CniError> {
    let (spec, name) = (&endpoint.spec, &endpoint.metadata.name);
    let config = |network: &String| match network.parse::<IpNet>() {
        Ok(address) => Ok(IpConfig {
            address,
            gateway: None,
            interface: Some(1),
        }),
        Err(_) => Err(CniError::internal(format!(
            "WorkloadEndpoint {name} has an invalid address {network:?}"
        ))),
    };
    let ips = spec
        .ip_networks
        .iter()
        .map(config)
        .collect::<Result<_, CniError>>()?;
    Ok(CniResult {
        ips,
        interfaces: interface_ends(&spec.interface_name, &call.ifname, &spec.mac, 0, call),
        ..CniResult::default()
    })
}

/// Returns both ends of the interface, the host's end first (CNI-38).
pub(super) fn interface_ends(
    host_ifname: &str,
    ifname: &str,
    mac: &str,
    mtu: u32,
    call: &Call,
) -> Vec<Interface> {
    let (name, mac, sandbox) = (ifname.to_owned(), mac.to_owned(), call.netns.clone());
    vec![
        Interface {
            name: host_ifname.to_owned(),
            ..Interface::default()
        },
        Interface {
            name,
            mac,
            mtu,
            sandbox,
            ..Interface::default()
        },
    ]
}

/// Returns the interfaces, addresses and routes of `previous`, the result of the preceding plugin
/// in the configuration list, followed by those of `own`. Upstream drops `previous`.
pub(super) fn merge(previous: Option<CniResult>, own: CniResult) -> CniResult {
    let Some(mut merged) = previous else {
        return own;
    };
    let offset = merged.interfaces.len();
    merged.interfaces.extend(own.interfaces);
    let renumbered = |ip: IpConfig| IpConfig {
        interface: ip.interface.map(|index| index + offset),
        ..ip
    };
    merged.ips.extend(own.ips.into_iter().map(renumbered));
    merged.routes.extend(own.routes);
    if !own.dns.is_empty() {
        merged.dns = own.dns;
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
    fn merged_interface_indexes_continue_after_the_previous_result() {
        let previous = result(
            r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "a"}], "dns": {"nameservers": ["1.1.1.1"]},
                "ips": [{"address": "10.0.0.1/24", "interface": 0}]}"#,
        );
        let own = result(
            r#"{"cniVersion": "1.0.0", "interfaces": [{"name": "b"}, {"name": "c", "sandbox": "/n"}],
                "ips": [{"address": "10.65.0.1/32", "interface": 1}]}"#,
        );
        let both = merge(Some(previous), own.clone());
        let names: Vec<_> = both
            .interfaces
            .iter()
            .map(|interface| interface.name.as_str())
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(both.ips[0].interface, Some(0));
        assert_eq!(both.ips[1].interface, Some(2));
        assert_eq!(both.dns.nameservers, ["1.1.1.1"]);
        assert_eq!(merge(None, own.clone()), own);
    }
}
