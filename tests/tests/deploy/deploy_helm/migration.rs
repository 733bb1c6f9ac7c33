//! The value for a migration to `projectcalico.org/v3`.

use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{ApiServer, Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{NAMESPACE, compose, template};
use serde_json::json;

use super::options::set;
use super::released::{Helm, chart};
use super::same::assert_equal;
use super::{CONFIG, COPY, can_render};

const VALUE: &str = "kubeControllers.migrateToV3=true";
const OF_MIGRATIONS: &str =
    "CustomResourceDefinition.apiextensions.k8s.io datastoremigrations.migration.projectcalico.org";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const OF_V1: &str = ".crd.projectcalico.org";

/// With kustomize the definitions of v3 are not part of the component.
#[test]
fn migration_value_reproduces_the_component_and_the_definitions_of_v3() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let folders = ["overlays/kubernetes-v1", "crds/v3"];
    let objects = compose(directory.path(), &folders, &["components/migrate-to-v3"]).unwrap();
    assert_equal(&objects, &["--set", VALUE]);
    let without = set(&[VALUE, "crds.install=false"]);
    assert!(
        !without
            .keys()
            .any(|name| name.starts_with("CustomResourceDefinition"))
    );
}

#[test]
fn migration_value_keeps_a_group_that_is_set_to_v3() {
    if !can_render() {
        return;
    }
    let objects = set(&[VALUE, "apiGroup=projectcalico.org/v3"]);
    for map in [CONFIG, COPY] {
        assert_eq!(
            objects[map]["data"]["calico_api_group"], "projectcalico.org/v3",
            "{map}"
        );
    }
    assert!(!objects.keys().any(|name| name.ends_with(OF_V1)));
    assert!(objects.contains_key(OF_MIGRATIONS));
}

/// The deletion of that definition would abort a migration.
#[test]
fn definition_of_migrations_is_kept_whatever_crds_keep_is() {
    if !can_render() {
        return;
    }
    let objects = set(&[VALUE, "crds.keep=false", "rbac.keep=false"]);
    for (name, object) in &objects {
        let expected =
            (name == OF_MIGRATIONS).then(|| json!({ "helm.sh/resource-policy": "keep" }));
        assert_eq!(
            object["metadata"].get("annotations"),
            expected.as_ref(),
            "{name}"
        );
    }
}

#[test]
fn migration_without_the_kubernetes_datastore_or_kube_controllers_is_refused() {
    if !can_render() {
        return;
    }
    for value in ["datastore=etcd", "kubeControllers.enabled=false"] {
        let error = template(&["--set", VALUE, "--set", value])
            .unwrap_err()
            .to_string();
        assert!(error.contains(VALUE) && error.contains(value), "{error}");
    }
}

/// As with `kubeControllers.hostNetwork`, which OpenShift's constraints must permit.
#[test]
fn migration_value_gives_kube_controllers_the_constraints_of_the_host_network() {
    if !can_render() {
        return;
    }
    let objects = set(&[VALUE, "namespace.openshift=true"]);
    let binding = "RoleBinding.rbac.authorization.k8s.io kube-system/calico-kube-controllers-scc";
    assert_eq!(
        objects[binding]["roleRef"]["name"],
        "system:openshift:scc:privileged"
    );
}

/// Returns the names of the definitions of v1.
fn definitions_of_v1(api: &ApiServer) -> Vec<String> {
    let all = api.admin().get(DEFINITIONS).unwrap().success();
    let names = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["metadata"]["name"].as_str());
    names
        .filter(|name| name.ends_with(OF_V1))
        .map(str::to_owned)
        .collect()
}

/// The programs would use a v1 without objects.
#[test]
fn release_after_a_migration_does_not_define_v1_again() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        api.namespace(NAMESPACE).unwrap();
        let helm = Helm::new(api).unwrap();
        helm.run(&["install", "calico-cni", &chart(), "--set", VALUE])
            .unwrap();
        let upgrade = |value: &str| helm.run(&["upgrade", "calico-cni", &chart(), "--set", value]);
        upgrade(VALUE).unwrap();
        let names = definitions_of_v1(api);
        assert_eq!(names.len(), 14);
        for name in names {
            api.admin()
                .delete(&format!("{DEFINITIONS}/{name}"))
                .unwrap()
                .success();
        }
        await_that(PATIENCE, || Ok(definitions_of_v1(api).is_empty())).unwrap();

        let error = upgrade(VALUE).unwrap_err().to_string();
        assert!(
            error.contains("the cluster has only projectcalico.org/v3"),
            "{error}"
        );
        upgrade(&format!("{VALUE},apiGroup=projectcalico.org/v3")).unwrap();
        upgrade("apiGroup=projectcalico.org/v3").unwrap();
        assert_eq!(definitions_of_v1(api), Vec::<String>::new());
    });
}
