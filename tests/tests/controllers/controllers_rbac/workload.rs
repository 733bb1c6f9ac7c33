//! [`Workload`]: changes in a cluster while kube-controllers run. The steps need different
//! permissions.

use integration_tests::controllers::{
    Controllers, ControllersCluster, NAMESPACE, PATIENCE, Setup, await_that,
};
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

pub(crate) struct Workload<'a> {
    pub(crate) cluster: &'a ControllersCluster<'a>,
    /// A function that is called repeatedly while the test waits.
    pub(crate) meanwhile: &'a dyn Fn(),
}

impl Workload<'_> {
    /// Runs the program on an empty datastore until all work is done. Returns the log.
    pub(crate) fn run(&self, setup: Setup) -> String {
        self.create_objects();
        let mut controllers = setup.start(self.cluster.host, "controllers").unwrap();
        self.until(&controllers, "the configuration has a status", || {
            let configuration = self
                .cluster
                .calico("kubecontrollersconfigurations", "default");
            !configuration["status"]["runningConfig"].is_null()
        });
        if self.cluster.group.is_some() {
            // kube-controllers read the object every ten seconds, and do their other work
            // meanwhile.
            self.cluster.change(
                "clusterinformations",
                "default",
                &json!({ "spec": { "clusterType": "" } }),
            );
        }
        self.create_leaked_addresses();
        self.cluster.configure(
            &json!({ "leakGracePeriod": "1s", "hostEndpoint": { "autoCreate": "Enabled" } }),
        );
        self.until(&controllers, "the Service has an address", || {
            self.cluster.shown("web").len() == 1
        });
        match self.cluster.group {
            Some(group) => self.change_nodes(group, &controllers),
            None => self.until(&controllers, "the leaked addresses are released", || {
                self.is_collected()
            }),
        }
        assert!(controllers.terminate().unwrap().success());
        controllers.log().unwrap()
    }

    fn change_nodes(&self, group: ApiGroup, controllers: &Controllers) {
        let cluster = self.cluster;
        let endpoint = || cluster.calico("hostendpoints", "n1-auto-hep");
        self.until(controllers, "the node has a host endpoint", || {
            !endpoint().is_null()
        });
        cluster.merge(
            "/api/v1/nodes/n1",
            &json!({ "metadata": { "labels": { "zone": "a" } } }),
        );
        self.until(controllers, "the endpoint has the node's label", || {
            endpoint()["metadata"].to_string().contains("zone")
        });
        cluster.configure(&json!({ "hostEndpoint": { "autoCreate": "Disabled" } }));
        self.until(controllers, "the endpoint is gone", || endpoint().is_null());
        self.until(controllers, "the leaked addresses are released", || {
            self.is_collected()
        });
        self.until(controllers, "the cluster's type is written again", || {
            cluster.calico("clusterinformations", "default")["spec"]["clusterType"] == "k8s,kdd"
        });
        if group == ApiGroup::V3 {
            self.delete_with_finalizers(controllers);
        }
    }

    fn delete_with_finalizers(&self, controllers: &Controllers) {
        let cluster = self.cluster;
        for (plural, name) in [("tiers", "going"), ("ippools", "going")] {
            self.until(controllers, "it has a finalizer", || {
                !cluster.calico(plural, name)["metadata"]["finalizers"].is_null()
            });
            cluster.remove(&cluster.path(plural, name));
            self.until(controllers, "it is gone", || {
                cluster.calico(plural, name).is_null()
            });
        }
    }

    /// Returns true if the block of `n2` and its affinity are deleted, and only the Service's
    /// handle is left.
    fn is_collected(&self) -> bool {
        let is_of_block = |key: &String| key.replace('.', "-").contains("10-65-2-0");
        self.cluster.handles_and_blocks().0.len() == 1
            && !self.cluster.all().keys().any(is_of_block)
    }

    fn create_objects(&self) {
        let cluster = self.cluster;
        cluster.apply(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "web", "namespace": NAMESPACE },
            "spec": {
                "type": "LoadBalancer", "ports": [{ "port": 80 }], "selector": { "app": "web" },
            },
        }));
        cluster.api.admin().node("n1").unwrap();
        cluster.pool("pool4", "10.65.0.0/16", "Workload");
        // The controller reads namespaces only if a pool selects them.
        let spec = json!({ "cidr": "10.80.0.0/16", "blockSize": 26, "nodeSelector": "all()",
                "allowedUses": ["LoadBalancer"],
            "ipipMode": "Never", "vxlanMode": "Never", "namespaceSelector": "all()" });
        cluster.put("IPPool", "ippools", "balancer", &spec);
        if cluster.group == Some(ApiGroup::V3) {
            cluster.pool("going", "10.90.0.0/16", "Workload");
            cluster.put("Tier", "tiers", "going", &json!({ "order": 7 }));
        }
    }

    /// Creates addresses of missing pods, on an existing node and on a missing one.
    fn create_leaked_addresses(&self) {
        for (node, block) in [("n1", "10.65.1.0"), ("n2", "10.65.2.0")] {
            if self.cluster.group.is_none() {
                let spec = json!({ "orchRefs": [{ "nodeName": node, "orchestrator": "k8s" }] });
                self.cluster.put("Node", "nodes", node, &spec);
            }
            self.cluster.address_left_behind(node, block);
        }
    }

    #[track_caller]
    fn until(&self, controllers: &Controllers, what: &str, is_so: impl Fn() -> bool) {
        let seen = await_that(PATIENCE * 2, || {
            (self.meanwhile)();
            Ok(is_so())
        });
        assert!(
            seen.is_ok(),
            "{what}: not seen\n{}",
            controllers.log().unwrap()
        );
    }
}
