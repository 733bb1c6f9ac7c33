//! Replays every recording of upstream on Kubernetes against our binaries on a real API server.

use anyhow::Result;
use integration_tests::golden::cluster;
use integration_tests::golden::recording;
use integration_tests::golden::replay::{Target, replay};
use integration_tests::kubernetes::{
    ApiServer, ENDPOINT, Kubernetes, Objects, Role, on_kubernetes,
};
use integration_tests::namespaces::Host;
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;

#[test]
fn replay_of_kdd1_recordings_with_each_role_equals_upstream() {
    replay_folder("kdd1", ApiGroup::CrdV1);
}

#[test]
fn replay_of_kdd3_recordings_with_each_role_equals_upstream() {
    replay_folder("kdd3", ApiGroup::V3);
}

/// Each call has the token of its node, which `deploy/components/node-restriction` limits.
#[test]
fn replay_of_kdd1_recordings_with_node_restriction_equals_upstream() {
    replay_folder_restricted("kdd1", ApiGroup::CrdV1);
}

#[test]
fn replay_of_kdd3_recordings_with_node_restriction_equals_upstream() {
    replay_folder_restricted("kdd3", ApiGroup::V3);
}

/// Calico's data are in etcd, which here is also the API server's etcd.
#[test]
fn replay_of_kubernetes_on_etcd_recording_equals_upstream() {
    on_kubernetes(|host, Kubernetes { api, etcd, .. }| {
        cluster::prepare(&api).unwrap();
        let user = api.cni_user().unwrap();
        cluster::write_kubeconfig(host, &api, &user.identity).unwrap();
        let audit = api.audit().unwrap();
        let (plugins, store) = (Plugins::locate().unwrap(), Store::Etcd(etcd));
        let target = Target {
            host,
            plugins: &plugins,
            store: &store,
            kubernetes: Some(api.admin()),
        };
        let name = "k8s-on-etcd";
        replay(&recording::read("etcd", name).unwrap(), &target).unwrap();
        audit.assert_nothing_refused(&user.user);
        let used = Role::used_by(&audit.of(&user.user).unwrap());
        assert_eq!(
            used.to_string(),
            "get namespaces\nget pods\n",
            "this mode needs little of the role"
        );
    });
}

/// Replays a folder as the CNI user, with exactly our role and then with exactly upstream's. In
/// this order, the second role has permissions that the first one lacks, so the end of the wait for
/// the authorizer is certain.
fn replay_folder(folder: &str, group: ApiGroup) {
    on_kubernetes(|host, kubernetes| {
        let api = &kubernetes.api;
        api.define(group.api_version()).unwrap();
        cluster::prepare(api).unwrap();
        let user = api.cni_user().unwrap();
        for role in [Role::ours(), Role::upstreams()] {
            api.grant(&user, &role.unwrap()).unwrap();
            replay_all(folder, group, host, api, &user.user, |host| {
                let kubeconfig = cluster::write_kubeconfig(host, api, &user.identity)?;
                Ok(Objects::new(api.admin(), group, kubeconfig))
            });
        }
    });
}

/// Replays a folder with the tokens of `components/node-restriction`.
fn replay_folder_restricted(folder: &str, group: ApiGroup) {
    on_kubernetes(|host, kubernetes| {
        let api = &kubernetes.api;
        api.define(group.api_version()).unwrap();
        let (account, tokens) = api.restrict_nodes(&cluster::NODES).unwrap();
        // Adds the ranges of the nodes, which cannot be removed afterwards.
        cluster::prepare(api).unwrap();
        api.await_node_restriction(group, &tokens[cluster::NODES[0]])
            .unwrap();
        replay_all(folder, group, host, api, &account.user, |_| {
            api.objects_of_nodes(group, ENDPOINT, &tokens)
        });
    });
}

/// Replays a folder with the kubeconfigs that `objects` writes to each new host. Expects that the
/// server refuses no request of `user`, the user in these kubeconfigs.
fn replay_all(
    folder: &str,
    group: ApiGroup,
    host: &Host,
    api: &ApiServer,
    user: &str,
    objects: impl Fn(&Host) -> Result<Objects> + Sync,
) {
    let audit = api.audit().unwrap();
    let mut wrong = String::new();
    for name in recording::names(folder).unwrap() {
        let recording = recording::read(folder, &name).unwrap();
        let replayed = host.reinstalled(|host| {
            let store = Store::Kubernetes(objects(host)?);
            let plugins = Plugins::locate()?;
            let target = Target {
                host,
                plugins: &plugins,
                store: &store,
                kubernetes: Some(api.admin()),
            };
            replay(&recording, &target)
        });
        if let Err(error) = replayed {
            wrong += &format!("{folder}/{name}: {error:#}\n");
        }
        cluster::clear(api, group).unwrap();
    }
    assert!(wrong.is_empty(), "{wrong}");
    audit.assert_nothing_refused(user);
}
