//! What happens in a cluster while kube-controllers runs. Each step needs permissions that those before it do not.

use integration_tests::controllers::{Controllers, PATIENCE, Setup, await_that};
use integration_tests::etcd::Etcd;
use integration_tests::kubernetes::ApiServer;
use integration_tests::namespaces::Host;
use libcalico::kubernetes::ApiGroup;
use libcalico::names::{HOSTNAME_HASH_LABEL, hostname_hash};
use serde_json::{Value, json};

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";

/// A cluster, and where Calico's objects are: in etcd, or in this group.
pub(crate) struct Life<'a> {
    pub(crate) host: &'a Host,
    pub(crate) api: &'a ApiServer,
    pub(crate) etcd: &'a Etcd,
    pub(crate) group: Option<ApiGroup>,
}

impl Life<'_> {
    /// From the first start on an empty datastore until all has been done that is to be done. Returns the log.
    pub(crate) fn live(&self, setup: Setup) -> String {
        self.objects_of_kubernetes();
        let mut controllers = setup.start(self.host, "controllers").unwrap();
        self.until(&controllers, "the configuration has a status", || {
            !self.configuration()["status"]["runningConfig"].is_null()
        });
        self.leave_addresses_behind();
        self.configure(&json!({ "leakGracePeriod": "1s", "hostEndpoint": { "autoCreate": "Enabled" } }));
        self.until(&controllers, "the Service has an address", || {
            let service = self.get("/api/v1/namespaces/suite/services/web");
            service["status"]["loadBalancer"]["ingress"][0]["ip"].is_string()
        });
        match self.group {
            Some(group) => self.life_of_nodes(group, &controllers),
            None => self.until(&controllers, "what was left behind is collected", || {
                let stored = self.etcd.dump().unwrap();
                let handles = stored.keys().filter(|key| key.starts_with("/calico/ipam/v2/handle/")).count();
                handles == 1 && !stored.contains_key("/calico/ipam/v2/assignment/ipv4/block/10.65.2.0-26")
            }),
        }
        assert!(controllers.terminate().unwrap().success());
        controllers.log().unwrap()
    }

    fn life_of_nodes(&self, group: ApiGroup, controllers: &Controllers) {
        let of_group = |rest: &str| format!("/apis/{}/{rest}", group.api_version());
        let endpoint = of_group("hostendpoints/n1-auto-hep");
        self.until(controllers, "the node has a host endpoint", || !self.get(&endpoint)["spec"].is_null());
        self.merge("/api/v1/nodes/n1", &json!({ "metadata": { "labels": { "zone": "a" } } }));
        self.until(controllers, "the endpoint has the node's label", || {
            self.get(&endpoint)["metadata"].to_string().contains("zone")
        });
        self.configure(&json!({ "hostEndpoint": { "autoCreate": "Disabled" } }));
        self.until(controllers, "the endpoint is gone", || self.get(&endpoint)["spec"].is_null());
        self.until(controllers, "what was left behind is collected", || {
            let items = |plural: &str| self.get(&of_group(plural))["items"].as_array().map_or(0, Vec::len);
            // The block of the node that is there stays, and so does that of the Service with its handle.
            items("ipamhandles") == 1 && self.get(&of_group("ipamblocks/10-65-2-0-26"))["spec"].is_null()
        });
        self.merge(&of_group("clusterinformations/default"), &json!({ "spec": { "clusterType": "" } }));
        self.until(controllers, "the cluster's type is noted again", || {
            self.get(&of_group("clusterinformations/default"))["spec"]["clusterType"] == "k8s,kdd"
        });
    }

    fn objects_of_kubernetes(&self) {
        self.api.namespace("suite").unwrap();
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "suite" },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }], "selector": { "app": "web" } },
        });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
        for object in [service, node] {
            self.api.admin().apply_object(&object).unwrap();
        }
        // Namespaces count where a pool selects them.
        let pool = |cidr: &str, uses: Value| {
            json!({ "cidr": cidr, "blockSize": 26, "nodeSelector": "all()", "allowedUses": uses, "ipipMode": "Never",
                    "vxlanMode": "Never" })
        };
        let mut balancer = pool("10.80.0.0/16", json!(["LoadBalancer"]));
        balancer["namespaceSelector"] = json!("all()");
        self.calico("IPPool", "ippools", "pool4", &pool("10.65.0.0/16", json!(["Workload"])));
        self.calico("IPPool", "ippools", "balancer", &balancer);
    }

    /// Addresses of pods that are not there: one on a node that is, one on a node that is gone too.
    fn leave_addresses_behind(&self) {
        if self.group.is_none() {
            for node in ["n1", "n2"] {
                let spec = json!({ "orchRefs": [{ "nodeName": node, "orchestrator": "k8s" }] });
                self.calico("Node", "nodes", node, &spec);
            }
        }
        for (node, block) in [("n1", "10.65.1.0"), ("n2", "10.65.2.0")] {
            let (cidr, dashed) = (format!("{block}/26"), block.replace('.', "-"));
            let handle = format!("k8s-pod-network.{node}");
            let mut allocations = vec![Value::Null; 64];
            allocations[0] = json!(0);
            let owner = json!({ "namespace": "suite", "node": node, "pod": format!("gone-{node}") });
            let spec = json!({
                "affinity": format!("host:{node}"), "allocations": allocations, "cidr": cidr, "deleted": false,
                "attributes": [{ "handle_id": handle, "secondary": owner }], "sequenceNumber": 7,
                "sequenceNumberForAllocation": { "0": 6 }, "strictAffinity": false,
                "unallocated": (1..64).collect::<Vec<_>>(),
            });
            if self.group.is_none() {
                let root = "/calico/ipam/v2";
                let handle_value = json!({ "block": { cidr.as_str(): 1 }, "handleID": handle, "deleted": false });
                for (path, value) in [
                    (format!("{root}/assignment/ipv4/block/{block}-26"), spec),
                    (format!("{root}/host/{node}/ipv4/block/{block}-26"), json!({ "state": "confirmed" })),
                    (format!("{root}/handle/{handle}"), handle_value),
                ] {
                    self.etcd.put(&path, value.to_string().as_bytes()).unwrap();
                }
                continue;
            }
            self.calico("IPAMBlock", "ipamblocks", &format!("{dashed}-26"), &spec);
            let deleted = if self.group == Some(ApiGroup::V3) { json!(false) } else { json!("false") };
            let spec = json!({ "cidr": cidr, "deleted": deleted, "node": node, "state": "confirmed", "type": "host" });
            // Lists of one node's go by labels.
            let labels = json!({ "projectcalico.org/affinity-type": "host", "projectcalico.org/ip-version": "4",
                HOSTNAME_HASH_LABEL: hostname_hash(node) });
            self.labelled("BlockAffinity", "blockaffinities", &format!("{node}-{dashed}-26"), &spec, labels);
            let spec = json!({ "block": { cidr: 1 }, "deleted": false, "handleID": handle });
            self.calico("IPAMHandle", "ipamhandles", &handle, &spec);
        }
    }

    /// Makes an object of Calico's.
    fn calico(&self, kind: &str, plural: &str, name: &str, spec: &Value) {
        self.labelled(kind, plural, name, spec, json!({}));
    }

    fn labelled(&self, kind: &str, plural: &str, name: &str, spec: &Value, labels: Value) {
        let api_version = self.group.map_or("projectcalico.org/v3", ApiGroup::api_version);
        let metadata = json!({ "name": name, "labels": labels });
        let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec });
        match self.group {
            None => self.etcd.put(&format!("{RESOURCES}/{plural}/{name}"), object.to_string().as_bytes()).unwrap(),
            Some(_) => _ = self.api.admin().apply_object(&object).unwrap(),
        }
    }

    fn configuration(&self) -> Value {
        let path = "kubecontrollersconfigurations/default";
        match self.group {
            None => self.etcd.dump().unwrap().remove(&format!("{RESOURCES}/{path}")).unwrap_or_default(),
            Some(group) => self.get(&format!("/apis/{}/{path}", group.api_version())),
        }
    }

    /// Changes what the configuration says of nodes.
    fn configure(&self, node: &Value) {
        let path = "kubecontrollersconfigurations/default";
        if let Some(group) = self.group {
            let patch = json!({ "spec": { "controllers": { "node": node } } });
            return self.merge(&format!("/apis/{}/{path}", group.api_version()), &patch);
        }
        let mut object = self.configuration();
        for (name, value) in node.as_object().unwrap() {
            object["spec"]["controllers"]["node"][name] = value.clone();
        }
        self.etcd.put(&format!("{RESOURCES}/{path}"), object.to_string().as_bytes()).unwrap();
    }

    fn get(&self, path: &str) -> Value {
        self.api.admin().get(path).unwrap().body
    }

    fn merge(&self, path: &str, patch: &Value) {
        self.api.admin().patch(path, patch).unwrap().success().unwrap();
    }

    #[track_caller]
    fn until(&self, controllers: &Controllers, what: &str, is_so: impl Fn() -> bool) {
        let seen = await_that(PATIENCE * 2, || Ok(is_so()));
        assert!(seen.is_ok(), "{what}: not seen\n{}", controllers.log().unwrap());
    }
}
