//! Kubernetes Events of garbage collection. Each batch of released leaks causes one Event per node. An address that a
//! pod uses although it is not allocated to the pod causes one Event per pod and address.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use futures::{StreamExt, stream};
use libcalico::ipam::gc::{Conflict, ConflictKind, Suspect};
use serde_json::{Value, json};
use uuid::Uuid;

use super::gate::LeaderGate;
use crate::events::{self, EventType, NAMESPACE};
use crate::settings::GcMode;

/// Maximum number of addresses named in an Event; a pass may release thousands.
const MAX_NAMED_ADDRESSES: usize = 10;
/// Length of a message in bytes above which no further address is added. Readers of Events may accept only 1 KiB.
const MAX_MESSAGE_LENGTH: usize = 550;

const MAX_CONCURRENT: usize = 8;

/// A publisher of Events. Once the API server has refused an Event in the namespace `default` with 403, this publisher
/// posts no more Events there.
#[derive(Debug, Default)]
pub(super) struct EventPublisher {
    forbidden: AtomicBool,
}

impl EventPublisher {
    /// Posts an Event per node about `suspects`, which were released, or would be in the mode `report`.
    pub(super) async fn publish(&self, client: &kube::Client, gate: &LeaderGate, mode: GcMode, suspects: &[&Suspect]) {
        let by_node = group_by_node(suspects).into_iter();
        let events = by_node.map(|(node, suspects)| build_event(node, mode, &suspects, SystemTime::now()));
        let written: Vec<_> = events.map(|event| self.write(client, gate, event)).collect();
        stream::iter(written).buffer_unordered(MAX_CONCURRENT).collect::<Vec<bool>>().await;
    }

    /// Posts an Event. Returns true if another attempt would change nothing: the Event exists, or the API server
    /// refuses Events there (403).
    pub(super) async fn write(&self, client: &kube::Client, gate: &LeaderGate, event: Value) -> bool {
        // A 403 in a namespace other than `default` may come from a quota or from the namespace's deletion, and does
        // not apply to other namespaces.
        let is_in_default = event["metadata"]["namespace"] == NAMESPACE;
        if is_in_default && self.forbidden.load(Ordering::Relaxed) {
            return true;
        }
        // Posting an Event is a write, so a replica that is no longer the leader posts none.
        if !gate.is_open() {
            return false;
        }
        match events::post(client, event).await {
            Ok(()) => true,
            Err(kube::Error::Api(status)) if status.code == 409 => true,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                if is_in_default && !self.forbidden.swap(true, Ordering::Relaxed) {
                    tracing::warn!(reason = %status.message,
                        "the API server forbids an Event; posting no more Events in namespace default");
                }
                true
            }
            Err(error) => {
                tracing::debug!(%error, "cannot create an Event");
                false
            }
        }
    }
}

/// Groups suspects by node, with the node's name in Kubernetes if it is known. Addresses without a node are left out.
fn group_by_node<'s>(suspects: &[&'s Suspect]) -> BTreeMap<&'s str, Vec<&'s Suspect>> {
    let mut by_node = BTreeMap::<&str, Vec<&Suspect>>::new();
    for suspect in suspects {
        if let Some(node) = suspect.kubernetes_node.as_deref().or(suspect.node.as_deref()) {
            by_node.entry(node).or_default().push(suspect);
        }
    }
    by_node
}

fn build_event(node: &str, mode: GcMode, suspects: &[&Suspect], now: SystemTime) -> Value {
    let (reason, verb) = match mode {
        GcMode::Reclaim => ("LeakedAddressesReclaimed", "released"),
        GcMode::Report => ("LeakedAddressesFound", "would release"),
    };
    let mut message = format!("{verb} {} leaked address(es): ", suspects.len());
    for (at, suspect) in suspects.iter().enumerate() {
        if at == MAX_NAMED_ADDRESSES || message.len() > MAX_MESSAGE_LENGTH {
            message.push_str(&format!(" and {} more", suspects.len() - at));
            break;
        }
        let pod = suspect.owner.pod().map(|pod| format!(" of pod {pod}")).unwrap_or_default();
        let separator = if at == 0 { "" } else { ", " };
        message.push_str(&format!("{separator}{}{pod} ({})", suspect.address, suspect.reason));
    }
    // kubelet also uses the node's name as the uid, and `kubectl describe node` finds Events with the name and Events
    // with the real uid.
    let object = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node });
    events::event(&object, EventType::Normal, reason, &message, now)
}

/// Maximum length of the part of a pod's name that an Event's name begins with, in bytes.
const MAX_NAME_PREFIX: usize = 200;

/// Returns the Event about a conflict of the pod with this uid. The name of the Event is derived from the pod and the
/// address. So another replica, or this replica after a restart, does not create the Event again while it exists.
pub(super) fn conflict_event(conflict: &Conflict, uid: &str, conflict_kind: &ConflictKind, now: SystemTime) -> Value {
    let Conflict { namespace, name, address, .. } = conflict;
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid });
    let message = format!(
        "this pod uses {address}, which IPAM has {conflict_kind}, so two owners may use the same address; delete this \
         pod before new pods start, and its successor gets another address"
    );
    let mut event = events::event(&pod, EventType::Warning, "AddressNotAllocated", &message, now);
    let short = name.get(..MAX_NAME_PREFIX).unwrap_or(name).trim_end_matches(['.', '-']);
    let digest = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{uid}/{address}").as_bytes());
    event["metadata"]["name"] = json!(format!("{short}.{}", digest.simple()));
    event
}

#[cfg(test)]
pub(super) mod tests;
