//! kube-controllers with an API server that has an IPv6 address only or a name with two addresses, and beside variables
//! of a proxy.

use std::fs;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};

use integration_tests::command::ip;
use integration_tests::controllers::World;
use integration_tests::kubernetes::with_kubernetes;
use integration_tests::namespaces::Host;
use libcalico::kubernetes::ApiGroup;
use nix::mount::{MsFlags, mount};
use serde_json::json;

/// An address to which all packets are lost. It is global, because programs try it before an IPv4 address only then.
const SILENT: &str = "2001:db8:5::2";

/// Gives the name `localhost` of this host two addresses: [`SILENT`], and that of the API server.
fn add_silent_address(host: &Host) {
    let hosts = host.dir("names").join("hosts");
    fs::write(&hosts, format!("{SILENT} localhost\n127.0.0.1 localhost\n")).unwrap();
    mount(Some(&hosts), "/etc/hosts", None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    // No interface has the hardware address of the neighbor entry.
    for command in [
        "link add near type veth peer name far",
        "link set far up",
        "link set near up",
        "address add 2001:db8:5::1/64 dev near nodad",
        &format!("neighbour add {SILENT} lladdr 02:00:00:00:00:02 dev near nud permanent"),
    ] {
        ip(command).unwrap();
    }
    let addresses: Vec<IpAddr> = ("localhost", 6443).to_socket_addrs().unwrap().map(|address| address.ip()).collect();
    assert_eq!(addresses, [SILENT, "127.0.0.1"].map(|address| address.parse::<IpAddr>().unwrap()));
}

/// Starts kube-controllers with an API server at this address, which a URL calls `name`, and waits until a leak is
/// released.
fn collects_at(address: &str, name: &str, variables: &[(&str, &str)], prepare: fn(&Host)) {
    with_kubernetes(|host, servers| {
        prepare(host);
        let world = World::new(&servers, Some(ApiGroup::CrdV1));
        let account = servers.api.service_account("kube-system", "controllers").unwrap();
        servers.api.bind(&account, "cluster-admin").unwrap();
        let listener = TcpListener::bind(format!("{address}:0")).unwrap();
        let url = format!("https://{name}:{}", listener.local_addr().unwrap().port());
        let _proxy = servers.api.proxy_on(listener).unwrap();
        let kubeconfig = servers.api.kubeconfig_to(&url, "controllers", &account.identity).unwrap();
        world.node("n1", "10.9.0.1");
        let setup = world.setup().env("KUBECONFIG", kubeconfig.display().to_string()).env("POD_NAME", "controllers");
        let setup = variables.iter().fold(setup, |setup, (name, value)| setup.env(name, *value));
        let controllers = setup.start(host, "controllers").unwrap();
        world.configure(&json!({ "leakGracePeriod": "1s" }));
        world.address_left_behind("n1", "10.65.1.0");
        world.until(&controllers, "the leak is gone", || world.handles_and_blocks().0.is_empty());
    });
}

#[test]
fn collection_works_with_an_ipv6_only_api_server() {
    collects_at("[::1]", "[::1]", &[], |_| ());
}

/// As on a node of a dual-stack cluster whose IPv6 network is interrupted.
#[test]
fn collection_works_with_a_name_of_which_one_address_is_unreachable() {
    collects_at("127.0.0.1", "localhost", &[], add_silent_address);
}

/// No program listens at the proxy's address.
#[test]
fn collection_ignores_proxy_variables() {
    let proxy = "http://127.0.0.1:9";
    let variables = [("HTTPS_PROXY", proxy), ("https_proxy", proxy), ("HTTP_PROXY", proxy)];
    collects_at("127.0.0.1", "127.0.0.1", &variables, |_| ());
}
