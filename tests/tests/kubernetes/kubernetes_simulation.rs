//! The API server of the simulation against a real one: both answer the same requests alike.
//!
//! A script sends requests to a [`Subject`] and records each outcome, without revisions, uids and
//! times. The test compares the two records.

mod custom;
mod pods;
mod record;
mod subjects;

use std::time::Duration;

use datastore::config::KubernetesConfig;
use datastore::{Datastore, DatastoreConfig};
use integration_tests::cluster::{Cluster, ControlPlane, on};
use libcalico::kubernetes::ApiGroup;

use record::Record;
use subjects::{Real, Simulated, Subject};

/// The namespace of the pods of scripts.
const NAMESPACE: &str = "compared";

/// Runs a script on both servers and compares the records.
fn compare(cluster: &Cluster<'_>, control_plane: &ControlPlane<'_>, script: fn(&mut Record<'_>)) {
    let (api, group) = (&control_plane.servers.api, cluster.objects().group());
    api.namespace(NAMESPACE).unwrap();
    let config = KubernetesConfig {
        kubeconfig: vec![api.admin_kubeconfig()],
        group: Some(group),
        deadline: Duration::from_secs(60),
        ..KubernetesConfig::default()
    };
    let store = Datastore::open(&DatastoreConfig::Kubernetes(Box::new(config))).unwrap();
    let mut real = Real::new(store, api.admin());
    let mut simulated = Simulated::new(group, NAMESPACE);
    let of_real = record(&mut real, group, script);
    let of_simulated = record(&mut simulated, group, script);
    let differences: Vec<String> = of_real
        .iter()
        .zip(&of_simulated)
        .enumerate()
        .filter(|(_, (real, simulated))| real != simulated)
        .map(|(number, (real, simulated))| {
            format!("line {number}\nreal:      {real}\nsimulated: {simulated}")
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(of_simulated.len(), of_real.len());
}

fn record(subject: &mut dyn Subject, group: ApiGroup, script: fn(&mut Record<'_>)) -> Vec<String> {
    let mut record = Record::new(subject, group);
    script(&mut record);
    record.lines
}

#[on(kubernetes_v1, kubernetes_v3)]
fn simulated_server_answers_writes_of_custom_resources_like_a_real_one(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    compare(cluster, control_plane, custom::writes);
}

#[on(kubernetes_v1, kubernetes_v3)]
fn simulated_server_answers_reads_like_a_real_one(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    compare(cluster, control_plane, custom::reads);
}

#[on(kubernetes_v1)]
fn simulated_server_treats_pods_like_a_real_one(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    compare(cluster, control_plane, pods::pods);
}

#[on(kubernetes_v1)]
fn simulated_server_treats_nodes_like_a_real_one(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    compare(cluster, control_plane, pods::nodes);
}
