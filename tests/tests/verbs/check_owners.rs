//! `calico-ipam check` on real servers: Services, tunnels and virtual machines as owners of
//! addresses.

use std::collections::BTreeMap;

use integration_tests::kubernetes::{ApiServer, Objects, ServiceAccount, on_prepared_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::plugin::{Outcome, Plugins};
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

const NAMESPACE: &str = "suite";
const GROUP: &str = "crd.projectcalico.org";
const MACHINES: &str = "/apis/kubevirt.io/v1/namespaces/suite/virtualmachines";
const SERVICE: &str =
    "owner without address: Service(suite/web) has 10.69.0.1, which is not allocated\n";
const TUNNEL: &str = "owner without address: Node(node1) has 10.66.0.9, which is not allocated\n";

/// Runs a test on an API server with Calico's kinds.
fn on(test: impl FnOnce(&Host, &ApiServer) + Send) {
    let prepare = |api: &ApiServer| {
        api.define(ApiGroup::CrdV1.api_version())?;
        api.namespace(NAMESPACE)
    };
    on_prepared_kubernetes("kinds", prepare, |host, servers| test(host, &servers.api));
}

/// Creates the settings of Services and a Service with a published address.
fn prepare(api: &ApiServer) -> Store {
    let objects = Objects::new(api.admin(), ApiGroup::CrdV1, api.admin_kubeconfig());
    let object = |kind: &str, name: &str, spec: Value| {
        let version = ApiGroup::CrdV1.api_version();
        json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec })
    };
    let pool =
        |cidr: &str, uses: Value| json!({ "cidr": cidr, "blockSize": 30, "allowedUses": uses });
    let controllers = json!({ "controllers": { "loadBalancer": { "assignIPs": "AllServices" } } });
    objects
        .load(&BTreeMap::from([
            (
                "ippools/lb".into(),
                object(
                    "IPPool",
                    "lb",
                    pool("10.69.0.0/28", json!(["LoadBalancer"])),
                ),
            ),
            (
                "ippools/pods".into(),
                object(
                    "IPPool",
                    "pods",
                    pool("10.66.0.0/28", json!(["Workload", "Tunnel"])),
                ),
            ),
            (
                "kubecontrollersconfigurations/default".into(),
                object("KubeControllersConfiguration", "default", controllers),
            ),
        ]))
        .unwrap();
    let metadata = json!({ "name": "web", "namespace": NAMESPACE });
    let spec = json!({ "type": "LoadBalancer", "ports": [{ "port": 80 }] });
    let service =
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec });
    api.admin().apply_object(&service).unwrap();
    let published = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "10.69.0.1" }] } } });
    api.admin()
        .patch("/api/v1/namespaces/suite/services/web/status", &published)
        .unwrap()
        .success();
    Store::Kubernetes(objects)
}

fn check(store: &Store, plugins: &Plugins) -> Outcome {
    store
        .calico_ipam(plugins, &["check", "--settle", "0"])
        .unwrap()
}

/// Runs `check` with the credentials of an account.
fn check_as(account: &ServiceAccount, plugins: &Plugins) -> Outcome {
    let call = plugins.call("calico-ipam").args(["check", "--settle", "0"]);
    let call = call
        .env("DATASTORE_TYPE", "kubernetes")
        .env("KUBECONFIG", account.kubeconfig.as_os_str());
    call.env("CALICO_API_GROUP", ApiGroup::CrdV1.api_version())
        .run()
}

/// Creates an account that may read Calico's objects, and of Kubernetes' own these.
fn reader(api: &ApiServer, name: &str, resources: &[&str]) -> ServiceAccount {
    let account = api.service_account(NAMESPACE, name).unwrap();
    let rule = |group: &str, of: Value| {
        json!({
            "apiGroups": [group], "resources": of, "verbs": ["get", "list"],
        })
    };
    api.cluster_role(
        name,
        &json!([rule(GROUP, json!(["*"])), rule("", json!(resources))]),
    )
    .unwrap();
    api.bind(&account, name).unwrap();
    account
}

#[test]
fn check_without_rights_to_services_says_so() {
    on(|_, api| {
        let (store, plugins) = (prepare(api), Plugins::locate().unwrap());
        let everything = check(&store, &plugins);
        assert!(
            everything.exit == Some(1) && everything.stdout.contains(SERVICE),
            "{everything:?}"
        );

        let without_services = check_as(&reader(api, "no-services", &["pods", "nodes"]), &plugins);
        assert_eq!(without_services.exit, Some(0), "{without_services:?}");
        assert!(
            without_services
                .stdout
                .contains("\nnote: Services are not checked: "),
            "{without_services:?}"
        );

        let without_nodes = check_as(&reader(api, "no-nodes", &["pods", "services"]), &plugins);
        assert!(without_nodes.stdout.contains(SERVICE), "{without_nodes:?}");
        assert!(
            without_nodes
                .stdout
                .contains("\nnote: the tunnels of nodes are not checked: "),
            "{without_nodes:?}"
        );
    });
}

#[test]
fn tunnel_without_allocation_is_found_on_an_api_server() {
    on(|_, api| {
        let (store, plugins) = (prepare(api), Plugins::locate().unwrap());
        let annotations = json!({ "projectcalico.org/IPv4VXLANTunnelAddr": "10.66.0.9" });
        let metadata = json!({ "name": "node1", "annotations": annotations });
        api.admin()
            .apply_object(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }))
            .unwrap();
        let outcome = check(&store, &plugins);
        assert!(
            outcome.exit == Some(1) && outcome.stdout.contains(TUNNEL),
            "{outcome:?}"
        );
    });
}

#[test]
fn services_beside_the_datastore_are_read_from_the_kubeconfig() {
    on(|host, api| {
        prepare(api);
        let plugins = Plugins::locate().unwrap();
        let store = Store::local(host, &plugins);
        let ipam = |args: &[&str]| store.calico_ipam(&plugins, args).unwrap();
        assert_eq!(ipam(&["init", "--node", "node1"]).exit, Some(0));
        let controllers = json!({ "controllers": { "loadBalancer": {} } });
        let settings = json!({
            "kind": "KubeControllersConfiguration", "apiVersion": "projectcalico.org/v3",
            "metadata": { "name": "default" }, "spec": controllers,
        });
        let pool = json!({
            "kind": "IPPool", "apiVersion": "projectcalico.org/v3", "metadata": { "name": "lb" },
            "spec": { "cidr": "10.69.0.0/28", "blockSize": 30, "allowedUses": ["LoadBalancer"] },
        });
        let root = "/calico/resources/v3/projectcalico.org";
        store
            .put(
                &format!("{root}/kubecontrollersconfigurations/default"),
                &settings,
            )
            .unwrap();
        store.put(&format!("{root}/ippools/lb"), &pool).unwrap();

        let alone = check(&store, &plugins);
        assert_eq!(alone.exit, Some(0), "{alone:?}");
        assert!(
            alone
                .stdout
                .contains("\nnote: Services are not checked: no API server is configured"),
            "{alone:?}"
        );
        let file = store.conf()["datastore_path"].as_str().unwrap().to_owned();
        let call = plugins.call("calico-ipam").args(["check", "--settle", "0"]);
        let call = call
            .env("DATASTORE_TYPE", "local")
            .env("DATASTORE_PATH", file);
        let call = call.env("KUBECONFIG", api.admin_kubeconfig());
        let beside = call.run();
        assert!(
            beside.exit == Some(1) && beside.stdout.contains(SERVICE),
            "{beside:?}"
        );

        // The handle of no Service of this API server.
        let owner = json!({ "namespace": NAMESPACE, "service": "other", "type": "LoadBalancer" });
        let block = json!({
            "cidr": "10.69.0.4/30", "affinity": "virtual:load-balancer",
            "allocations": [0, null, null, null],
            "unallocated": [1, 2, 3],
            "attributes": [{ "handle_id": "lb-other", "secondary": owner }],
        });
        store
            .put("/calico/ipam/v2/assignment/ipv4/block/10.69.0.4-30", &block)
            .unwrap();
        let of_another = call.run();
        assert!(
            of_another.stdout.contains("may be that of another cluster"),
            "{of_another:?}"
        );
        assert!(
            !of_another.stdout.contains("address without endpoint: "),
            "{of_another:?}"
        );
        assert!(!of_another.stdout.contains(SERVICE), "{of_another:?}");
    });
}

/// Allocates an address to the virtual machine `suite/vm`.
fn allocate_to_machine(store: &Store) {
    let version = ApiGroup::CrdV1.api_version();
    let object = |kind: &str, name: &str, spec: Value| {
        let metadata = json!({ "name": name });
        json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec })
    };
    let handle = "net.vmi.suite.vm";
    let owner = json!({
        "namespace": NAMESPACE, "node": "node1", "pod": "virt-launcher-vm-x", "vmi-name": "vm",
    });
    let block = json!({
        "cidr": "10.66.0.0/30", "affinity": "host:node1", "strictAffinity": false, "deleted": false,
        "allocations": [0, null, null, null], "unallocated": [1, 2, 3], "sequenceNumber": 2,
        "sequenceNumberForAllocation": { "0": 1 },
        "attributes": [{ "handle_id": handle, "secondary": owner }],
    });
    let affinity = json!({
        "cidr": "10.66.0.0/30", "node": "node1", "state": "confirmed", "type": "host",
        "deleted": "false",
    });
    let counts = json!({ "handleID": handle, "block": { "10.66.0.0/30": 1 }, "deleted": false });
    let Store::Kubernetes(objects) = store else {
        unreachable!()
    };
    objects
        .load(&BTreeMap::from([
            (
                "ipamblocks/10-66-0-0-30".into(),
                object("IPAMBlock", "10-66-0-0-30", block),
            ),
            (
                "blockaffinities/node1-10-66-0-0-30".into(),
                object("BlockAffinity", "node1-10-66-0-0-30", affinity),
            ),
            (
                format!("ipamhandles/{handle}"),
                object("IPAMHandle", handle, counts),
            ),
        ]))
        .unwrap();
}

#[test]
fn address_of_a_stopped_machine_is_a_leak_only_after_the_machine() {
    on(|_, api| {
        let (store, plugins) = (prepare(api), Plugins::locate().unwrap());
        allocate_to_machine(&store);
        let leak = "address without endpoint: 10.66.0.0 (";
        let is_leaked = || check(&store, &plugins).stdout.contains(leak);
        assert!(
            !is_leaked(),
            "KubeVirt is not installed, and garbage collection waits for a grace period"
        );
        api.define_machines().unwrap();
        for name in ["vm", "other"] {
            let metadata = json!({ "name": name, "namespace": NAMESPACE });
            let machine = json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata,
            });
            api.admin().create(MACHINES, &machine).unwrap().success();
        }
        assert!(!is_leaked(), "the machine exists");
        api.admin()
            .delete(&format!("{MACHINES}/vm"))
            .unwrap()
            .success();
        assert!(is_leaked());
    });
}
