//! Replays every recording of upstream on Kubernetes against our binaries on a real API server.

use anyhow::Result;
use integration_tests::etcd::Etcd;
use integration_tests::golden::cluster;
use integration_tests::golden::recording;
use integration_tests::golden::replay::{Target, replay};
use integration_tests::kubernetes::node_restriction::{NodeTokens, PLUGINS};
use integration_tests::kubernetes::{ApiServer, ENDPOINT, Objects, Role, on_prepared_kubernetes};
use integration_tests::manifests::NAMESPACE;
use integration_tests::namespaces::Host;
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;

const GROUPS: [ApiGroup; 2] = [ApiGroup::CrdV1, ApiGroup::V3];

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
    on(|host, api| {
        let user = api.cni_user().unwrap();
        cluster::write_kubeconfig(host, api, &user.identity).unwrap();
        let audit = api.audit().unwrap();
        let store = Store::Etcd(Etcd::of_control_plane(host));
        let plugins = Plugins::locate().unwrap();
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

/// Runs a test on an API server with both groups, and with the objects of the recordings.
fn on(test: impl FnOnce(&Host, &ApiServer) + Send) {
    let prepare = |api: &ApiServer| {
        define(api)?;
        cluster::prepare(api)?;
        api.cni_user().map(drop)
    };
    on_prepared_kubernetes("recorded objects", prepare, |host, servers| {
        test(host, &servers.api);
    });
}

fn define(api: &ApiServer) -> Result<()> {
    GROUPS
        .into_iter()
        .try_for_each(|group| api.define(group.api_version()))
}

/// Replays a folder as the CNI user, with exactly our role and then with exactly upstream's. In
/// this order, the second role has permissions that the first one lacks, so the end of the wait for
/// the authorizer is certain.
fn replay_folder(folder: &str, group: ApiGroup) {
    on(|host, api| {
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
    let prepare = |api: &ApiServer| {
        define(api)?;
        let (_, tokens) = api.restrict_nodes(&cluster::NODES)?;
        // Adds the ranges of the nodes, which cannot be removed afterwards.
        cluster::prepare(api)?;
        GROUPS
            .into_iter()
            .try_for_each(|group| api.await_node_restriction(group, &tokens[cluster::NODES[0]]))
    };
    on_prepared_kubernetes("node restriction", prepare, |host, servers| {
        let api = &servers.api;
        let account = api.service_account(NAMESPACE, PLUGINS).unwrap();
        let token = |node: &str| (node.to_owned(), api.token_of_node(node).unwrap());
        let tokens: NodeTokens = cluster::NODES.into_iter().map(token).collect();
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
