//! The roles according to the API server's own authorizer, and in use.

use integration_tests::kubernetes::{
    Access, ApiServer, Kubernetes, on_shared_kubernetes, token_path, token_request,
};
use integration_tests::manifests::{NAMESPACE, compose};
use serde_json::json;

use super::{can_render, overlay};

/// Shows SEC-100.
#[test]
fn agent_may_create_tokens_for_the_plugins_user_only() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        api.admin()
            .apply_all(overlay("overlays/kubernetes-v1").values())
            .unwrap();
        let agent = api.service_account(NAMESPACE, "calico-cni").unwrap();
        let request = token_request(json!({ "expirationSeconds": 86400 }));
        let token = |account: &str| {
            agent
                .client
                .create(&token_path(NAMESPACE, account), &request)
                .unwrap()
        };
        // The authorizer applies roles a moment after they were written.
        await_code(|| token("calico-cni-plugin").code, 201);
        for other in ["calico-kube-controllers", "calico-cni", "default"] {
            assert_eq!(token(other).code, 403, "{other}");
        }

        let group = "crd.projectcalico.org";
        await_code(
            || {
                u16::from(may(
                    api,
                    &agent.user,
                    "create",
                    group,
                    "clusterinformations",
                ))
            },
            1,
        );
        for (verb, group, resource, allowed) in [
            ("get", group, "clusterinformations", true),
            ("update", group, "clusterinformations", false),
            ("delete", group, "clusterinformations", false),
            ("list", group, "ippools", false),
            ("create", group, "ippools", false),
            ("get", group, "ipamblocks", false),
            ("get", "", "pods", false),
            ("get", "", "nodes", false),
            ("get", "", "secrets", false),
            ("patch", "", "nodes/status", false),
        ] {
            assert_eq!(
                may(api, &agent.user, verb, group, resource),
                allowed,
                "{verb} {resource}"
            );
        }

        let plugin = api.service_account(NAMESPACE, "calico-cni-plugin").unwrap();
        let path = token_path(NAMESPACE, "calico-cni-plugin");
        assert_eq!(plugin.client.create(&path, &request).unwrap().code, 403);
    });
}

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
        await_code(|| u16::from(may(api, &user, "get", "", "nodes")), 1);
        for verb in ["list", "watch", "patch", "update", "delete"] {
            assert!(!may(api, &user, verb, "", "nodes"), "{verb}");
        }
    });
}

fn may(api: &ApiServer, user: &str, verb: &str, group: &str, resource: &str) -> bool {
    api.allows(
        user,
        Access {
            verb,
            group,
            resource,
        },
    )
    .unwrap()
}

fn await_code(code: impl Fn() -> u16, expected: u16) {
    let as_expected = || Ok(code() == expected);
    integration_tests::controllers::await_that(
        integration_tests::controllers::PATIENCE,
        as_expected,
    )
    .unwrap();
}
