//! Every recording of upstream on Kubernetes, replayed against our binaries on a real API server.
//!
//! One server for a folder; between recordings everything in it is deleted and the host reinstalled.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use integration_tests::command::ip_json;
use integration_tests::golden::cluster;
use integration_tests::golden::recording::{self, Recording};
use integration_tests::golden::replay::{Lab, replay};
use integration_tests::kubernetes::{ApiServer, Kubernetes, Objects, on_kubernetes, with_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;

#[test]
fn kdd1() {
    replay_folder("kdd1", ApiGroup::CrdV1);
}

#[test]
fn kdd3() {
    replay_folder("kdd3", ApiGroup::V3);
}

/// Pods from the API server, Calico's data in etcd, which here is the API server's own.
#[test]
fn k8s_on_etcd() {
    with_kubernetes(|host, kubernetes| {
        let Kubernetes { api, etcd, .. } = kubernetes;
        cluster::prepare(&api).unwrap();
        cluster::write_kubeconfig(host, &api, api.admin_identity()).unwrap();
        let (plugins, store) = (Plugins::locate().unwrap(), Store::Etcd(etcd));
        let lab = Lab { host, plugins: &plugins, store: &store, kubernetes: Some(api.admin()) };
        let name = "k8s-on-etcd";
        replay(&recording::read("etcd", name).unwrap(), &lab).unwrap();
    });
}

fn replay_folder(folder: &str, group: ApiGroup) {
    on_kubernetes(|host, kubernetes| {
        let api = &kubernetes.api;
        api.define(group.api_version()).unwrap();
        cluster::prepare(api).unwrap();
        let mut wrong = String::new();
        for name in recording::names(folder).unwrap() {
            if let Err(error) = replay_one(&recording::read(folder, &name).unwrap(), host, api, group) {
                wrong += &format!("{folder}/{name}: {error:#}\n");
            }
            clear(api, group).unwrap();
        }
        assert!(wrong.is_empty(), "{wrong}");
    });
}

fn replay_one(recording: &Recording, host: &Host, api: &ApiServer, group: ApiGroup) -> Result<()> {
    host.reinstalled(|host| {
        let kubeconfig = cluster::write_kubeconfig(host, api, api.admin_identity())?;
        let store = Store::Kubernetes(Objects::new(api.admin(), group, kubeconfig));
        replay(recording, &Lab { host, plugins: &Plugins::locate()?, store: &store, kubernetes: Some(api.admin()) })
    })
}

/// Nothing of a recording is left for the next.
fn clear(api: &ApiServer, group: ApiGroup) -> Result<()> {
    Objects::new(api.admin(), group, api.admin_kubeconfig()).clear()?;
    // The links of a pod whose namespace nothing holds any more go a little later; `lo` stays.
    let deadline = Instant::now() + Duration::from_secs(5);
    while ip_json("link show")?.as_array().is_some_and(|links| links.len() > 1) {
        ensure!(Instant::now() < deadline, "links of the last recording are still there");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
