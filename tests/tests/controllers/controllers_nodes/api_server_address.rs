//! kube-controllers with an API server that has an IPv6 address only or a name with two addresses,
//! beside variables of a proxy, and behind a proxy.

use std::fs;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};

use integration_tests::command::ip;
use integration_tests::controllers::{Controllers, ControllersCluster, Proxied, REPLICAS, Setup};
use integration_tests::forward_proxy::{ForwardProxy, REQUIRES};
use integration_tests::kubernetes::{Identity, ServiceAccount};
use integration_tests::namespaces::Host;
use integration_tests::skip::skipped;
use integration_tests::{Place, on};
use nix::mount::{MsFlags, mount};
use serde_json::json;

use crate::controllers_nodes::controlled_cluster;

/// An address to which all packets are lost. It is global, because programs try it before an IPv4
/// address only then.
const SILENT: &str = "2001:db8:5::2";

/// An address of the host in the API server's certificate. Clients reach loopback addresses without
/// a proxy.
const FAR: &str = "10.96.0.1";
/// No program listens at this address.
const NO_PROXY_THERE: &str = "http://127.0.0.1:9";
const POD_CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Runs a test on the servers of the other tests of this suite.
fn on(place: Place, test: fn(&ControllersCluster<'_>)) {
    controlled_cluster::on(place, |cluster| test(&cluster.servers));
}

/// Gives the name `localhost` of this host two addresses: [`SILENT`], and that of the API server.
fn add_silent_address(host: &Host) {
    let hosts = host.dir("names").join("hosts");
    fs::write(&hosts, format!("{SILENT} localhost\n127.0.0.1 localhost\n")).unwrap();
    mount(
        Some(&hosts),
        "/etc/hosts",
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .unwrap();
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
    let addresses: Vec<IpAddr> = ("localhost", 6443)
        .to_socket_addrs()
        .unwrap()
        .map(|address| address.ip())
        .collect();
    assert_eq!(
        addresses,
        [SILENT, "127.0.0.1"].map(|address| address.parse::<IpAddr>().unwrap())
    );
}

/// Returns an account of kube-controllers that may do everything.
fn account(cluster: &ControllersCluster<'_>) -> ServiceAccount {
    Proxied::account(cluster.api, REPLICAS[0]).unwrap()
}

/// Returns the setup of kube-controllers that reach the API server at a URL.
fn setup_at(cluster: &ControllersCluster<'_>, url: &str) -> Setup {
    let identity = account(cluster).identity;
    let kubeconfig = cluster.api.kubeconfig_to(url, "controllers", &identity);
    cluster.setup_with(&kubeconfig.unwrap())
}

/// Starts kube-controllers with an API server at this address, which a URL calls `name`, and waits
/// until a leak is released.
fn collect_at(
    cluster: &ControllersCluster<'_>,
    address: &str,
    name: &str,
    variables: &[(&str, &str)],
) {
    let listener = TcpListener::bind(format!("{address}:0")).unwrap();
    let url = format!("https://{name}:{}", listener.local_addr().unwrap().port());
    let _proxy = cluster.api.proxy_on(listener).unwrap();
    let setup = variables
        .iter()
        .fold(setup_at(cluster, &url), |setup, (name, value)| {
            setup.env(name, *value)
        });
    collect(cluster, setup);
}

/// Starts kube-controllers, and waits until a leak is released.
fn collect(cluster: &ControllersCluster<'_>, setup: Setup) -> Controllers {
    cluster.node("n1", "10.9.0.1");
    let controllers = setup
        .env("POD_NAME", "controllers")
        .start(cluster.host, "controllers")
        .unwrap();
    cluster.configure(&json!({ "leakGracePeriod": "1s" }));
    cluster.address_left_behind("n1", "10.65.1.0");
    cluster.until(&controllers, "the leak is gone", || {
        cluster.handles_and_blocks().0.is_empty()
    });
    controllers
}

/// Makes [`FAR`] an address of the host, on a link that ends with the test.
fn add_far_address() {
    for command in [
        "link add near type veth peer name far",
        "link set far up",
        "link set near up",
        &format!("address add {FAR}/32 dev near"),
    ] {
        ip(command).unwrap();
    }
}

#[on(kubernetes_v1)]
fn collection_works_with_an_ipv6_only_api_server(cluster: &ControllersCluster<'_>) {
    collect_at(cluster, "[::1]", "[::1]", &[]);
}

/// As on a node of a dual-stack cluster whose IPv6 network is interrupted.
#[on(kubernetes_v1)]
fn collection_works_with_a_name_of_which_one_address_is_unreachable(
    cluster: &ControllersCluster<'_>,
) {
    add_silent_address(cluster.host);
    collect_at(cluster, "127.0.0.1", "localhost", &[]);
}

#[on(kubernetes_v1)]
fn collection_reaches_a_loopback_address_beside_proxy_variables(cluster: &ControllersCluster<'_>) {
    let variables = [
        ("HTTPS_PROXY", NO_PROXY_THERE),
        ("https_proxy", NO_PROXY_THERE),
        ("HTTP_PROXY", NO_PROXY_THERE),
    ];
    collect_at(cluster, "127.0.0.1", "127.0.0.1", &variables);
}

#[on(kubernetes_v1)]
fn collection_with_a_kubeconfig_reaches_servers_in_no_proxy_directly(
    cluster: &ControllersCluster<'_>,
) {
    add_far_address();
    let variables = [
        ("HTTPS_PROXY", NO_PROXY_THERE),
        ("NO_PROXY", "10.96.0.0/12"),
    ];
    collect_at(cluster, FAR, FAR, &variables);
}

/// An operator may set these variables for all pods.
#[on(kubernetes_v1)]
fn collection_in_a_pod_ignores_proxy_variables(cluster: &ControllersCluster<'_>) {
    add_far_address();
    let listener = TcpListener::bind(format!("{FAR}:0")).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let _relay = cluster.api.proxy_on(listener).unwrap();
    let Identity::Token(token) = account(cluster).identity else {
        panic!("the account has no token")
    };
    fs::create_dir_all(POD_CREDENTIALS).unwrap();
    for (name, text) in [
        ("token", token),
        ("ca.crt", cluster.api.authority_certificate()),
        ("namespace", "kube-system".to_owned()),
    ] {
        fs::write(format!("{POD_CREDENTIALS}/{name}"), text).unwrap();
    }
    let setup = cluster
        .setup()
        .env("KUBECONFIG", "")
        .env("HTTPS_PROXY", NO_PROXY_THERE)
        .env("KUBERNETES_SERVICE_HOST", FAR)
        .env("KUBERNETES_SERVICE_PORT", port);
    collect(cluster, setup);
}

/// The restart of the proxy breaks the watches, and kube-controllers opens them again.
#[on(kubernetes_v1)]
fn collection_works_through_a_proxy_and_after_its_restart(cluster: &ControllersCluster<'_>) {
    if !ForwardProxy::installed() {
        return skipped(REQUIRES);
    }
    add_far_address();
    let listener = TcpListener::bind(format!("{FAR}:0")).unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let _relay = cluster.api.proxy_on(listener).unwrap();
    let mut proxy = ForwardProxy::http(cluster.host, Some(("person", "p4ssw0rd"))).unwrap();
    let setup = setup_at(cluster, &format!("https://{target}")).env("HTTPS_PROXY", proxy.url());
    let controllers = collect(cluster, setup);
    let before = proxy.requests_for(&target).unwrap();
    assert!(before > 0, "{proxy:?}");
    proxy.restart().unwrap();
    cluster.address_left_behind("n1", "10.65.2.0");
    cluster.until(&controllers, "the second leak is gone", || {
        cluster.handles_and_blocks().0.is_empty()
    });
    assert!(proxy.requests_for(&target).unwrap() > before, "{proxy:?}");
    assert!(!controllers.log().unwrap().contains("p4ssw0rd"));
}
