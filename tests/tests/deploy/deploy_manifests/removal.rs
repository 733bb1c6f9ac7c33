//! The files that a removal deletes, each deleted while a pod runs. The pod can still be deleted.

use std::fs;
use std::path::PathBuf;

use integration_tests::cluster::{self, Cluster, Pod, on_installation};
use integration_tests::command::run;
use integration_tests::content::Content;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::etcd::Etcd;
use integration_tests::journal::journal_entries;
use integration_tests::kernel;
use integration_tests::kubernetes::{Access, ApiServer, Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{
    Objects, changes, deploy, hashed_names, kustomize, parse, stored,
};
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::{BUDGET, COPY, DAEMON_SET, DEPLOYMENT, can_render};

/// A permission of the plugins' account.
const READS_PODS: Access<'static> = Access {
    verb: "get",
    group: "",
    resource: "pods",
};

fn file(name: &str) -> String {
    fs::read_to_string(deploy(name)).unwrap()
}

fn install(api: &ApiServer) {
    api.admin().apply(&file("install.yaml")).unwrap();
}

/// Deletes the objects of a file or folder (`-f`), or of a folder for kustomize (`-k`). A path
/// below `deploy/` may be relative.
fn delete(api: &ApiServer, option: &str, path: &str) {
    let path = deploy(path).display().to_string();
    api.kubectl(&["delete", "--ignore-not-found", option, &path])
        .unwrap();
}

/// Returns a folder as a release contains it: rendered, in one file.
fn released(folder: &str) -> String {
    run(&deploy("render.sh").display().to_string(), &[folder]).unwrap()
}

fn is_definition(name: &str) -> bool {
    name.starts_with("CustomResourceDefinition")
}

fn await_no_group(api: &ApiServer) {
    let has_group = || {
        anyhow::Ok(
            api.admin()
                .get("/apis")?
                .checked()?
                .to_string()
                .contains("projectcalico.org"),
        )
    };
    await_that(PATIENCE, || Ok(!has_group()?)).unwrap();
}

fn running_pod(cluster: &Cluster<'_>, number: usize) -> (Pod, Value) {
    let conf = cluster.conf("node1", json!({ "cniVersion": "1.1.0" }));
    let pod = cluster.pod(number);
    cluster.add(&pod, &conf);
    (pod, conf)
}

/// Deletes a pod, asserts that its DEL is deferred, and returns the journal entry.
#[track_caller]
fn defer_del(cluster: &Cluster<'_>, pod: &Pod, conf: &Value) -> String {
    cluster.delete(pod, conf);
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    let [entry] = &journal_entries()[..] else {
        panic!("{:?}", journal_entries())
    };
    fs::read_to_string(entry).unwrap()
}

#[track_caller]
fn assert_nothing_left(cluster: &Cluster<'_>) {
    assert_eq!(journal_entries(), Vec::<PathBuf>::new());
    let accounts = cluster.accounts();
    assert!(
        accounts.is_empty() && accounts.problems.is_empty(),
        "{accounts:#?}"
    );
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
}

#[test]
fn workloads_yaml_has_the_running_objects_of_install_yaml_alone() {
    if !can_render() {
        return;
    }
    let (install, workloads) = (file("install.yaml"), file("workloads.yaml"));
    assert_eq!(hashed_names(&workloads), hashed_names(&install));
    let (install, workloads) = (parse(&install).unwrap(), parse(&workloads).unwrap());
    assert_eq!(
        changes(&kustomize(&deploy("workloads")).unwrap(), &workloads),
        Vec::<String>::new(),
        "make generate"
    );
    let names: Vec<&str> = workloads.keys().map(String::as_str).collect();
    let service = "Service kube-system/calico-kube-controllers-metrics";
    assert_eq!(names, [COPY, DAEMON_SET, DEPLOYMENT, BUDGET, service]);
    assert!(
        workloads
            .iter()
            .all(|(name, object)| install[name] == *object),
        "as in install.yaml"
    );
}

/// The API server deletes with a definition every object of its kind: with IPAMBlock, all
/// addresses.
#[test]
fn folders_of_the_removal_have_no_definition() {
    if !can_render() {
        return;
    }
    let has_definition = |objects: &Objects| objects.keys().any(|name| is_definition(name));
    assert!(has_definition(&parse(&file("install.yaml")).unwrap()));
    for folder in [
        "base",
        "workloads",
        "rbac",
        "rbac/kubernetes",
        "rbac/etcd",
        "rbac/users",
    ] {
        assert!(
            !has_definition(&kustomize(&deploy(folder)).unwrap()),
            "{folder}"
        );
    }
}

/// The steps follow each other on one API server. The last one deletes all addresses.
#[test]
fn pods_end_after_each_step_of_the_removal() {
    if !can_render() {
        return;
    }
    on_installation(ApiGroup::CrdV1, install, |cluster, servers, user| {
        pods_start_and_end_without_the_workloads(cluster, &servers.api);
        del_without_accounts_and_roles_is_deferred_until_they_exist_again(
            cluster,
            &servers.api,
            &user.user,
        );
        del_with_an_expired_token_is_deferred_until_the_next_token(cluster, &mut servers.api);
        pods_end_after_the_deletion_of_all_addresses(cluster, &servers.api);
    });
}

fn pods_start_and_end_without_the_workloads(cluster: &Cluster<'_>, api: &ApiServer) {
    let (pod, conf) = running_pod(cluster, 1);
    delete(api, "-f", "workloads.yaml");
    let later = cluster.pod(2);
    cluster.add(&later, &conf);
    for pod in [&pod, &later] {
        cluster.delete(pod, &conf);
    }
    assert_nothing_left(cluster);
}

fn del_without_accounts_and_roles_is_deferred_until_they_exist_again(
    cluster: &Cluster<'_>,
    api: &ApiServer,
    user: &str,
) {
    let (pod, conf) = running_pod(cluster, 3);
    for (option, path) in [("-k", "base"), ("-k", "rbac/kubernetes")] {
        delete(api, option, path);
    }
    // The authorizer applies the deletion a moment later.
    await_that(PATIENCE, || Ok(!api.allows(user, READS_PODS)?)).unwrap();
    let entry = defer_del(cluster, &pod, &conf);
    assert!(entry.contains("unauthorized"), "{entry}");
    assert!(
        !cluster.accounts().held.is_empty(),
        "the addresses stay allocated"
    );
    install(api);
    api.cni_user().unwrap();
    cluster.await_replayed(&pod, &conf);
    assert_nothing_left(cluster);
}

/// A new key stands for the expiry of the token: the API server rejects the token in both cases.
fn del_with_an_expired_token_is_deferred_until_the_next_token(
    cluster: &Cluster<'_>,
    api: &mut ApiServer,
) {
    let (pod, conf) = running_pod(cluster, 4);
    delete(api, "-f", "workloads.yaml");
    api.rotate_token_key().unwrap();
    let entry = defer_del(cluster, &pod, &conf);
    assert!(entry.contains("unauthorized"), "{entry}");
    api.cni_user().unwrap();
    cluster.await_replayed(&pod, &conf);
    assert_nothing_left(cluster);
}

fn pods_end_after_the_deletion_of_all_addresses(cluster: &Cluster<'_>, api: &ApiServer) {
    let (pod, conf) = running_pod(cluster, 5);
    delete(api, "-f", "install.yaml");
    await_no_group(api);
    defer_del(cluster, &pod, &conf);
    // The definitions come back without the objects.
    install(api);
    let blocks = api
        .admin()
        .get("/apis/crd.projectcalico.org/v1/ipamblocks")
        .unwrap()
        .success();
    assert_eq!(blocks["items"], json!([]));
}

/// Deletes a file of a release, or folder below `deploy/`, while a pod runs on an installation of
/// an overlay.
fn pods_end_after_the_deletion(group: ApiGroup, installed: &str, deleted: &str) {
    if !can_render() {
        return;
    }
    let manifest = released(installed);
    let install = |api: &ApiServer| api.admin().apply(&manifest).unwrap();
    on_installation(group, install, |cluster, servers, _| {
        let (pod, conf) = running_pod(cluster, 1);
        let api = &servers.api;
        let file = cluster.host.dir("released").join("installed.yaml");
        fs::write(&file, &manifest).unwrap();
        let mut expected: Vec<String> = parse(&manifest).unwrap().into_keys().collect();
        let path = if deleted == installed {
            file.clone()
        } else {
            deploy(deleted)
        };
        delete(api, "-f", &path.display().to_string());
        await_no_group(api);
        expected.retain(|name| deleted != installed && !is_definition(name));
        let left: Vec<String> = stored(api, &file.display().to_string())
            .unwrap()
            .into_keys()
            .collect();
        assert_eq!(left, expected, "{deleted}");
        defer_del(cluster, &pod, &conf);
    });
}

#[test]
fn pods_end_after_the_deletion_of_the_definitions_of_v1() {
    pods_end_after_the_deletion(ApiGroup::CrdV1, "overlays/kubernetes-v1", "crds/v1");
}

#[test]
fn pods_end_after_the_deletion_of_the_definitions_of_v3() {
    pods_end_after_the_deletion(ApiGroup::V3, "overlays/kubernetes-v3", "crds/v3");
}

/// [`pods_end_after_each_step_of_the_removal`] deletes `install.yaml` with v1.
#[test]
fn pods_end_after_the_deletion_of_the_installation_with_v3() {
    pods_end_after_the_deletion(
        ApiGroup::V3,
        "overlays/kubernetes-v3",
        "overlays/kubernetes-v3",
    );
}

/// The addresses are in etcd, which the plugin reaches without an account of Kubernetes.
#[test]
fn pods_end_and_release_their_addresses_after_the_deletion_of_install_etcd_yaml() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        let manifest = released("overlays/etcd");
        api.admin().apply(&manifest).unwrap();
        api.namespace(cluster::NAMESPACE).unwrap();
        let user = api.cni_user().unwrap();
        host.add_uplink().unwrap();
        let cluster = Cluster {
            host,
            plugins: Plugins::locate().unwrap(),
            store: Store::Etcd(Etcd::of_control_plane(host)),
        };
        cluster.load(&Content::dual_stack());
        let kubernetes = json!({ "kubeconfig": user.kubeconfig });
        let conf = cluster.conf(
            "node1",
            json!({ "policy": { "type": "k8s" }, "kubernetes": kubernetes }),
        );
        let [pod, later] = [1, 2].map(|number| {
            let pod = cluster.pod(number);
            let object = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": pod.name, "namespace": cluster::NAMESPACE },
                "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
            });
            let pods = format!("/api/v1/namespaces/{}/pods", cluster::NAMESPACE);
            api.admin().create(&pods, &object).unwrap().success();
            Pod {
                object: Some(pod.name.clone()),
                ..pod
            }
        });
        cluster.add(&pod, &conf);
        let pools = |cluster: &Cluster<'_>| -> Vec<String> {
            cluster
                .store
                .dump()
                .unwrap()
                .into_keys()
                .filter(|key| key.contains("/ippools/"))
                .collect()
        };
        let before = pools(&cluster);

        let file = host.dir("released").join("install-etcd.yaml");
        fs::write(&file, &manifest).unwrap();
        let file = file.display().to_string();
        delete(api, "-f", &file);
        assert_eq!(stored(api, &file).unwrap(), Objects::new());
        await_that(PATIENCE, || Ok(!api.allows(&user.user, READS_PODS)?)).unwrap();
        cluster.verb("ADD", &later, &conf).run().error();
        cluster.delete(&pod, &conf);
        assert_nothing_left(&cluster);
        assert_eq!((before.len(), pools(&cluster)), (2, before));
    });
}
