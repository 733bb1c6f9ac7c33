use std::path::{Path, PathBuf};
use std::time::Duration;

use datastore::{Datastore, DatastoreConfig};
use ipam_plugin::error::cni_error;
use ipam_plugin::journal::{DatastoreIdentity, LockedJournal, PendingDel};
use ipam_plugin::kubernetes_api::{self, KubernetesApi};
use ipam_plugin::release::Listings;
use libcalico::api::WorkloadEndpoint;
use libcalico::store::Store;
use libcalico::workload::WorkloadIdentity;
use netconf::{CniError, Code, NetConf};
use node_process::logging::Subject;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::urgency::Urgency;
use crate::cni_error::{journal_error, store_error};
use crate::endpoint::ContainerEndpoints;
use crate::{ipam, vmi};

/// The limit of a call other than ADD and of a pass of the agent.
const DEFAULT_LIMIT: ReplayLimit = ReplayLimit { entries: 16, time: Duration::from_secs(20) };
/// The limit of an ADD, which delays the start of its pod.
pub(super) const ADD_LIMIT: ReplayLimit = ReplayLimit { entries: 2, time: Duration::from_secs(1) };

/// The number of deferred DELs, and the time, after which no further replay starts, except with [`Urgency::Required`].
/// The limit does not end a replay in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplayLimit {
    entries: usize,
    time: Duration,
}

/// The outcome of replays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayOutcome {
    /// Number of deferred DELs that were replayed.
    pub replayed: usize,
    /// Number of deferred DELs of this datastore that remain in the journal.
    pub remaining: usize,
}

/// The datastore whose deferred DELs are replayed, and the other inputs of a replay.
pub struct Replayer<'a> {
    /// The configuration of the plugins.
    pub conf: &'a NetConf,
    /// The lookup of the environment variables that complete the configuration.
    pub environment: fn(&str) -> Option<String>,
    /// The settings of the connection to the datastore.
    pub datastore_config: &'a DatastoreConfig,
    /// The datastore.
    pub store: &'a Datastore,
    /// The Kubernetes API.
    pub api: &'a KubernetesApi,
    /// The node of deferred DELs that do not name one; empty if the node's name is unknown.
    pub node: &'a str,
    /// The ID of the container whose call replays; empty for the agent.
    pub replaying_container: &'a str,
    /// Name and identity of the datastore, as in the entries of the journal.
    pub target: DatastoreIdentity,
}

impl Replayer<'_> {
    /// Replays a bounded number of deferred DELs.
    pub async fn replay_some(&self, locked: &LockedJournal<'_>) -> ReplayOutcome {
        self.replay_by_urgency(locked, DEFAULT_LIMIT, |_| Urgency::NotRequired).await
    }

    /// Tries to replay all deferred DELs with [`Urgency::Required`], and then others, until `limit` or until the
    /// datastore is probably unreachable.
    pub(super) async fn replay_by_urgency(
        &self,
        locked: &LockedJournal<'_>,
        limit: ReplayLimit,
        urgency: impl Fn(&PendingDel) -> Urgency,
    ) -> ReplayOutcome {
        let begun = Instant::now();
        let mut entries = self.pending_entries(locked);
        entries.sort_by_key(|(_, pending_del)| urgency(pending_del));
        let (mut attempts, mut replayed, total) = (0, 0, entries.len());
        for (entry, pending_del) in entries {
            let is_required = urgency(&pending_del) == Urgency::Required;
            if !is_required && (attempts >= limit.entries || begun.elapsed() >= limit.time) {
                break;
            }
            attempts += 1;
            let span = self.span_of(&pending_del);
            let Err(error) = self.replay(locked, &entry, &pending_del).instrument(span.clone()).await else {
                replayed += 1;
                continue;
            };
            let _entered = span.entered();
            tracing::warn!(
                entry = %entry.display(), %error,
                "cannot complete the replay of a deferred DEL; the journal entry stays for a later replay"
            );
            // An entry whose replay always fails must not block the others.
            if let Err(error) = locked.postpone(&entry) {
                tracing::warn!(
                    entry = %entry.display(), %error,
                    "cannot postpone the journal entry; later replays may try this entry before others"
                );
            }
            // With this code the datastore is probably unreachable for all further deferred DELs.
            if error.code == Code::TRY_AGAIN && !is_required {
                break;
            }
        }
        ReplayOutcome { replayed, remaining: total - replayed }
    }

    /// Records the identity of this datastore, and returns its deferred DELs. Omits entries without a node if this
    /// process does not know the name of the node either.
    pub(super) fn pending_entries(&self, locked: &LockedJournal<'_>) -> Vec<(PathBuf, PendingDel)> {
        if let Err(error) = locked.record_identity(&self.target) {
            tracing::warn!(
                datastore = %self.target.name, %error,
                "cannot completely record the identity of the datastore; the stored identity, or some journal entries \
                 without an identity, stay as they are"
            );
        }
        let mut entries = locked.pending(&self.target);
        entries.retain(|(_, pending_del)| !pending_del.node.is_empty() || !self.node.is_empty());
        entries
    }

    /// Replays one deferred DEL: removes the addresses from the endpoint and then releases them and removes the journal
    /// entry. On etcd and the embedded datastore the addresses stay allocated if the container has an endpoint with
    /// another interface name; the journal entry is removed nevertheless.
    pub(super) async fn replay(
        &self,
        locked: &LockedJournal<'_>,
        entry: &Path,
        pending_del: &PendingDel,
    ) -> Result<(), CniError> {
        let pending_del = &pending_del.clone().with_default_node(self.node);
        let workload = pending_del.attachment();
        let store = self.store;
        let endpoints = ContainerEndpoints::new(store, workload.clone()).including_unnamed(&pending_del.pod_uid);
        endpoints.delete_own().await.map_err(|error| cni_error(&error))?;
        // On Kubernetes a pod has one endpoint, independent of the name of its interface.
        let is_shared = !matches!(store, Datastore::Kubernetes(_)) && has_other_endpoint(store, &workload).await?;
        if is_shared {
            tracing::info!(
                "keeping the addresses of a deferred DEL: the container has an endpoint with another interface name"
            );
        } else {
            ipam::release::release_deferred(store, pending_del, &endpoints).await?;
            Box::pin(self.release_vmi(pending_del, &endpoints)).await?;
        }
        locked.remove(entry).map_err(journal_error)?;
        let PendingDel { network, ifname, .. } = pending_del;
        tracing::info!(%network, %ifname, "replayed a deferred DEL and removed its journal entry");
        Ok(())
    }

    /// Removes the pod of a deferred DEL from the owners of its VMI's addresses.
    async fn release_vmi(&self, pending_del: &PendingDel, endpoints: &impl Listings) -> Result<(), CniError> {
        if !vmi::may_have_had_vmi(pending_del) || !kubernetes_api::is_configured(self.conf, self.datastore_config) {
            return Ok(());
        }
        let opened;
        let api = match self.api {
            // The call itself sends no request to the Kubernetes API.
            KubernetesApi::Unused => {
                opened = KubernetesApi::with_environment(self.conf, self.datastore_config, self.environment)?;
                &opened
            }
            api => api,
        };
        let Some(api) = api.reached(self.store) else { return Ok(()) };
        vmi::release_deferred(self.store, api, pending_del, endpoints).await
    }

    pub(super) fn span_of(&self, pending_del: &PendingDel) -> Span {
        Subject::of_attachment(&pending_del.attachment()).span(self.replaying_container)
    }
}

/// Returns true if the container has an endpoint with another interface name. The names of the handle and of the host's
/// end do not contain the interface name, so both belong to that endpoint then.
pub(super) async fn has_other_endpoint<S: Store>(store: &S, workload: &WorkloadIdentity) -> Result<bool, CniError> {
    let (Ok(key), Ok(select)) = (workload.key(), workload.endpoint_select()) else { return Ok(false) };
    let endpoints = store.list::<WorkloadEndpoint>(&select).await;
    let endpoints = endpoints.map_err(|error| store_error("list the endpoints", &error))?;
    Ok(endpoints.iter().any(|entry| {
        workload.is_endpoint_name(&entry.key.name)
            && entry.key != key
            && entry.value.spec.container_id == workload.container_id
    }))
}
