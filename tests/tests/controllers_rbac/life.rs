//! Events in a cluster while kube-controllers runs. The steps need different permissions.

use integration_tests::controllers::{Controllers, NAMESPACE, PATIENCE, Setup, World, await_that};
use integration_tests::namespaces::Host;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

pub(crate) struct Life<'a> {
    pub(crate) host: &'a Host,
    pub(crate) world: World<'a>,
    /// A function that is called repeatedly while the test waits.
    pub(crate) meanwhile: &'a dyn Fn(),
}

impl Life<'_> {
    /// Runs the program on an empty datastore until all work is done. Returns the log.
    pub(crate) fn live(&self, setup: Setup) -> String {
        self.beginning();
        let mut controllers = setup.start(self.host, "controllers").unwrap();
        self.until(&controllers, "the configuration has a status", || {
            let configuration = self
                .world
                .calico("kubecontrollersconfigurations", "default");
            !configuration["status"]["runningConfig"].is_null()
        });
        if self.world.group.is_some() {
            // kube-controllers read the object every ten seconds, and do their other work
            // meanwhile.
            self.world.change(
                "clusterinformations",
                "default",
                &json!({ "spec": { "clusterType": "" } }),
            );
        }
        self.leave_addresses_behind();
        self.world.configure(
            &json!({ "leakGracePeriod": "1s", "hostEndpoint": { "autoCreate": "Enabled" } }),
        );
        self.until(&controllers, "the Service has an address", || {
            self.world.shown("web").len() == 1
        });
        match self.world.group {
            Some(group) => self.life_of_nodes(group, &controllers),
            None => self.until(&controllers, "what was left behind is collected", || {
                self.is_collected()
            }),
        }
        assert!(controllers.terminate().unwrap().success());
        controllers.log().unwrap()
    }

    fn life_of_nodes(&self, group: ApiGroup, controllers: &Controllers) {
        let world = &self.world;
        let endpoint = || world.calico("hostendpoints", "n1-auto-hep");
        self.until(controllers, "the node has a host endpoint", || {
            !endpoint().is_null()
        });
        world.merge(
            "/api/v1/nodes/n1",
            &json!({ "metadata": { "labels": { "zone": "a" } } }),
        );
        self.until(controllers, "the endpoint has the node's label", || {
            endpoint()["metadata"].to_string().contains("zone")
        });
        world.configure(&json!({ "hostEndpoint": { "autoCreate": "Disabled" } }));
        self.until(controllers, "the endpoint is gone", || endpoint().is_null());
        self.until(controllers, "what was left behind is collected", || {
            self.is_collected()
        });
        self.until(controllers, "the cluster's type is noted again", || {
            world.calico("clusterinformations", "default")["spec"]["clusterType"] == "k8s,kdd"
        });
        if group == ApiGroup::V3 {
            self.life_of_finalizers(controllers);
        }
    }

    fn life_of_finalizers(&self, controllers: &Controllers) {
        let world = &self.world;
        for (plural, name) in [("tiers", "going"), ("ippools", "going")] {
            self.until(controllers, "it has a finalizer", || {
                !world.calico(plural, name)["metadata"]["finalizers"].is_null()
            });
            world.remove(&world.path(plural, name));
            self.until(controllers, "it is gone", || {
                world.calico(plural, name).is_null()
            });
        }
    }

    /// Returns true if the block of `n2` and its affinity are deleted, and only the Service's
    /// handle is left.
    fn is_collected(&self) -> bool {
        let is_of_block = |key: &String| key.replace('.', "-").contains("10-65-2-0");
        self.world.handles_and_blocks().0.len() == 1 && !self.world.all().keys().any(is_of_block)
    }

    fn beginning(&self) {
        let world = &self.world;
        world.apply(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "web", "namespace": NAMESPACE },
            "spec": {
                "type": "LoadBalancer", "ports": [{ "port": 80 }], "selector": { "app": "web" },
            },
        }));
        world.api.admin().node("n1").unwrap();
        world.pool("pool4", "10.65.0.0/16", "Workload");
        // The controller reads namespaces only if a pool selects them.
        let spec = json!({ "cidr": "10.80.0.0/16", "blockSize": 26, "nodeSelector": "all()",
                "allowedUses": ["LoadBalancer"],
            "ipipMode": "Never", "vxlanMode": "Never", "namespaceSelector": "all()" });
        world.put("IPPool", "ippools", "balancer", &spec);
        if world.group == Some(ApiGroup::V3) {
            world.pool("going", "10.90.0.0/16", "Workload");
            world.put("Tier", "tiers", "going", &json!({ "order": 7 }));
        }
    }

    /// Creates addresses of missing pods, on an existing node and on a missing one.
    fn leave_addresses_behind(&self) {
        for (node, block) in [("n1", "10.65.1.0"), ("n2", "10.65.2.0")] {
            if self.world.group.is_none() {
                let spec = json!({ "orchRefs": [{ "nodeName": node, "orchestrator": "k8s" }] });
                self.world.put("Node", "nodes", node, &spec);
            }
            self.world.address_left_behind(node, block);
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
