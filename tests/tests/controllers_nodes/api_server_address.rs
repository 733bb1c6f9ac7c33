//! kube-controllers with an API server that has an IPv6 address only or a name with two addresses,
//! beside variables of a proxy, and behind a proxy.

use std::fs;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};

use integration_tests::command::ip;
use integration_tests::controllers::{Controllers, Proxied, Setup, World};
use integration_tests::forward_proxy::{ForwardProxy, REQUIRES};
use integration_tests::kubernetes::{ApiServer, Identity, ServiceAccount, on_prepared_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::skip::skipped;
use libcalico::kubernetes::ApiGroup;
use nix::mount::{MsFlags, mount};
use serde_json::json;

/// An address to which all packets are lost. It is global, because programs try it before an IPv4
/// address only then.
const SILENT: &str = "2001:db8:5::2";

/// An address of the host in the API server's certificate. Clients reach loopback addresses without
/// a proxy.
const FAR: &str = "10.96.0.1";
/// No program listens at this address.
const NO_PROXY_THERE: &str = "http://127.0.0.1:9";
const POD_CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

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

/// Runs a test with an account of kube-controllers that may do everything.
fn on(test: impl FnOnce(&Host, &World<'_>, &ServiceAccount) + Send) {
    let group = Some(ApiGroup::CrdV1);
    let prepare = move |api: &ApiServer| {
        World::prepare(api, group)?;
        Proxied::account(api, "controllers").map(drop)
    };
    on_prepared_kubernetes("controllers", prepare, |host, servers| {
        let account = Proxied::account(&servers.api, "controllers").unwrap();
        test(host, &World::prepared(servers, group), &account);
    });
}

/// Starts kube-controllers with an API server at this address, which a URL calls `name`, and waits
/// until a leak is released.
fn collects_at(address: &str, name: &str, variables: &[(&str, &str)], prepare: fn(&Host)) {
    on(|host, world, account| {
        prepare(host);
        let listener = TcpListener::bind(format!("{address}:0")).unwrap();
        let url = format!("https://{name}:{}", listener.local_addr().unwrap().port());
        let _proxy = world.api.proxy_on(listener).unwrap();
        let kubeconfig = world
            .api
            .kubeconfig_to(&url, "controllers", &account.identity)
            .unwrap();
        world.node("n1", "10.9.0.1");
        let setup = world
            .setup()
            .env("KUBECONFIG", kubeconfig.display().to_string());
        let setup = variables
            .iter()
            .fold(setup, |setup, (name, value)| setup.env(name, *value));
        collects(host, world, setup);
    });
}

/// Starts kube-controllers, and waits until a leak is released.
fn collects(host: &Host, world: &World<'_>, setup: Setup) -> Controllers {
    let controllers = setup
        .env("POD_NAME", "controllers")
        .start(host, "controllers")
        .unwrap();
    world.configure(&json!({ "leakGracePeriod": "1s" }));
    world.address_left_behind("n1", "10.65.1.0");
    world.until(&controllers, "the leak is gone", || {
        world.handles_and_blocks().0.is_empty()
    });
    controllers
}

/// Makes [`FAR`] an address of the host, on a link that ends with the test.
fn add_far_address(_: &Host) {
    for command in [
        "link add near type veth peer name far",
        "link set far up",
        "link set near up",
        &format!("address add {FAR}/32 dev near"),
    ] {
        ip(command).unwrap();
    }
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

#[test]
fn collection_reaches_a_loopback_address_beside_proxy_variables() {
    let variables = [
        ("HTTPS_PROXY", NO_PROXY_THERE),
        ("https_proxy", NO_PROXY_THERE),
        ("HTTP_PROXY", NO_PROXY_THERE),
    ];
    collects_at("127.0.0.1", "127.0.0.1", &variables, |_| ());
}

#[test]
fn collection_with_a_kubeconfig_reaches_servers_in_no_proxy_directly() {
    collects_at(
        FAR,
        FAR,
        &[
            ("HTTPS_PROXY", NO_PROXY_THERE),
            ("NO_PROXY", "10.96.0.0/12"),
        ],
        add_far_address,
    );
}

/// An operator may set these variables for all pods.
#[test]
fn collection_in_a_pod_ignores_proxy_variables() {
    on(|host, world, account| {
        add_far_address(host);
        let listener = TcpListener::bind(format!("{FAR}:0")).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let _relay = world.api.proxy_on(listener).unwrap();
        let Identity::Token(token) = &account.identity else {
            panic!("the account has no token")
        };
        fs::create_dir_all(POD_CREDENTIALS).unwrap();
        for (name, text) in [
            ("token", token),
            ("ca.crt", &world.api.authority_certificate()),
            ("namespace", &"kube-system".to_owned()),
        ] {
            fs::write(format!("{POD_CREDENTIALS}/{name}"), text).unwrap();
        }
        world.node("n1", "10.9.0.1");
        let setup = world
            .setup()
            .env("KUBECONFIG", "")
            .env("HTTPS_PROXY", NO_PROXY_THERE);
        collects(
            host,
            world,
            setup
                .env("KUBERNETES_SERVICE_HOST", FAR)
                .env("KUBERNETES_SERVICE_PORT", port),
        );
    });
}

/// The restart of the proxy breaks the watches, and kube-controllers opens them again.
#[test]
fn collection_works_through_a_proxy_and_after_its_restart() {
    if !ForwardProxy::installed() {
        return skipped(REQUIRES);
    }
    on(|host, world, account| {
        add_far_address(host);
        let listener = TcpListener::bind(format!("{FAR}:0")).unwrap();
        let target = listener.local_addr().unwrap().to_string();
        let _relay = world.api.proxy_on(listener).unwrap();
        let mut proxy = ForwardProxy::http(host, Some(("person", "p4ssw0rd"))).unwrap();
        let url = format!("https://{target}");
        let kubeconfig = world
            .api
            .kubeconfig_to(&url, "controllers", &account.identity)
            .unwrap();
        world.node("n1", "10.9.0.1");
        let setup = world
            .setup()
            .env("KUBECONFIG", kubeconfig.display().to_string())
            .env("HTTPS_PROXY", proxy.url());
        let controllers = collects(host, world, setup);
        let before = proxy.requests_for(&target).unwrap();
        assert!(before > 0, "{proxy:?}");
        proxy.restart().unwrap();
        world.address_left_behind("n1", "10.65.2.0");
        world.until(&controllers, "the second leak is gone", || {
            world.handles_and_blocks().0.is_empty()
        });
        assert!(proxy.requests_for(&target).unwrap() > before, "{proxy:?}");
        assert!(!controllers.log().unwrap().contains("p4ssw0rd"));
    });
}
