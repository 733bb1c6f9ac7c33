//! ADD with a failure at different steps: the error names the step, and no interface or route
//! remains.

use dataplane::EndpointPlan;
use integration_tests::command::{ip_json, run};
use integration_tests::kernel;
use integration_tests::namespaces::{Host, isolated};
use nix::mount::{MsFlags, mount};
use serde_json::Value;

use super::{link_names, plan, set_up};

fn fails_cleanly(host: &Host, plan: &EndpointPlan, step: &str) {
    // An interface gets its link-local address, and the route of that address, some time after it
    // came up.
    kernel::host().unwrap();
    let routes = || {
        [
            without_flags("-4 route show"),
            without_flags("-6 route show"),
        ]
    };
    let (links_before, routes_before) = (link_names(), routes());
    let error = set_up(host, "pod1", plan).unwrap_err();
    assert!(error.to_string().contains(step), "{error}");
    assert_eq!(link_names(), links_before, "{step}");
    assert_eq!(routes(), routes_before, "{step}");
    assert_eq!(
        host.in_pod("pod1", || Ok(link_names())).unwrap(),
        ["lo"],
        "{step}"
    );
}

/// Returns the routes without flags: the kernel clears `linkdown` some time after the carrier
/// returned.
fn without_flags(args: &str) -> Value {
    let mut routes = ip_json(args).unwrap();
    for route in routes.as_array_mut().into_iter().flatten() {
        route["flags"] = Value::Null;
    }
    routes
}

fn make_sysctls_read_only() {
    let nothing = None::<&str>;
    mount(
        Some("/proc/sys"),
        "/proc/sys",
        nothing,
        MsFlags::MS_BIND,
        nothing,
    )
    .unwrap();
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(nothing, "/proc/sys", nothing, read_only, nothing).unwrap();
}

#[test]
fn setup_with_an_invalid_mtu_fails_and_removes_everything() {
    isolated(|host| {
        let wanted = EndpointPlan {
            mtu: 70_000,
            ..plan("cali1", &["10.65.0.2"])
        };
        fails_cleanly(host, &wanted, "create veth pair eth0/cali1: ");
    });
}

#[test]
fn setup_with_read_only_host_sysctls_fails_and_removes_everything() {
    isolated(|host| {
        host.add_pod("pod1").unwrap();
        make_sysctls_read_only();
        let wanted = plan("cali1", &["10.65.0.2"]);
        fails_cleanly(
            host,
            &wanted,
            "set to 1 sysctl net/ipv4/conf/cali1/route_localnet: Read-only file system",
        );
    });
}

/// ADD does not write a setting that already has its value: only the pod's `ip_forward` is wrong
/// here.
#[test]
fn setup_with_read_only_pod_sysctls_fails_and_removes_everything() {
    isolated(|host| {
        for (key, value) in [
            ("ipv4.conf.default.route_localnet", 1),
            ("ipv4.conf.default.proxy_arp", 1),
            ("ipv4.conf.default.forwarding", 1),
            ("ipv6.conf.default.accept_ra", 0),
        ] {
            run("sysctl", &["-qw", &format!("net.{key}={value}")]).unwrap();
        }
        host.add_pod("pod1").unwrap();
        let forwards = host
            .in_pod("pod1", || kernel::sysctl("ipv4/ip_forward"))
            .unwrap()
            == "1";
        make_sysctls_read_only();
        let wanted = EndpointPlan {
            allow_ip_forwarding: !forwards,
            ..plan("cali1", &["10.65.0.2"])
        };
        fails_cleanly(
            host,
            &wanted,
            &format!("set to {} sysctl net/ipv4/ip_forward", u8::from(!forwards)),
        );

        let right = EndpointPlan {
            allow_ip_forwarding: forwards,
            ..wanted
        };
        set_up(host, "pod1", &right).unwrap();
    });
}

#[test]
fn setup_with_a_duplicate_pod_route_fails_and_removes_everything() {
    isolated(|host| {
        let routes = vec!["169.254.1.1/32".parse().unwrap()];
        let wanted = EndpointPlan {
            routes,
            ..plan("cali1", &["10.65.0.2"])
        };
        let step =
            "add route 169.254.1.1/32 via 169.254.1.1 to interface eth0 in the pod: File exists";
        fails_cleanly(host, &wanted, step);
    });
}

#[test]
fn setup_with_an_invalid_pod_address_fails_and_removes_everything() {
    isolated(|host| {
        let wanted = EndpointPlan {
            host_routes: false,
            ..plan("cali1", &["10.65.0.2", "224.0.0.1"])
        };
        fails_cleanly(
            host,
            &wanted,
            "add address 224.0.0.1 to interface eth0: Invalid argument",
        );
    });
}

#[test]
fn setup_with_a_busy_host_route_fails_and_removes_everything() {
    isolated(|host| {
        let wanted = plan("cali1", &["ff02::1:2", "10.65.0.2"]);
        set_up(host, "other", &plan("cali9", &["10.65.0.2"])).unwrap();
        fails_cleanly(
            host,
            &wanted,
            "conflicts with the route through interface cali9",
        );
    });
}

#[test]
fn setup_without_an_address_fails_without_changes() {
    isolated(|host| {
        set_up(host, "pod2", &plan("cali1", &["10.65.0.9"])).unwrap();
        let wanted = EndpointPlan {
            addresses: vec![],
            ..plan("cali1", &[])
        };
        fails_cleanly(host, &wanted, "no address to assign to interface eth0");
    });
}
