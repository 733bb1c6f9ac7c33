//! Replays every recording of upstream on Kubernetes against our binaries on a real API server.

use anyhow::Result;
use integration_tests::golden::cluster;
use integration_tests::golden::recording::{self, Recording};
use integration_tests::golden::replay::{Lab, replay};
use integration_tests::kubernetes::{
    ApiServer, Audit, Kubernetes, Objects, Role, ServiceAccount, on_kubernetes, with_kubernetes,
};
use integration_tests::namespaces::Host;
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;

#[test]
fn replay_of_kdd1_recordings_equals_upstream() {
    replay_folder("kdd1", ApiGroup::CrdV1, Role::ours);
}

#[test]
fn replay_of_kdd3_recordings_equals_upstream() {
    replay_folder("kdd3", ApiGroup::V3, Role::ours);
}

#[test]
fn replay_of_kdd1_recordings_with_upstreams_role_equals_upstream() {
    replay_folder("kdd1", ApiGroup::CrdV1, Role::upstreams);
}

#[test]
fn replay_of_kdd3_recordings_with_upstreams_role_equals_upstream() {
    replay_folder("kdd3", ApiGroup::V3, Role::upstreams);
}

/// Calico's data are in etcd, which here is also the API server's etcd.
#[test]
fn replay_of_kubernetes_on_etcd_recording_equals_upstream() {
    with_kubernetes(|host, kubernetes| {
        let Kubernetes { api, etcd, .. } = kubernetes;
        cluster::prepare(&api).unwrap();
        let user = api.cni_user().unwrap();
        cluster::write_kubeconfig(host, &api, &user.identity).unwrap();
        let audit = api.audit().unwrap();
        let (plugins, store) = (Plugins::locate().unwrap(), Store::Etcd(etcd));
        let lab = Lab { host, plugins: &plugins, store: &store, kubernetes: Some(api.admin()) };
        let name = "k8s-on-etcd";
        replay(&recording::read("etcd", name).unwrap(), &lab).unwrap();
        assert_nothing_refused(&audit, &user);
        let used = Role::used_by(&audit.of(&user.user).unwrap());
        assert_eq!(used.to_string(), "get namespaces\nget pods\n", "this mode needs little of the role");
    });
}

/// Replays a folder as the CNI user, with exactly the given role.
fn replay_folder(folder: &str, group: ApiGroup, role: fn() -> Result<Role>) {
    on_kubernetes(|host, kubernetes| {
        let api = &kubernetes.api;
        api.define(group.api_version()).unwrap();
        cluster::prepare(api).unwrap();
        let user = api.cni_user().unwrap();
        api.grant(&user, &role().unwrap()).unwrap();
        let audit = api.audit().unwrap();
        let mut wrong = String::new();
        for name in recording::names(folder).unwrap() {
            let recording = recording::read(folder, &name).unwrap();
            if let Err(error) = replay_one(&recording, host, api, &user, group) {
                wrong += &format!("{folder}/{name}: {error:#}\n");
            }
            cluster::clear(api, group).unwrap();
        }
        assert!(wrong.is_empty(), "{wrong}");
        assert_nothing_refused(&audit, &user);
    });
}

fn replay_one(
    recording: &Recording,
    host: &Host,
    api: &ApiServer,
    user: &ServiceAccount,
    group: ApiGroup,
) -> Result<()> {
    host.reinstalled(|host| {
        let kubeconfig = cluster::write_kubeconfig(host, api, &user.identity)?;
        let store = Store::Kubernetes(Objects::new(api.admin(), group, kubeconfig));
        replay(recording, &Lab { host, plugins: &Plugins::locate()?, store: &store, kubernetes: Some(api.admin()) })
    })
}

/// A request that is denied without an effect on the result is superfluous.
fn assert_nothing_refused(audit: &Audit, user: &ServiceAccount) {
    let mut requests = audit.of(&user.user).unwrap();
    requests.retain(|request| matches!(request.code, Some(401 | 403)));
    assert!(requests.is_empty(), "{requests:#?}");
}
