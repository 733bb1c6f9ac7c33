//! Writes the generated cluster into our own server or into a real one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};
use integration_tests::kubernetes::{ApiServer, Client};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Holder};
use crate::server::Objects;
use crate::texts;

pub(crate) const CALICO: &str = "crd.projectcalico.org/v1";
/// Number of clients that fill a real server.
const CLIENTS: usize = 8;

/// Returns Calico's objects, each with its plural.
fn calico_objects(cluster: &Cluster, grace: &str) -> Vec<(&'static str, Value)> {
    let mut objects: Vec<(&str, Value)> = texts::single_objects(grace).into();
    let mut handles = 0;
    for (number, block) in cluster.blocks.iter().enumerate() {
        objects.push(("ipamblocks", texts::block(number, block)));
        objects.push(("blockaffinities", texts::affinity(number, block)));
        for holder in &block.holders {
            objects.push(("ipamhandles", texts::handle(handles, *holder, block)));
            handles += 1;
        }
    }
    objects
}

pub(crate) fn fill(objects: &Objects, cluster: &Cluster, grace: &str) {
    for number in 0..texts::NAMESPACES {
        objects.put("v1", "namespaces", texts::namespace_object(number));
    }
    for node in 0..cluster.size.nodes {
        objects.put("v1", "nodes", texts::node(node));
    }
    for pod in 0..cluster.size.pods {
        objects.put("v1", "pods", texts::pod(cluster, pod, 0));
    }
    for (plural, object) in calico_objects(cluster, grace) {
        objects.put(CALICO, plural, object);
    }
    objects.begin();
}

pub(crate) fn fill_real(api: &ApiServer, cluster: &Cluster, grace: &str) -> Result<()> {
    api.define(CALICO)?;
    for number in 0..texts::NAMESPACES {
        api.namespace(&texts::namespace(number))?;
    }
    let client = api.admin();
    for_each(cluster.size.nodes, |node| {
        let object = texts::node(node);
        let collection = "/api/v1/nodes";
        client
            .create(collection, &bare(object.clone()))?
            .checked()?;
        let path = format!("{collection}/{}/status", texts::node_name(node));
        client
            .patch(&path, &json!({"status": object["status"]}))?
            .checked()
            .map(|_| ())
    })?;
    let calico = calico_objects(cluster, grace);
    for_each(calico.len(), |number| {
        let (plural, object) = &calico[number];
        let created = client.create(&format!("/apis/{CALICO}/{plural}"), &bare(object.clone()))?;
        created
            .checked()
            .map(|_| ())
            .with_context(|| format!("{plural} {object}"))
    })?;
    for_each(cluster.size.pods, |pod| {
        let object = texts::pod(cluster, pod, 0);
        client
            .create(&pods_of(pod), &bare(object.clone()))?
            .checked()?;
        report(client, cluster, pod, 0)
    })
}

/// Updates the status of a pod, as the kubelet of its node does.
pub(crate) fn report(client: &Client, cluster: &Cluster, pod: usize, tick: u64) -> Result<()> {
    let path = format!("{}/{}/status", pods_of(pod), texts::pod_name(pod));
    let status = texts::pod(cluster, pod, tick)["status"].take();
    client
        .patch(&path, &json!({"status": status}))?
        .checked()
        .map(|_| ())
}

fn pods_of(pod: usize) -> String {
    format!("/api/v1/namespaces/{}/pods", texts::namespace(pod))
}

fn bare(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for name in ["uid", "creationTimestamp", "managedFields"] {
            metadata.remove(name);
        }
    }
    object
}

/// Calls `act` for each number, from several clients in parallel.
pub(crate) fn for_each(count: usize, act: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            act(number)?;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a client panicked"))
    })
}

pub(crate) fn leaked(cluster: &Cluster) -> usize {
    let holders = cluster.blocks.iter().flat_map(|block| &block.holders);
    holders
        .filter(|holder| matches!(holder, Holder::Leaked(_)))
        .count()
}
