//! The files that a removal deletes, each deleted while a pod runs. The pod can still be deleted.

use std::fs;
use std::path::PathBuf;

use integration_tests::cluster::{Cluster, Pod, on_installation};
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::journal::journal_entries;
use integration_tests::kernel;
use integration_tests::kubernetes::{Access, ApiServer};
use integration_tests::manifests::{Objects, changes, deploy, hashed_names, kustomize, parse};
use serde_json::{Value, json};

use super::{COPY, DAEMON_SET, DEPLOYMENT, can_render};

/// A permission of the plugins' account.
const READS_PODS: Access<'static> = Access { verb: "get", group: "", resource: "pods" };

fn file(name: &str) -> String {
    fs::read_to_string(deploy(name)).unwrap()
}

fn install(api: &ApiServer) {
    api.admin().apply(&file("install.yaml")).unwrap();
}

/// Deletes the objects of a file (`-f`) or of a folder for kustomize (`-k`).
fn delete(api: &ApiServer, option: &str, path: &str) {
    let path = deploy(path).display().to_string();
    api.kubectl(&["delete", "--ignore-not-found", option, &path]).unwrap();
}

fn running_pod(cluster: &Cluster<'_>) -> (Pod, Value) {
    let conf = cluster.conf("node1", json!({ "cniVersion": "1.1.0" }));
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    (pod, conf)
}

/// Deletes a pod, asserts that its DEL is deferred, and returns the journal entry.
#[track_caller]
fn defer_del(cluster: &Cluster<'_>, pod: &Pod, conf: &Value) -> String {
    cluster.delete(pod, conf);
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    let [entry] = &journal_entries()[..] else { panic!("{:?}", journal_entries()) };
    fs::read_to_string(entry).unwrap()
}

#[track_caller]
fn assert_nothing_left(cluster: &Cluster<'_>) {
    assert_eq!(journal_entries(), Vec::<PathBuf>::new());
    let accounts = cluster.accounts();
    assert!(accounts.is_empty() && accounts.problems.is_empty(), "{accounts:#?}");
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
    assert_eq!(changes(&kustomize(&deploy("workloads")).unwrap(), &workloads), Vec::<String>::new(), "make generate");
    let names: Vec<&str> = workloads.keys().map(String::as_str).collect();
    let of_controllers = |kind: &str| format!("{kind} kube-system/calico-kube-controllers");
    let budget = of_controllers("PodDisruptionBudget.policy");
    assert_eq!(names, [COPY, DAEMON_SET, DEPLOYMENT, &budget, &(of_controllers("Service") + "-metrics")]);
    assert!(workloads.iter().all(|(name, object)| install[name] == *object), "as in install.yaml");
}

/// The API server deletes with a definition every object of its kind: with IPAMBlock, all addresses.
#[test]
fn folders_of_the_removal_have_no_definition() {
    if !can_render() {
        return;
    }
    let is_definition = |name: &String| name.starts_with("CustomResourceDefinition");
    let has_definition = |objects: &Objects| objects.keys().any(is_definition);
    assert!(has_definition(&parse(&file("install.yaml")).unwrap()));
    for folder in ["base", "workloads", "rbac", "rbac/kubernetes", "rbac/etcd", "rbac/users"] {
        assert!(!has_definition(&kustomize(&deploy(folder)).unwrap()), "{folder}");
    }
}

#[test]
fn pods_start_and_end_without_the_workloads() {
    if !can_render() {
        return;
    }
    on_installation(install, |cluster, servers, _| {
        let (pod, conf) = running_pod(cluster);
        delete(&servers.api, "-f", "workloads.yaml");
        let later = cluster.pod(2);
        cluster.add(&later, &conf);
        for pod in [&pod, &later] {
            cluster.delete(pod, &conf);
        }
        assert_nothing_left(cluster);
    });
}

#[test]
fn del_without_accounts_and_roles_is_deferred_until_they_exist_again() {
    if !can_render() {
        return;
    }
    on_installation(install, |cluster, servers, user| {
        let (pod, conf) = running_pod(cluster);
        let api = &servers.api;
        for (option, path) in [("-f", "workloads.yaml"), ("-k", "base"), ("-k", "rbac/kubernetes")] {
            delete(api, option, path);
        }
        // The authorizer applies the deletion a moment later.
        await_that(PATIENCE, || Ok(!api.allows(&user.user, READS_PODS)?)).unwrap();
        let entry = defer_del(cluster, &pod, &conf);
        assert!(entry.contains("unauthorized"), "{entry}");
        assert!(!cluster.accounts().held.is_empty(), "the addresses stay allocated");
        install(api);
        api.cni_user().unwrap();
        cluster.verb("STATUS", &pod, &conf).run().unwrap().success();
        assert_nothing_left(cluster);
    });
}

/// A new key stands for the expiry of the token: the API server rejects the token in both cases.
#[test]
fn del_with_an_expired_token_is_deferred_until_the_next_token() {
    if !can_render() {
        return;
    }
    on_installation(install, |cluster, servers, _| {
        let (pod, conf) = running_pod(cluster);
        delete(&servers.api, "-f", "workloads.yaml");
        servers.api.rotate_token_key().unwrap();
        let entry = defer_del(cluster, &pod, &conf);
        assert!(entry.contains("unauthorized"), "{entry}");
        servers.api.cni_user().unwrap();
        cluster.verb("STATUS", &pod, &conf).run().unwrap().success();
        assert_nothing_left(cluster);
    });
}

#[test]
fn pods_end_after_the_deletion_of_install_yaml_which_deletes_all_addresses() {
    if !can_render() {
        return;
    }
    on_installation(install, |cluster, servers, _| {
        let (pod, conf) = running_pod(cluster);
        let api = &servers.api;
        delete(api, "-f", "install.yaml");
        let has_group = || anyhow::Ok(api.admin().get("/apis")?.success()?.to_string().contains("projectcalico.org"));
        await_that(PATIENCE, || Ok(!has_group()?)).unwrap();
        defer_del(cluster, &pod, &conf);
        // The definitions come back without the objects.
        install(api);
        let blocks = api.admin().get("/apis/crd.projectcalico.org/v1/ipamblocks").unwrap().success().unwrap();
        assert_eq!(blocks["items"], json!([]));
    });
}
