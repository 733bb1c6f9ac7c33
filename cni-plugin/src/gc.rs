//! GC: removes interfaces, endpoints and addresses of containers that `cni.dev/valid-attachments`
//! does not name, of this network and this node only.
//!
//! A failure to read them ends the call. After a later failure GC continues with the other
//! containers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipam_plugin::cni::LeakedAddresses;
use libcalico::api::{ObjectSelect, WorkloadEndpoint};
use libcalico::names::InterfaceAlias;
use libcalico::store::{EndpointForm, ReadBatch, Store, StoreError};
use libcalico::workload::{Orchestrator, PodIdentity, WorkloadIdentity};
use netconf::{CniError, Code};

use crate::cni_error::store_error;
use crate::context::Context;
use crate::endpoint::{ContainerEndpoints, ExistingEndpoint};
use crate::ipam::release::{leaked, release_leaked};
use crate::world::World;
use crate::{deferred_del, reads};
use dataplane::{
    DataplaneError, PodNetwork as _, RunningContainer, SuspectContainer, SuspectInterface,
};

/// Removes interfaces, endpoints and addresses of containers that the runtime does not name. Unless
/// the configuration sets `gc_running_containers`, keeps those of containers that run or, with a
/// gRPC dataplane, may run.
pub async fn gc(cx: &Context<impl World>) -> Result<(), CniError> {
    reads::ensure_cluster_is_ready(cx).await?;
    deferred_del::replay_some(cx).await;
    deferred_del::record_identity(cx).await;
    let valid_attachments = cx.call.conf.valid_attachments.iter().flatten();
    let valid: BTreeSet<_> = valid_attachments
        .map(|attachment| attachment.container_id.clone())
        .collect();

    let leaked = leaked(cx.ipam_call(), &valid).await;
    let leaked = leaked.map_err(|error| read_error("the blocks", &error))?;
    let conf = &cx.call.conf;
    if conf.dataplane_options.grpc_socket().is_some() && !conf.feature_control.gc_running_containers
    {
        tracing::warn!(
            containers = leaked.containers(),
            reason = "with a gRPC dataplane the running containers are unknown",
            hint = "set feature_control.gc_running_containers to remove them",
            "GC keeps the endpoints and addresses of unlisted containers"
        );
        return Ok(());
    }
    let endpoints = endpoints(cx, &leaked).await;
    let mut stale = endpoints.map_err(|error| store_error("list the endpoints", &error))?;
    stale.retain(|entry| {
        is_stale(cx, entry)
            && !lists_addresses_of_another_network(&leaked, entry)
            && match cx.store.endpoint_form() {
                EndpointForm::Object => true,
                EndpointForm::PodAnnotations => has_leaked_address(&leaked, entry),
            }
    });
    if !stale.is_empty() {
        let aliases = cx.network.interface_aliases().map_err(unreadable)?;
        stale.retain(|entry| !is_of_another_network(cx, &aliases, entry));
    }
    let interfaces = cx
        .network
        .suspect_interfaces(&suspects(cx, &valid, &leaked, &stale))
        .map_err(unreadable)?;
    let running = match conf.feature_control.gc_running_containers {
        true => Vec::new(),
        false => cx
            .network
            .running_containers(&interfaces)
            .map_err(unreadable)?,
    };
    let mut failures = Vec::new();
    let mut kept: BTreeSet<String> = running
        .iter()
        .map(|running| running.container_id.clone())
        .collect();
    // As in DEL, an address is not released while an interface uses it.
    for interface in interfaces {
        let SuspectInterface {
            container_id,
            ifname,
            ..
        } = interface.clone();
        if !kept.contains(&container_id)
            && let Err(error) = cx.network.remove_suspect(interface)
        {
            failures.push(format!(
                "cannot remove interface {ifname} of container {container_id}, whose addresses and \
                 endpoint stay: {error}"
            ));
            kept.insert(container_id);
        }
    }
    stale.retain(|entry| !kept.contains(&entry.value.spec.container_id));
    // An address is not released while an endpoint lists it either.
    for entry in stale {
        if let Err(error) = endpoints_of(cx, &entry).delete_own().await {
            failures.push(format!(
                "cannot delete WorkloadEndpoint {}, whose addresses stay allocated: {error}",
                entry.key
            ));
            kept.insert(entry.value.spec.container_id);
        }
    }
    let remaining = valid.union(&kept).cloned().collect();
    if let Err(error) = cx.journal.retain_interfaces(&conf.name, &remaining) {
        tracing::warn!(
            %error,
            "cannot remove the interface names of deleted containers",
        );
    }
    failures.extend(release_leaked(cx.ipam_call(), leaked, valid, &kept).await);
    failures.extend(running.iter().map(|running| report_running(cx, running)));
    let Some(first) = failures.first() else {
        return Ok(());
    };
    Err(CniError::new(
        Code::TRY_AGAIN,
        format!("garbage collection is incomplete: {first}"),
    )
    .with_details(failures.join("; ")))
}

/// Returns the endpoints to examine: all endpoints, or where pods contain them, those of the pods
/// that own leaked addresses. The plugin may get pods but not list them (DS-83).
async fn endpoints(
    cx: &Context<impl World>,
    leaked: &LeakedAddresses,
) -> Result<Vec<ExistingEndpoint>, StoreError> {
    match cx.store.endpoint_form() {
        EndpointForm::Object => cx.store.list(&ObjectSelect::default()).await,
        EndpointForm::PodAnnotations => endpoints_of_pods(cx, leaked).await,
    }
}

async fn endpoints_of_pods(
    cx: &Context<impl World>,
    leaked: &LeakedAddresses,
) -> Result<Vec<ExistingEndpoint>, StoreError> {
    let of_pod = |(namespace, name): &(String, String)| {
        let pod = PodIdentity {
            namespace: namespace.clone(),
            name: name.clone(),
            ..PodIdentity::default()
        };
        WorkloadIdentity {
            orchestrator: Orchestrator::Kubernetes(pod),
            ..cx.workload.clone()
        }
        .endpoint_select()
        .ok()
    };
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = leaked
        .pods()
        .filter_map(of_pod)
        .map(|select| batch.list::<WorkloadEndpoint>(&select))
        .collect();
    let answers = cx.store.read(&batch).await?;
    Ok(tickets
        .iter()
        .flat_map(|ticket| answers.list(ticket))
        .collect())
}

/// Returns true if an endpoint of this node belongs to an attachment that no longer exists and,
/// where the endpoint's profiles show the network, to this network. Of a pod's endpoint, only the
/// container ID is compared: a pod has one endpoint, with the interface name of its first ADD.
fn is_stale(cx: &Context<impl World>, entry: &ExistingEndpoint) -> bool {
    let spec = &entry.value.spec;
    let is_valid = cx
        .call
        .conf
        .valid_attachments
        .iter()
        .flatten()
        .any(|attachment| {
            attachment.container_id == spec.container_id
                && (spec.orchestrator == "k8s" || attachment.ifname == spec.endpoint)
        });
    spec.node == cx.workload.node
        && !spec.container_id.is_empty()
        && !is_valid
        && (spec.profiles.contains(&cx.call.conf.name)
            || (spec.orchestrator == "k8s" && cx.call.conf.policy.policy_type == "k8s"))
}

/// Returns true if the alias of the interface shows that a pod's endpoint belongs to another
/// network.
fn is_of_another_network(
    cx: &Context<impl World>,
    aliases: &BTreeMap<String, InterfaceAlias>,
    entry: &ExistingEndpoint,
) -> bool {
    let spec = &entry.value.spec;
    let own = own_alias(cx, entry);
    let alias = aliases
        .get(&spec.interface_name)
        .filter(|alias| alias.is_of_container(&spec.container_id));
    spec.orchestrator == "k8s" && alias.is_some_and(|alias| !alias.is_of_same_pod(&own))
}

/// Returns true if an address of the endpoint may be allocated to the same container in another
/// network.
fn lists_addresses_of_another_network(leaked: &LeakedAddresses, entry: &ExistingEndpoint) -> bool {
    let spec = &entry.value.spec;
    spec.host_link()
        .1
        .into_iter()
        .any(|ip| leaked.may_be_held_elsewhere(&spec.container_id, ip))
}

/// Returns true if the container in a pod's annotation has a leaked address that is allocated to
/// this pod. The annotation alone proves nothing, because a tenant can write it.
fn has_leaked_address(leaked: &LeakedAddresses, entry: &ExistingEndpoint) -> bool {
    let names = (
        entry.key.namespace.as_deref().unwrap_or_default(),
        entry.value.spec.pod.as_str(),
    );
    leaked.held().any(|(container, address)| {
        let pod = address
            .pod
            .as_ref()
            .map(|(namespace, name)| (namespace.as_str(), name.as_str()));
        container == entry.value.spec.container_id && pod == Some(names)
    })
}

fn unreadable(error: DataplaneError) -> CniError {
    read_error("the interfaces of this node", &error)
}

fn read_error(object: &str, error: &dyn fmt::Display) -> CniError {
    let text = format!(
        "garbage collection ended after the replay of deferred DELs: cannot read {object}: \
         {error}; the next GC retries"
    );
    CniError::new(Code::TRY_AGAIN, text)
}

fn suspects(
    cx: &Context<impl World>,
    valid: &BTreeSet<String>,
    leaked: &LeakedAddresses,
    stale: &[ExistingEndpoint],
) -> Vec<SuspectContainer> {
    let network = &cx.call.conf.name;
    let mut suspects = BTreeMap::<String, SuspectContainer>::new();
    for (container, address) in leaked.held() {
        let suspect = suspects.entry(container.to_owned()).or_default();
        suspect.allocated.push(address.ip);
        suspect.aliases.push(match &address.pod {
            Some((namespace, name)) => InterfaceAlias::for_pod(network, namespace, name, container),
            None => InterfaceAlias::for_container(container),
        });
    }
    for entry in stale {
        let suspect = suspects
            .entry(entry.value.spec.container_id.clone())
            .or_default();
        suspect.aliases.push(own_alias(cx, entry));
        match cx.store.endpoint_form() {
            EndpointForm::Object => suspect.listed.extend(entry.value.spec.host_link().1),
            // A tenant can write the annotations.
            EndpointForm::PodAnnotations => {}
        }
    }
    let with_conditions = |(container_id, suspect): (String, SuspectContainer)| {
        let has_valid_attachment = valid.contains(&container_id);
        let may_have_other_network = leaked.may_hold_elsewhere(&container_id);
        SuspectContainer {
            container_id,
            has_valid_attachment,
            may_have_other_network,
            ..suspect
        }
    };
    suspects.into_iter().map(with_conditions).collect()
}

/// Returns the alias that the interface of an endpoint has if it belongs to this network.
fn own_alias(cx: &Context<impl World>, entry: &ExistingEndpoint) -> InterfaceAlias {
    let spec = &entry.value.spec;
    let namespace = entry.key.namespace.as_deref().unwrap_or_default();
    match spec.orchestrator.as_str() {
        "k8s" => {
            InterfaceAlias::for_pod(&cx.call.conf.name, namespace, &spec.pod, &spec.container_id)
        }
        _ => InterfaceAlias::for_container(&spec.container_id),
    }
}

fn report_running(cx: &Context<impl World>, running: &RunningContainer) -> String {
    let RunningContainer {
        container_id,
        ifname,
        process,
    } = running;
    let network = &cx.call.conf.name;
    let text = format!(
        "container {container_id} is not in cni.dev/valid-attachments but runs: interface {ifname} \
         has carrier, and process {process} is in its network namespace. GC keeps the container's \
         network. If another runtime uses network {network}, rename one of the networks; \
         feature_control.gc_running_containers permits GC to remove the network of a running \
         container"
    );
    tracing::warn!("{text}");
    text
}

/// Returns the endpoint for the removal of its addresses, which only happens while the endpoint
/// belongs to the stale container.
fn endpoints_of<'s, W: World>(
    cx: &'s Context<W>,
    entry: &ExistingEndpoint,
) -> ContainerEndpoints<'s, W::Store> {
    let spec = &entry.value.spec;
    let namespace = entry.key.namespace.clone().unwrap_or_default();
    let pod = PodIdentity {
        namespace,
        name: spec.pod.clone(),
        ..PodIdentity::default()
    };
    let workload = WorkloadIdentity {
        node: spec.node.clone(),
        container_id: spec.container_id.clone(),
        endpoint: String::new(),
        orchestrator: Orchestrator::Kubernetes(pod),
    };
    let listings = match cx.store.endpoint_form() {
        EndpointForm::Object => Some(vec![entry.clone().into()]),
        // The pod has to be read: the endpoint lacks some properties of the pod.
        EndpointForm::PodAnnotations => None,
    };
    ContainerEndpoints::new(&cx.store, workload).with_listings(listings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ApiServer, context, record_del_of_a_gone_pod, without_pods};

    #[tokio::test]
    async fn gc_that_cannot_read_the_blocks_reports_the_replay_before() {
        let files = tempfile::tempdir().unwrap();
        let server = ApiServer::start(|request| without_pods(request, "/ipamblocks")).await;
        let cx = context("ADD", &server, files.path());
        record_del_of_a_gone_pod(&cx);
        let error = gc(&cx).await.unwrap_err();
        assert!(cx.journal.entries().unwrap().is_empty());
        let expected =
            "garbage collection ended after the replay of deferred DELs: cannot read the blocks: ";
        assert!(error.msg.starts_with(expected), "{error}");
    }
}
