//! kube-controllers with an API server that has an IPv6 address only, and beside variables of a proxy.

use std::net::TcpListener;

use integration_tests::controllers::World;
use integration_tests::kubernetes::with_kubernetes;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

/// Starts kube-controllers with an API server at this address, and waits until a leak is released.
fn collects_at(address: &str, variables: &[(&str, &str)]) {
    with_kubernetes(|host, servers| {
        let world = World::new(&servers, Some(ApiGroup::CrdV1));
        let account = servers.api.service_account("kube-system", "controllers").unwrap();
        servers.api.bind(&account, "cluster-admin").unwrap();
        let listener = TcpListener::bind(format!("{address}:0")).unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let _proxy = servers.api.proxy_on(listener).unwrap();
        let kubeconfig = servers.api.kubeconfig_to(&url, "controllers", &account.identity).unwrap();
        world.node("n1", "10.9.0.1");
        let setup = world.setup().env("KUBECONFIG", kubeconfig.display().to_string()).env("POD_NAME", "controllers");
        let setup = variables.iter().fold(setup, |setup, (name, value)| setup.env(name, *value));
        let controllers = setup.start(host, "controllers").unwrap();
        world.until(&controllers, "there is a configuration", || {
            !world.calico("kubecontrollersconfigurations", "default").is_null()
        });
        world.configure(&json!({ "leakGracePeriod": "1s" }));
        world.address_left_behind("n1", "10.65.1.0");
        world.until(&controllers, "the leak is gone", || world.handles_and_blocks().0.is_empty());
    });
}

#[test]
fn collection_works_with_an_ipv6_only_api_server() {
    collects_at("[::1]", &[]);
}

/// No program listens at the proxy's address.
#[test]
fn collection_ignores_proxy_variables() {
    let proxy = "http://127.0.0.1:9";
    collects_at("127.0.0.1", &[("HTTPS_PROXY", proxy), ("https_proxy", proxy), ("HTTP_PROXY", proxy)]);
}
