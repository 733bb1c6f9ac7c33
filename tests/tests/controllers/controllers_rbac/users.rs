//! Users who may view, edit or administer a namespace have the same rights on Calico's policies in
//! it.

use integration_tests::controllers::{ControllersCluster, PATIENCE, await_that};
use integration_tests::kubernetes::ApiServer;
use serde_json::{Value, json};

use super::{manifest, on};

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

#[on(kubernetes_v3)]
fn namespace_users_access_calico_resources_according_to_their_role(
    cluster: &ControllersCluster<'_>,
) {
    let api = cluster.api;
    // kubectl reads the list of groups.
    api.await_group("projectcalico.org").unwrap();
    api.admin()
        .apply(&std::fs::read_to_string(manifest("users/calico-user-roles.yaml")).unwrap())
        .unwrap();
    aggregate(api);
    for namespace in ["mine", "others"] {
        api.namespace(namespace).unwrap();
    }
    for role in ["view", "edit", "admin"] {
        bind(api, role);
    }
    for (user, verb, allowed) in [
        ("view", "list", true),
        ("view", "watch", true),
        ("view", "create", false),
        ("view", "delete", false),
        ("edit", "get", true),
        ("edit", "create", true),
        ("edit", "patch", true),
        ("edit", "delete", true),
        ("admin", "get", true),
        ("admin", "update", true),
        ("admin", "deletecollection", true),
        ("nobody", "get", false),
    ] {
        for resource in [
            "networkpolicies",
            "networksets",
            "stagednetworkpolicies",
            "stagedkubernetesnetworkpolicies",
        ] {
            assert_eq!(
                may(api, user, verb, resource, "mine"),
                allowed,
                "{user} {verb} {resource}"
            );
            assert!(
                !may(api, user, verb, resource, "others"),
                "{user} {verb} {resource} of others"
            );
        }
    }
    // A binding in a namespace grants no right to cluster-scoped resources.
    for user in ["view", "edit", "admin"] {
        for resource in [
            "ippools",
            "ipamblocks",
            "hostendpoints",
            "globalnetworkpolicies",
            "tiers",
        ] {
            assert!(
                !may(api, user, "update", resource, "mine"),
                "{user} {resource}"
            );
        }
    }

    let policy = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy",
        "metadata": { "name": "mine", "namespace": "mine" }, "spec": { "selector": "all()" },
    });
    let file = cluster.host.dir("users").join("policy.json");
    std::fs::write(&file, policy.to_string()).unwrap();
    let file = file.display().to_string();
    let create = |user: &str| api.kubectl(&["--as", user, "create", "-f", &file]);
    assert!(create("view").unwrap_err().to_string().contains("orbidden"));
    create("edit").unwrap();
    let seen = api.kubectl(&[
        "--as",
        "view",
        "-n",
        "mine",
        "get",
        "networkpolicies.projectcalico.org",
        "-o",
        "name",
    ]);
    assert!(seen.unwrap().contains("/mine"));
    let of_others = api.kubectl(&[
        "--as",
        "admin",
        "-n",
        "others",
        "get",
        "networkpolicies.projectcalico.org",
    ]);
    assert!(of_others.unwrap_err().to_string().contains("orbidden"));
    api.kubectl(&[
        "--as",
        "admin",
        "-n",
        "mine",
        "delete",
        "networkpolicies.projectcalico.org",
        "mine",
    ])
    .unwrap();
}

/// Aggregates roles, in place of a cluster's controller.
fn aggregate(api: &ApiServer) {
    let roles = api.admin().get(ROLES).unwrap().success()["items"]
        .as_array()
        .unwrap()
        .clone();
    // Some source roles are themselves aggregated: view into edit, edit into admin.
    for name in ["view", "edit", "admin"] {
        let current = |name: &str| {
            api.admin()
                .get(&format!("{ROLES}/{name}"))
                .unwrap()
                .success()
        };
        let mut role = current(name);
        let selectors = role["aggregationRule"]["clusterRoleSelectors"]
            .as_array()
            .unwrap()
            .clone();
        let matches = |other: &Value| {
            selectors.iter().any(|selector| {
                let wanted = selector["matchLabels"].as_object().unwrap();
                wanted
                    .iter()
                    .all(|(key, value)| other["metadata"]["labels"][key] == *value)
            })
        };
        let matching = roles
            .iter()
            .filter(|other| other["metadata"]["name"] != name && matches(other));
        let rules: Vec<Value> = matching
            .map(|other| current(other["metadata"]["name"].as_str().unwrap()))
            .flat_map(|other| other["rules"].as_array().cloned().unwrap_or_default())
            .collect();
        assert!(
            rules
                .iter()
                .any(|rule| rule["apiGroups"][0] == "projectcalico.org"),
            "{name}"
        );
        role["rules"] = rules.into();
        api.admin()
            .replace(&format!("{ROLES}/{name}"), &role)
            .unwrap()
            .success();
    }
}

fn bind(api: &ApiServer, role: &str) {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": role, "namespace": "mine" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role }],
    });
    api.admin().apply_object(&binding).unwrap();
    let seen = || Ok(may(api, role, "list", "networkpolicies", "mine"));
    await_that(PATIENCE, seen).unwrap();
}

fn may(api: &ApiServer, user: &str, verb: &str, resource: &str, namespace: &str) -> bool {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": { "user": user, "resourceAttributes": {
            "verb": verb, "group": "projectcalico.org", "resource": resource,
            "namespace": namespace,
        }},
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    api.admin().create(path, &review).unwrap().success()["status"]["allowed"] == true
}
