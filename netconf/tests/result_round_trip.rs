//! Checks that a result survives encoding and decoding in each version.

use std::net::IpAddr;

use netconf::result::{CniResult, Dns, Interface, IpConfig, IpNet, Route};
use netconf::{Code, Version};
use proptest::prelude::*;

fn ip_net() -> impl Strategy<Value = IpNet> {
    (any::<IpAddr>(), any::<u8>()).prop_map(|(addr, bits)| {
        let longest = if addr.is_ipv4() { 32 } else { 128 };
        IpNet::new(addr, bits % (longest + 1)).expect("not longer than the address")
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9:/.]{0,12}", "[<>&\"\\\\\u{2028}é\u{7f}\t]{0,4}"]
}

/// Generates numbers, often 0, which is omitted from the text, and its neighbors.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0..3u32, any::<u32>()]
}

fn interface() -> impl Strategy<Value = Interface> {
    (text(), text(), number(), text(), text(), text()).prop_map(
        |(name, mac, mtu, sandbox, socket_path, pci_id)| Interface {
            name,
            mac,
            mtu,
            sandbox,
            socket_path,
            pci_id,
        },
    )
}

fn route() -> impl Strategy<Value = Route> {
    let numbers = (
        number(),
        number(),
        number(),
        prop::option::of(number()),
        any::<Option<u8>>(),
    );
    (ip_net(), any::<Option<IpAddr>>(), numbers).prop_map(
        |(dst, gw, (mtu, advmss, priority, table, scope))| Route {
            dst,
            gw,
            mtu,
            advmss,
            priority,
            table,
            scope,
        },
    )
}

fn dns() -> impl Strategy<Value = Dns> {
    let list = || prop::collection::vec(text(), 0..3);
    (list(), text(), list(), list()).prop_map(|(nameservers, domain, search, options)| Dns {
        nameservers,
        domain,
        search,
        options,
    })
}

fn result() -> impl Strategy<Value = CniResult> {
    let interfaces = prop::collection::vec(interface(), 0..3);
    let ips = prop::collection::vec(
        (
            ip_net(),
            any::<Option<prop::sample::Index>>(),
            any::<Option<IpAddr>>(),
        ),
        0..4,
    );
    (interfaces, ips, prop::collection::vec(route(), 0..4), dns()).prop_map(
        |(interfaces, ips, routes, dns)| {
            let ip = |(address, index, gateway): (
                IpNet,
                Option<prop::sample::Index>,
                Option<IpAddr>,
            )| IpConfig {
                interface: index
                    .filter(|_| !interfaces.is_empty())
                    .map(|index| index.index(interfaces.len())),
                address,
                gateway,
            };
            CniResult {
                ips: ips.into_iter().map(ip).collect(),
                interfaces,
                routes,
                dns,
            }
        },
    )
}

/// Returns the part of `result` that `version` can express, or `None` if it requires an address and
/// there is none.
fn sayable(mut result: CniResult, version: Version) -> Option<CniResult> {
    if version >= Version::V1_0_0 {
        return Some(result);
    }
    if version >= Version::V0_3_0 {
        for interface in &mut result.interfaces {
            *interface = Interface {
                name: interface.name.clone(),
                mac: interface.mac.clone(),
                sandbox: interface.sandbox.clone(),
                ..Interface::default()
            };
        }
        return Some(result);
    }
    let mut said = CniResult {
        dns: result.dns,
        ..CniResult::default()
    };
    for ipv4 in [true, false] {
        let Some(first) = result.ips.iter().find(|ip| ip.address.is_ipv4() == ipv4) else {
            continue;
        };
        said.ips.push(IpConfig {
            interface: None,
            ..first.clone()
        });
        let routes = result
            .routes
            .iter()
            .filter(|route| route.dst.is_ipv4() == ipv4);
        said.routes.extend(routes.map(|route| Route {
            gw: route.gw,
            ..Route::to(route.dst)
        }));
    }
    (!said.ips.is_empty()).then_some(said)
}

proptest! {
    #[test]
    fn result_round_trips_in_every_version(result in result()) {
        for version in Version::ALL {
            match (result.to_json(version), sayable(result.clone(), version)) {
                (Ok(json), Some(said)) => {
                    // The text has its own version, so the assumed version must have no effect.
                    for assumed in [Version::V0_1_0, Version::V1_1_0] {
                        prop_assert_eq!(
                            &CniResult::parse(json.as_bytes(), assumed),
                            &Ok(said.clone()),
                            "{} {}",
                            version,
                            json,
                        );
                    }
                    prop_assert_eq!(said.to_json(version), Ok(json));
                }
                (Err(error), None) => prop_assert_eq!(error.code, Code::INTERNAL),
                (written, said) => prop_assert!(false, "{written:?} {said:?}"),
            }
        }
    }
}
