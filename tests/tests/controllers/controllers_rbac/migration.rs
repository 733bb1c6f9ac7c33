//! The role of `deploy/components/migrate-to-v3`: a migration uses and needs each of its
//! permissions, and without the component kube-controllers have no right to delete definitions.

mod populated_cluster;

use integration_tests::controllers::{Controllers, ControllersCluster, PATIENCE, await_that};
use integration_tests::kubernetes::{Access, ApiServer, Permission, Role, on_kubernetes};
use integration_tests::manifests::{deploy, kustomizers};
use integration_tests::skip::skipped;
use integration_tests::{Place, on};
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{cluster_information, definition_name, moved_kinds};
use serde_json::{Value, json};
use ureq::http::Method;

use super::NAMESPACE;
use populated_cluster::{NAME, POD, PopulatedCluster, REFUSED, Rights, is_role_missing, manifest};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// Number of permissions that are withheld together. The message of the object names all of them.
const WITHHELD: usize = 12;

/// Runs a test on servers of its own, whose definitions and APIServices it changes.
fn on(place: Place, test: fn(&ControllersCluster<'_>)) {
    on_kubernetes(|host, servers| {
        test(&ControllersCluster::new(host, &servers, place.group()));
    });
}

/// Returns true for a permission that this migration need not use: the creation of an APIService,
/// which is needed only if another program has deleted that of the API server, and those for which
/// only Calico's webhooks ask.
fn is_occasional(Permission { resource, verb, .. }: &Permission) -> bool {
    (resource == "apiservices" && verb == "create") || resource.starts_with("tier.")
}

fn base_role() -> Role {
    Role::of_manifests(&Role::manifests_of_controllers()).unwrap()
}

/// Shows SEC-118.
#[on(kubernetes_v1)]
fn every_permission_of_the_migration_is_used_and_needed(cluster: &ControllersCluster<'_>) {
    if let Err(missing) = kustomizers() {
        return skipped(&missing.to_string());
    }
    let account = cluster
        .api
        .account_of(NAMESPACE, super::NAME, &Role::manifests_of_controllers())
        .unwrap();
    let populated = PopulatedCluster::new(cluster);
    let setup = cluster.setup_with(&account.kubeconfig);
    let setup = setup.env("POD_NAME", POD).env("POD_NAMESPACE", NAMESPACE);
    let mut controllers = setup.start(cluster.host, "controllers").unwrap();
    populated.until(&controllers, "v1 is initialized", || {
        !cluster
            .calico("kubecontrollersconfigurations", "default")
            .is_null()
    });
    assert!(controllers.terminate().unwrap().success());
    populated.populate();
    populated.create_migration(Some("first"));
    controllers.restart().unwrap();
    populated.until(&controllers, "the role is missing", is_role_missing);
    controllers.await_log(NAME, 1).unwrap();
    assert!(controllers.terminate().unwrap().success());

    let rights = Rights::read();
    withhold(&populated, &rights, &mut controllers);
    let audit = cluster.api.audit().unwrap();
    abort_under_the_lock(&populated, &mut controllers);
    migrate(&populated, &mut controllers);

    let requests = audit.of(&account.user).unwrap();
    let refused: Vec<_> = requests
        .iter()
        .filter(|request| request.code == Some(403))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let mut used = Role::used_by(&requests);
    used.0
        .retain(|permission| permission.group != "coordination.k8s.io");
    let (base, all) = (base_role(), rights.all());
    let more = Role(
        used.0
            .iter()
            .filter(|one| !base.0.contains(one) && !all.0.contains(one))
            .cloned()
            .collect(),
    );
    assert_eq!(more, Role::default(), "used and not granted:\n{more}");
    let mut unused = Role(all.0.difference(&used.0).cloned().collect());
    unused.0.retain(|permission| !is_occasional(permission));
    assert_eq!(unused, Role::default(), "granted and not used:\n{unused}");
}

/// Withholds the permissions of the migration, some at a time, and waits until the object names
/// them. In the end it grants all of them.
fn withhold(populated: &PopulatedCluster<'_>, rights: &Rights, controllers: &mut Controllers) {
    let (admin, base) = (populated.cluster.api.admin(), base_role());
    // The base role grants some permissions too. Without those on the object, kube-controllers
    // report nothing.
    let is_withheld = |one: &&Permission| {
        !base.0.contains(*one)
            && !is_occasional(one)
            && !one.resource.starts_with("datastoremigrations")
    };
    let list = |role: &Role| {
        role.0
            .iter()
            .filter(is_withheld)
            .cloned()
            .collect::<Vec<Permission>>()
    };
    // kube-controllers read the APIService before they ask for permissions.
    let (first, in_cluster): (Vec<_>, Vec<_>) = list(&rights.cluster)
        .into_iter()
        .partition(|one| one.resource == "apiservices" && one.verb == "get");
    let in_namespace = list(&rights.namespace);
    assert!(!first.is_empty() && !in_cluster.is_empty() && !in_namespace.is_empty());
    admin.apply(&manifest()).unwrap();
    let mut has_started = false;
    for some in first
        .chunks(1)
        .chain(in_cluster.chunks(WITHHELD))
        .chain(in_namespace.chunks(WITHHELD))
    {
        let granted = |role: &Role| {
            Role(
                role.0
                    .iter()
                    .filter(|one| !some.contains(one))
                    .cloned()
                    .collect(),
            )
            .rules()
        };
        // In this order, the account never has all permissions.
        admin
            .apply_object(&role("Role", &granted(&rights.namespace)))
            .unwrap();
        admin
            .apply_object(&role("ClusterRole", &granted(&rights.cluster)))
            .unwrap();
        // A new leader asks for its rights at once, and a leader that waits for them after ten
        // seconds or more.
        if has_started {
            controllers.end_and_restart();
        } else {
            controllers.restart().unwrap();
            has_started = true;
        }
        let are_named = || {
            let message = populated.message();
            let is_named = |Permission { verb, resource, .. }: &Permission| {
                let refusal = format!("cannot {verb} resource \"{resource}\"");
                message.contains(&format!("{verb} {resource}")) || message.contains(&refusal)
            };
            message.starts_with("Waiting for migration RBAC permissions")
                && some.iter().all(is_named)
        };
        populated.until(controllers, &format!("{some:?} are missing"), are_named);
    }
    admin.apply(&manifest()).unwrap();
}

fn role(kind: &str, rules: &Value) -> Value {
    let namespace = (kind == "Role").then_some(NAMESPACE);
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": { "name": NAME, "namespace": namespace }, "rules": rules,
    })
}

/// Makes two dry runs, and a migration that fails under the lock and is then aborted.
fn abort_under_the_lock(populated: &PopulatedCluster<'_>, controllers: &mut Controllers) {
    // A copy keeps finalizers. An abort removes them before it deletes the copy.
    populated.set_finalizers(&json!(["example.com/held"]));
    let report = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/calico-migration-v1-to-v3");
    populated.until(controllers, "a dry run is made", || {
        populated.has_made_dry_run("first")
    });
    assert!(populated.cluster.get(&report)["data"].is_object());
    populated.annotate_dry_run(Some("second"));
    controllers.end_and_restart();
    populated.until(controllers, "another dry run is made", || {
        populated.has_made_dry_run("second")
    });
    populated.refuse_under_the_lock();
    populated.annotate_dry_run(None);
    controllers.end_and_restart();
    populated.until(controllers, "v3 refuses an object under the lock", || {
        let message = populated.message();
        message.contains(REFUSED) && message.contains("the datastore is not locked")
    });
    populated.delete_migration();
    controllers.end_and_restart();
    populated.until(controllers, "the migration is aborted", || {
        populated.is_gone()
    });
    for resource in moved_kinds().into_iter().map(|moved| moved.v3) {
        assert!(populated.list(resource).is_empty(), "{}", resource.kind);
    }
    let information = |group| {
        populated
            .cluster
            .get(&cluster_information(group).url_path())
    };
    assert_eq!(information(ApiGroup::CrdV1)["spec"]["datastoreReady"], true);
    assert_eq!(information(ApiGroup::V3)["code"], 404);
    populated.set_finalizers(&Value::Null);
}

/// Makes a migration that v3 refuses before the lock, and completes it after the refused object is
/// deleted in v1.
fn migrate(populated: &PopulatedCluster<'_>, controllers: &mut Controllers) {
    populated.create_ignored();
    controllers.end_and_restart();
    controllers
        .await_log("migration: ignored; only an object", 1)
        .unwrap();
    assert!(controllers.terminate().unwrap().success());
    populated.refuse_before_the_lock();
    populated.aggregate();
    populated.create_migration(None);
    controllers.restart().unwrap();
    populated.until(controllers, "v3 refuses an object before the lock", || {
        populated.message().contains(REFUSED)
    });
    assert!(
        populated.is_aggregated(),
        "the former server serves v3 again"
    );
    assert!(controllers.terminate().unwrap().success());

    populated
        .cluster
        .remove(&populated.cluster.path("caliconodestatuses", REFUSED));
    controllers.restart().unwrap();
    populated.until(controllers, "v3 is open", || {
        populated.status()["phase"] == "Converged"
    });
    assert_eq!(controllers.ended().unwrap().code(), Some(1));
    controllers.restart().unwrap();
    populated.until(controllers, "the migration is complete", || {
        populated.status()["phase"] == "Complete"
    });
    populated.delete_migration();
    controllers.end_and_restart();
    populated.until(controllers, "v1 is deleted", || populated.is_gone());
    let of_v1 = |name: &str| name.ends_with(".crd.projectcalico.org");
    populated.until(controllers, "no definition of v1 is left", || {
        let all = populated.cluster.get(DEFINITIONS);
        let mut names = all["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["metadata"]["name"].as_str().unwrap());
        !names.any(of_v1)
    });
    assert!(controllers.terminate().unwrap().success());
}

#[on(kubernetes_v1)]
fn role_of_the_migration_deletes_only_definitions_of_v1_and_one_api_service(
    cluster: &ControllersCluster<'_>,
) {
    let api = cluster.api;
    api.define_for_migration().unwrap();
    let account = api
        .account_of(NAMESPACE, super::NAME, &Role::manifests_of_controllers())
        .unwrap();
    api.admin().apply(&manifest()).unwrap();
    let delete = |path: &str| {
        account.client.request(
            Method::DELETE,
            path,
            "application/json",
            r#"{"dryRun":["All"]}"#,
        )
    };
    let code = |path: &str| delete(path).map(|answer| answer.code);
    let definition = |name: &str| format!("{DEFINITIONS}/{name}");
    let of_v1 = definition("tiers.crd.projectcalico.org");
    await_that(PATIENCE, || Ok(code(&of_v1)? == 200)).unwrap();
    for moved in moved_kinds() {
        let names = [moved.v1, moved.v3].map(|resource| definition_name(&resource));
        assert_eq!(
            names.map(|name| code(&definition(&name)).unwrap()),
            [200, 403],
            "{}",
            moved.v3.kind
        );
    }
    let of_migrations = definition("datastoremigrations.migration.projectcalico.org");
    assert_eq!(code(&of_migrations).unwrap(), 403);
    api.await_group(ApiGroup::V3.name()).unwrap();
    let services = ["v3.projectcalico.org", "v1.apps"]
        .map(|name| code(&format!("{API_SERVICES}/{name}")).unwrap());
    assert_eq!(services, [200, 403]);
    assert!(!may(
        api,
        &account.user,
        "update",
        "customresourcedefinitions"
    ));
    assert!(!may(
        api,
        &account.user,
        "create",
        "customresourcedefinitions"
    ));
}

fn may(api: &ApiServer, user: &str, verb: &str, resource: &str) -> bool {
    api.allows(
        user,
        Access {
            verb,
            group: "apiextensions.k8s.io",
            resource,
        },
    )
    .unwrap()
}

#[test]
fn controllers_without_the_component_can_neither_migrate_nor_delete_definitions() {
    let migrates = [
        "migration.projectcalico.org",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
    ];
    let role =
        Role::of_manifests(&[deploy("rbac/kubernetes/calico-kube-controllers.yaml")]).unwrap();
    assert_eq!(role.of_groups(&migrates), Role::default());
    let writes = |one: &&Permission| {
        one.resource.ends_with("policies") && one.verb != "list" && one.verb != "get"
    };
    let of_v3 = role.of_groups(&[ApiGroup::V3.name()]);
    assert_eq!(
        of_v3.0.iter().filter(writes).collect::<Vec<_>>(),
        Vec::<&Permission>::new()
    );
}
