//! kube-controllers with an API server that has an IPv6 address only.

use std::net::TcpListener;

use integration_tests::controllers::World;
use integration_tests::kubernetes::with_kubernetes;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

#[test]
fn collection_works_with_an_ipv6_only_api_server() {
    with_kubernetes(|host, servers| {
        let world = World::new(&servers, Some(ApiGroup::CrdV1));
        let account = servers.api.service_account("kube-system", "controllers").unwrap();
        servers.api.bind(&account, "cluster-admin").unwrap();
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let url = format!("https://[::1]:{}", listener.local_addr().unwrap().port());
        let _proxy = servers.api.proxy_on(listener).unwrap();
        let kubeconfig = servers.api.kubeconfig_to(&url, "controllers", &account.identity).unwrap();
        world.node("n1", "10.9.0.1");
        let setup = world.setup().env("KUBECONFIG", kubeconfig.display().to_string()).env("POD_NAME", "controllers");
        let controllers = setup.start(host, "controllers").unwrap();
        world.until(&controllers, "there is a configuration", || {
            !world.calico("kubecontrollersconfigurations", "default").is_null()
        });
        world.configure(&json!({ "leakGracePeriod": "1s" }));
        world.address_left_behind("n1", "10.65.1.0");
        world.until(&controllers, "the leak is gone", || world.handles_and_blocks().0.is_empty());
    });
}
