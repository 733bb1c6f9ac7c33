//! The roles in `deploy/rbac`: the role of kube-controllers grants the permissions that its work
//! needs, and the roles for users grant access to Calico's resources to users who may view, edit or
//! administer a namespace. The role of `deploy/components/migrate-to-v3` grants those of a
//! migration.
//!
//! The tests withhold most permissions, to show that each of these is needed, see `grudging.rs`.
//! They start in the order of their names, so the longest ones have the first names.

mod component_migrate_to_v3;
mod grudging;
mod life;
mod optional;
mod users;

use std::collections::BTreeSet;
use std::path::PathBuf;

use integration_tests::controllers::World;
use integration_tests::kubernetes::{ApiServer, Permission, Role, ServiceAccount, with_kubernetes};
use integration_tests::manifests::deploy;
use libcalico::kubernetes::{ApiGroup, request_kind};

use grudging::Grudging;
use life::Life;

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

fn every_permission_is_used_and_needed(group: Option<ApiGroup>) {
    with_kubernetes(|host, servers| {
        let world = World::new(&servers, group);
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
        let account = account(world.api, &manifests, &role);
        let setup = world
            .setup()
            .env("KUBECONFIG", account.kubeconfig.display().to_string());
        let mut of_lease = vec!["get", "update"];
        // The first run has to create the Lease, and waits half a minute then. Both groups have the
        // same role.
        if group != Some(ApiGroup::V3) {
            world.remove("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-kube-controllers");
            of_lease.push("create");
        }
        let audit = world.api.audit().unwrap();
        Life {
            host,
            world,
            meanwhile: &|| (),
        }
        .live(setup.clone());

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
            world.clear();
            let grudging = Grudging::new(world.api, &account, &used, withheld);
            Life {
                host,
                world,
                meanwhile: &|| grudging.grant_what_is_missed(),
            }
            .live(setup.clone());
            let not_missed = grudging.not_missed();
            assert_eq!(
                not_missed,
                Role::default(),
                "all was done without these:\n{not_missed}"
            );
        }
    });
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

#[test]
fn controllers_need_and_use_every_permission_in_crd_v1() {
    every_permission_is_used_and_needed(Some(ApiGroup::CrdV1));
}

#[test]
fn controllers_need_and_use_every_permission_in_v3() {
    every_permission_is_used_and_needed(Some(ApiGroup::V3));
}

#[test]
fn controllers_need_and_use_every_permission_with_etcd() {
    every_permission_is_used_and_needed(None);
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

#[test]
fn replica_without_lease_and_event_permissions_runs_and_warns_once() {
    with_kubernetes(|host, servers| {
        let world = World::new(&servers, Some(ApiGroup::CrdV1));
        let api = world.api;
        let mut role = Role::of_manifests(&Role::manifests_of_controllers()).unwrap();
        role.0.retain(|permission| permission.resource != "events");
        let account = api.service_account(NAMESPACE, NAME).unwrap();
        api.cluster_role(NAME, &role.rules()).unwrap();
        api.bind(&account, NAME).unwrap();
        let setup = world
            .setup()
            .env("KUBECONFIG", account.kubeconfig.display().to_string());
        let log = Life {
            host,
            world,
            meanwhile: &|| (),
        }
        .live(setup);
        // At most one such line for each restart of the controllers, because a life is shorter than
        // ten minutes.
        let lives = log.matches("] kube-controllers/run::lifecycle").count();
        let told = log
            .matches("posting no more Events in namespace default")
            .count();
        assert!(told > 0 && told <= lives, "{log}");
        // A warning about a release of addresses is not about the Lease.
        let is_about_lease = |line: &&str| line.contains("Lease") || line.contains(" lease=");
        let lines = log
            .lines()
            .filter(|line| line.contains("[WARNING]"))
            .filter(is_about_lease);
        assert_eq!(lines.count(), 1, "{log}");
    });
}
