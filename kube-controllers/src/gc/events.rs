//! Kubernetes Events of garbage collection. Each batch of released leaks causes one Event per node.
//! An address that a pod uses although it is not allocated to the pod causes one Event per pod and
//! address.

use std::collections::BTreeMap;
use std::time::SystemTime;

use futures::{StreamExt, stream};
use libcalico::ipam::OwnerKind;
use libcalico::ipam::gc::{Conflict, ConflictKind, Suspect};
use serde_json::{Value, json};

use super::world::{ClusterApi, PassGate};
use crate::events::{self, EventType, NAMESPACE, Posted};
use crate::settings::GcMode;

/// Maximum number of addresses named in an Event; a pass may release thousands.
const MAX_NAMED_ADDRESSES: usize = 10;
/// Length of a message in bytes above which no further address is added. Readers of Events may
/// accept only 1 KiB.
const MAX_MESSAGE_LENGTH: usize = 550;

const MAX_CONCURRENT: usize = 8;

/// Posts an Event per node about `suspects`, which were released, or would be in the mode `report`.
pub(super) async fn publish(
    api: &impl ClusterApi,
    gate: &impl PassGate,
    mode: GcMode,
    suspects: &[&Suspect],
    now: SystemTime,
) {
    let by_node = group_by_node(suspects).into_iter();
    let events = by_node.map(|(node, suspects)| build_event(node, mode, &suspects, now));
    let written: Vec<_> = events
        .map(|event| async move { api.post_event(gate.is_open(), event).await })
        .collect();
    stream::iter(written)
        .buffer_unordered(MAX_CONCURRENT)
        .collect::<Vec<Posted>>()
        .await;
}

/// Groups suspects by node, with the node's name in Kubernetes if it is known. Addresses without a
/// node are left out.
fn group_by_node<'s>(suspects: &[&'s Suspect]) -> BTreeMap<&'s str, Vec<&'s Suspect>> {
    let mut by_node = BTreeMap::<&str, Vec<&Suspect>>::new();
    for suspect in suspects {
        if let Some(node) = suspect
            .kubernetes_node
            .as_deref()
            .or(suspect.node.as_deref())
        {
            by_node.entry(node).or_default().push(suspect);
        }
    }
    by_node
}

/// Returns the name of the pod if the Event about its node may contain it. The Event is in the
/// namespace `default`, so it names pods of this namespace only; the log names all.
fn named_pod(suspect: &Suspect) -> Option<&str> {
    let (namespace, name) = suspect
        .owner
        .names
        .as_ref()
        .filter(|_| suspect.owner.kind == OwnerKind::Pod)?;
    (namespace == NAMESPACE).then_some(name.as_str())
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
        let pod = named_pod(suspect)
            .map(|name| format!(" of pod {NAMESPACE}/{name}"))
            .unwrap_or_default();
        let separator = if at == 0 { "" } else { ", " };
        message.push_str(&format!(
            "{separator}{}{pod} ({})",
            suspect.address, suspect.reason
        ));
    }
    // kubelet also uses the node's name as the uid, and `kubectl describe node` finds Events with
    // the name and Events with the real uid.
    let object = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node });
    events::event(&object, EventType::Normal, reason, &message, now)
}

/// Returns the Event about a conflict of the pod with this uid. The pod and the address determine
/// its name.
pub(super) fn conflict_event(
    conflict: &Conflict,
    uid: &str,
    conflict_kind: &ConflictKind,
    now: SystemTime,
) -> Value {
    let Conflict {
        namespace,
        name,
        address,
        ..
    } = conflict;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid,
    });
    let message = format!(
        "this pod uses {address}, which IPAM has {conflict_kind}, so two owners may use the same \
         address; delete this pod before new pods start, and its successor gets another address"
    );
    let event = events::event(
        &pod,
        EventType::Warning,
        "AddressNotAllocated",
        &message,
        now,
    );
    events::named_by(event, uid, &[address.to_string().as_str()])
}

#[cfg(test)]
pub(super) mod tests;
