//! A role according to the API server's own authorizer.

use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{Access, Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{NAMESPACE, compose};

use super::can_render;

#[test]
fn component_node_condition_lets_the_agent_get_nodes_only() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        let directory = host.dir("manifests");
        let objects = compose(
            &directory,
            &["overlays/etcd"],
            &["components/node-condition"],
        )
        .unwrap();
        api.admin().apply_all(objects.values()).unwrap();
        let user = format!("system:serviceaccount:{NAMESPACE}:calico-cni");
        let may = |verb: &str| {
            let access = Access {
                verb,
                group: "",
                resource: "nodes",
            };
            api.allows(&user, access)
        };
        // The authorizer applies roles a moment after they were written.
        await_that(PATIENCE, || may("get")).unwrap();
        for verb in ["list", "watch", "patch", "update", "delete"] {
            assert!(!may(verb).unwrap(), "{verb}");
        }
    });
}
