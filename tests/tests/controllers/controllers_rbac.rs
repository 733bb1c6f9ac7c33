//! The roles in `deploy/rbac`: the role of kube-controllers grants the permissions that its work
//! needs, and the roles for users grant access to Calico's resources to users who may view, edit or
//! administer a namespace. The role of `deploy/components/migrate-to-v3` grants those of a
//! migration.
//!
//! The tests withhold most permissions, to show that each of these is needed, see
//! `withheld_role.rs`.

mod migration;
mod optional;
mod users;
mod withheld_role;
mod workload;

use std::collections::BTreeSet;
use std::path::PathBuf;

use integration_tests::Place;
use integration_tests::controllers::{ControllersCluster, on_prepared};
use integration_tests::kubernetes::{ApiServer, Permission, Role, ServiceAccount};
use integration_tests::manifests::deploy;
pub(crate) use integration_tests::on;
use libcalico::kubernetes::{ApiGroup, request_kind};

use withheld_role::WithheldRole;
use workload::Workload;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "calico-kube-controllers";

/// Permissions that a run need not use, for example because the cluster has no KubeVirt.
const OCCASIONAL: [&str; 11] = [
    "get hostendpoints",
    "update ipamhandles",
    "virtualmachineinstances",
    "virtualmachines",
    "daemonsets",
    "networkpolicies",
    "globalnetworkpolicies",
    "stagednetworkpolicies",
    "stagedglobalnetworkpolicies",
    "tiers/status",
    "ippools/status",
];

/// Rights without which an optional controller is not started.
const OF_OPTIONAL_CONTROLLERS: [&str; 3] = [
    "update services/status",
    "create hostendpoints",
    "delete globalnetworkpolicies",
];

/// Runs a test on servers whose roles it changes.
pub(crate) fn on(place: Place, test: fn(&ControllersCluster<'_>)) {
    on_prepared("definitions", place, |_| Ok(()), test);
}

fn manifest(name: &str) -> PathBuf {
    deploy("rbac").join(name)
}

/// Creates the account with the rights of all its roles in one role.
fn account(api: &ApiServer, manifests: &[PathBuf], role: &Role) -> ServiceAccount {
    let account = api.account_of(NAMESPACE, NAME, manifests).unwrap();
    api.cluster_role(NAME, &role.rules()).unwrap();
    for optional in ["load-balancer", "policy-names", "host-endpoints"] {
        // With etcd there is no role of host endpoints.
        let binding =
            format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{NAME}-{optional}");
        assert!(
            matches!(api.admin().delete(&binding).unwrap().code, 200 | 404),
            "{optional}"
        );
    }
    api.await_granted(&account, role).unwrap();
    account
}

fn assert_every_permission_is_used_and_needed(cluster: &ControllersCluster<'_>) {
    let group = cluster.group;
    let (manifests, groups) = match group {
        None => {
            let of_etcd = manifest("etcd/calico-kube-controllers.yaml");
            (
                vec![of_etcd],
                vec!["", "networking.k8s.io", "apps", "kubevirt.io"],
            )
        }
        Some(group) => {
            let own = group.api_version().split('/').next().unwrap_or_default();
            (
                Role::manifests_of_controllers().into(),
                vec!["", "apps", "kubevirt.io", own],
            )
        }
    };
    let role = Role::of_manifests(&manifests).unwrap().of_groups(&groups);
    let account = account(cluster.api, &manifests, &role);
    let setup = cluster.setup_with(&account.kubeconfig);
    let mut of_lease = vec!["get", "update"];
    // The first run has to create the Lease, and waits half a minute then. Both groups have the
    // same role.
    if group != Some(ApiGroup::V3) {
        cluster.remove(
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-kube-controllers",
        );
        of_lease.push("create");
    }
    let audit = cluster.api.audit().unwrap();
    Workload {
        cluster,
        meanwhile: &|| (),
    }
    .run(setup.clone());

    let requests = audit.of(&account.user).unwrap();
    let refused: Vec<_> = requests
        .iter()
        .filter(|request| request.code == Some(403))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let mut used = Role::used_by(&requests);
    let is_lease = |permission: &Permission| permission.group == "coordination.k8s.io";
    let lease: BTreeSet<String> = used
        .0
        .extract_if(.., |one| is_lease(one))
        .map(|one| one.verb)
        .collect();
    assert_eq!(
        lease,
        BTreeSet::from_iter(of_lease.into_iter().map(str::to_owned))
    );
    let more = Role(used.0.difference(&role.0).cloned().collect());
    assert_eq!(more, Role::default(), "used and not granted:\n{more}");
    let mut unused = Role(role.0.difference(&used.0).cloned().collect());
    unused.0.retain(|permission| !is_occasional(permission));
    assert_eq!(unused, Role::default(), "granted and not used:\n{unused}");

    for withheld in withheld_together(group, &used) {
        cluster.clear();
        let withheld_role = WithheldRole::new(cluster.api, &account, &used, withheld);
        Workload {
            cluster,
            meanwhile: &|| withheld_role.grant_requested(),
        }
        .run(setup.clone());
        let not_needed = withheld_role.not_requested();
        assert_eq!(
            not_needed,
            Role::default(),
            "all was done without these:\n{not_needed}"
        );
    }
}

fn is_occasional(Permission { resource, verb, .. }: &Permission) -> bool {
    OCCASIONAL.contains(&resource.as_str())
        || OCCASIONAL.contains(&format!("{verb} {resource}").as_str())
}

/// Returns the permissions to withhold in each run. `get` is withheld separately, so that a list
/// cannot replace it.
fn withheld_together(group: Option<ApiGroup>, used: &Role) -> Vec<Role> {
    let that = |is_it: &dyn Fn(&Permission) -> bool| {
        Role(used.0.iter().filter(|one| is_it(one)).cloned().collect())
    };
    let is_optional = |one: &Permission| {
        OF_OPTIONAL_CONTROLLERS.contains(&format!("{} {}", one.verb, one.resource).as_str())
    };
    let of_verbs = |verbs: &[&str]| {
        that(&|one| verbs.contains(&one.verb.as_str()) && !is_occasional(one) && !is_optional(one))
    };
    if group == Some(ApiGroup::V3) {
        let of_tiers = |one: &Permission| {
            one.resource == "tiers" && matches!(one.verb.as_str(), "list" | "watch")
        };
        return vec![that(&|one| {
            one.verb == "patch" || one.resource.ends_with("policies") || of_tiers(one)
        })];
    }
    let verbs: [&[&str]; 4] = [
        &["get"],
        &["list", "watch"],
        &["create"],
        &["update", "delete"],
    ];
    verbs.map(of_verbs).into()
}

/// Shows SEC-87.
#[on(kubernetes_v1)]
fn controllers_need_and_use_every_permission_in_crd_v1(cluster: &ControllersCluster<'_>) {
    assert_every_permission_is_used_and_needed(cluster);
}

/// Shows SEC-87.
#[on(kubernetes_v3)]
fn controllers_need_and_use_every_permission_in_v3(cluster: &ControllersCluster<'_>) {
    assert_every_permission_is_used_and_needed(cluster);
}

/// Shows SEC-87.
#[on(etcd)]
fn controllers_need_and_use_every_permission_with_etcd(cluster: &ControllersCluster<'_>) {
    assert_every_permission_is_used_and_needed(cluster);
}

/// Metrics count requests about other kinds as `other`.
#[test]
fn metrics_of_requests_have_each_kind_of_the_roles() {
    let [own, of_host_endpoints] = Role::manifests_of_controllers();
    let role = Role::of_manifests(&[
        own,
        of_host_endpoints,
        manifest("etcd/calico-kube-controllers.yaml"),
    ])
    .unwrap();
    for Permission {
        group, resource, ..
    } in &role.0
    {
        let version = if group.is_empty() {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{group}/v1")
        };
        let (plural, part) = resource.split_once('/').unwrap_or((resource.as_str(), ""));
        let (_, kind) = request_kind("GET", &format!("{version}/{plural}/name/{part}"), "");
        assert_eq!(kind, resource);
    }
}

#[on(kubernetes_v1)]
fn replica_without_lease_and_event_permissions_runs_and_warns_once(
    cluster: &ControllersCluster<'_>,
) {
    let api = cluster.api;
    let mut role = Role::of_manifests(&Role::manifests_of_controllers()).unwrap();
    role.0.retain(|permission| permission.resource != "events");
    let account = api.service_account(NAMESPACE, NAME).unwrap();
    api.cluster_role(NAME, &role.rules()).unwrap();
    api.bind(&account, NAME).unwrap();
    let setup = cluster.setup_with(&account.kubeconfig);
    let log = Workload {
        cluster,
        meanwhile: &|| (),
    }
    .run(setup);
    // At most one such line for each restart of the controllers, because the workload takes less
    // than ten minutes.
    let starts = log.matches("] kube-controllers/run::lifecycle").count();
    let warnings = log
        .matches("posting no more Events in namespace default")
        .count();
    assert!(warnings > 0 && warnings <= starts, "{log}");
    // A warning about a release of addresses is not about the Lease.
    let is_about_lease = |line: &&str| line.contains("Lease") || line.contains(" lease=");
    let lines = log
        .lines()
        .filter(|line| line.contains("[WARNING]"))
        .filter(is_about_lease);
    assert_eq!(lines.count(), 1, "{log}");
}
