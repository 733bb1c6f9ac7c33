use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use allocation::error::{IpamError, cni_error};
use allocation::journal::{DatastoreIdentity, LockedJournal, PendingDel};
use allocation::release::ReleaseInputs;
use datastore::DatastoreConfig;
use ipam_plugin::kubernetes_api::{self, KubernetesApi};
use libcalico::api::WorkloadEndpoint;
use libcalico::store::{EndpointForm, Store, StoreError};
use libcalico::variables::Variables;
use libcalico::workload::WorkloadIdentity;
use netconf::{CniError, NetConf};
use node_process::logging::Subject;
use os::clock::Clock as _;
use os::node_files::NodeFiles;
use time::OffsetDateTime;
use tracing::{Instrument as _, Span};

use super::urgency::Urgency;
use crate::cni_error::{journal_error, naming_error, store_error};
use crate::endpoint::{ContainerEndpoints, OtherEndpoints};
use crate::ipam::release::DeferredHandles;
use crate::world::World;
use crate::{ipam, vmi};
use dataplane::PodNetwork as _;

/// The limit of a call other than ADD and of a pass of the agent.
const DEFAULT_LIMIT: ReplayLimit = ReplayLimit {
    entries: 16,
    time: Duration::from_secs(20),
};
/// The limit of an ADD, which delays the start of its pod.
pub(super) const ADD_LIMIT: ReplayLimit = ReplayLimit {
    entries: 2,
    time: Duration::from_secs(1),
};

/// A time after which an ADD has ended, also one that was stopped.
const LONGEST_ADD: Duration = Duration::from_secs(600);

/// The number of deferred DELs, and the time, after which no further replay starts, except with
/// [`Urgency::Required`]. The limit does not end a replay in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplayLimit {
    entries: usize,
    time: Duration,
}

/// The outcome of replays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayOutcome {
    /// Number of deferred DELs that were replayed, or whose work is that of another one.
    pub replayed: usize,
    /// Number of deferred DELs of this datastore that remain in the journal.
    pub remaining: usize,
}

/// The state of a journal entry after a replay without failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replayed {
    /// The work is done and the entry is removed.
    Removed,
    /// The entry stays, because its handle has addresses of a later ADD. The entry never releases
    /// these.
    Kept,
}

impl Replayed {
    fn kept() -> Self {
        tracing::info!(
            reason = "a later ADD of the container has an address",
            "keeping the addresses and the journal entry of a deferred DEL"
        );
        Replayed::Kept
    }
}

/// A failed replay.
#[derive(Debug)]
pub(super) struct ReplayFailure {
    pub(super) error: CniError,
    /// True if the replays of other deferred DELs may succeed nevertheless. A tenant can cause such
    /// a failure.
    is_of_one_object: bool,
    /// True if the container's own endpoint cannot be removed.
    keeps_endpoint: bool,
}

impl ReplayFailure {
    /// Creates the failure for an error of the datastore. `doing` completes "cannot …".
    fn of_store(doing: &str, error: &StoreError) -> Self {
        ReplayFailure {
            is_of_one_object: error.is_of_one_object(),
            ..store_error(doing, error).into()
        }
    }

    fn of_endpoint(error: &IpamError) -> Self {
        ReplayFailure {
            keeps_endpoint: true,
            ..error.into()
        }
    }
}

impl From<&IpamError> for ReplayFailure {
    fn from(error: &IpamError) -> Self {
        ReplayFailure {
            is_of_one_object: error.is_of_one_object(),
            ..cni_error(error).into()
        }
    }
}

impl From<CniError> for ReplayFailure {
    /// Creates the failure for an error that concerns the entry itself.
    fn from(error: CniError) -> Self {
        ReplayFailure {
            error,
            is_of_one_object: true,
            keeps_endpoint: false,
        }
    }
}

/// Returns true if the container has no addresses of `calico-ipam`, and its endpoint is part of the
/// pod, with which it will be deleted.
fn has_nothing_to_release(
    store: &impl Store,
    pending_del: &PendingDel,
    inputs: &ReleaseInputs,
) -> bool {
    match store.endpoint_form() {
        EndpointForm::Object => false,
        EndpointForm::PodAnnotations => !pending_del.handles.is_empty() && inputs.is_empty(),
    }
}

/// Moves an entry behind the others: an entry whose replay always fails must not block these.
fn postpone(locked: &LockedJournal<'_>, entry: &Path, now: OffsetDateTime) {
    if let Err(error) = locked.postpone(entry, now) {
        tracing::warn!(
            entry = %entry.display(), %error,
            "cannot postpone the journal entry"
        );
    }
}

/// The datastore whose deferred DELs are replayed, and the other inputs of a replay.
pub struct Replayer<'a, W: World> {
    /// The configuration of the plugins.
    pub conf: &'a NetConf,
    /// The environment variables that complete the configuration.
    pub variables: Variables<'a>,
    /// The settings of the connection to the datastore.
    pub datastore_config: &'a DatastoreConfig,
    /// The datastore.
    pub store: &'a W::Store,
    /// The Kubernetes API.
    pub api: &'a KubernetesApi<W::Store>,
    /// The clock.
    pub clock: &'a W::Clock,
    /// The network of the node.
    pub network: &'a W::Network,
    /// The files and locks of the node.
    pub files: &'a NodeFiles,
    /// The node of deferred DELs that do not name one; empty if the node's name is unknown.
    pub node: &'a str,
    /// The ID of the container whose call replays; empty for the agent.
    pub replaying_container: &'a str,
    /// Name and identity of the datastore, as in the entries of the journal.
    pub target: DatastoreIdentity,
}

impl<W: World> Replayer<'_, W> {
    /// Replays a bounded number of deferred DELs.
    pub async fn replay_some(&self, locked: &LockedJournal<'_>) -> ReplayOutcome {
        self.replay_by_urgency(locked, DEFAULT_LIMIT, |_| Urgency::NotRequired)
            .await
    }

    /// Tries to replay all deferred DELs with [`Urgency::Required`], and then others, until
    /// `limit`. Ends at a failure of the whole datastore. After another failure, the other entries
    /// of the same pod are left to a later pass, except that [`merge`](Self::merge) may remove
    /// some.
    pub(super) async fn replay_by_urgency(
        &self,
        locked: &LockedJournal<'_>,
        limit: ReplayLimit,
        urgency: impl Fn(&PendingDel) -> Urgency,
    ) -> ReplayOutcome {
        let begun = self.clock.elapsed();
        let mut entries = self.pending_entries(locked);
        entries.sort_by_key(|(_, pending_del)| urgency(pending_del));
        let (mut attempts, mut replayed, total) = (0, 0, entries.len());
        // Each with the endpoints that cannot be removed.
        let mut failed_pods = BTreeMap::<_, BTreeSet<_>>::new();
        for (entry, pending_del) in entries {
            let is_over = attempts >= limit.entries || self.clock.elapsed() - begun >= limit.time;
            if is_over && urgency(&pending_del) != Urgency::Required {
                break;
            }
            let pod = pending_del
                .pod()
                .map(|(namespace, name)| (namespace.to_owned(), name));
            let span = self.span_of(&pending_del);
            // The entries of a pod usually fail for one reason, and a pod may have any number of
            // them. They keep their place, so that a later pass tries another one.
            if let Some(kept_endpoints) = pod.as_ref().and_then(|pod| failed_pods.get(pod)) {
                let has_handles = !pending_del.handles.is_empty();
                if kept_endpoints.contains(&pending_del.endpoint) && !(is_over && has_handles) {
                    attempts += usize::from(has_handles);
                    replayed += usize::from(
                        self.merge(locked, &entry, &pending_del)
                            .instrument(span)
                            .await,
                    );
                }
                continue;
            }
            attempts += 1;
            let outcome = self
                .replay(locked, &entry, &pending_del)
                .instrument(span.clone())
                .await;
            let _entered = span.entered();
            match &outcome {
                Ok(Replayed::Removed) => {
                    replayed += 1;
                    continue;
                }
                Ok(Replayed::Kept) => {}
                Err(ReplayFailure {
                    error,
                    keeps_endpoint,
                    ..
                }) => {
                    tracing::warn!(
                        entry = %entry.display(), %error,
                        "cannot replay a deferred DEL; the journal entry stays"
                    );
                    if let Some(pod) = pod {
                        let kept_endpoints = failed_pods.entry(pod).or_default();
                        kept_endpoints.extend(keeps_endpoint.then_some(pending_del.endpoint));
                    }
                }
            }
            postpone(locked, &entry, self.clock.now());
            if outcome.is_err_and(|failure| !failure.is_of_one_object) {
                break;
            }
        }
        ReplayOutcome {
            replayed,
            remaining: total - replayed,
        }
    }

    /// Removes the entry if its handles hold no address. Its remaining work is then to remove an
    /// endpoint, which the entry of another container of the same pod has just failed to remove and
    /// tries again. Returns true if the entry is removed.
    async fn merge(
        &self,
        locked: &LockedJournal<'_>,
        entry: &Path,
        pending_del: &PendingDel,
    ) -> bool {
        let pending_del = &pending_del.clone().with_default_node(self.node);
        let handles = ipam::release::read_deferred(self.store, pending_del).await;
        let holds_none = matches!(handles, Ok(DeferredHandles::Own(inputs)) if inputs.is_empty());
        // The addresses of a virtual machine have another handle.
        if !holds_none || vmi::may_have_had_vmi(pending_del) {
            return false;
        }
        let removed = locked.remove(entry);
        match &removed {
            Ok(()) => tracing::info!(
                reason = "another entry of the pod has the same endpoint",
                "removed the journal entry of a deferred DEL without addresses"
            ),
            Err(error) => {
                tracing::warn!(entry = %entry.display(), %error, "cannot remove the journal entry")
            }
        }
        removed.is_ok()
    }

    /// Records the identity of this datastore, and returns its deferred DELs. Omits entries without
    /// a node if this process does not know the name of the node either.
    pub(super) fn pending_entries(&self, locked: &LockedJournal<'_>) -> Vec<(PathBuf, PendingDel)> {
        if let Err(error) = locked.record_identity(&self.target) {
            tracing::warn!(
                datastore = %self.target.name, %error,
                "cannot record the identity of the datastore for all journal entries"
            );
        }
        let mut entries = locked.pending(&self.target);
        entries.retain(|(_, pending_del)| !pending_del.node.is_empty() || !self.node.is_empty());
        entries
    }

    /// Replays one deferred DEL: removes the addresses from the endpoint and then releases them and
    /// removes the journal entry. On etcd and the embedded datastore the addresses stay allocated
    /// if the container has an endpoint with another interface name; the journal entry is removed
    /// nevertheless. Changes nothing, and keeps the entry, if an ADD of the container has got an
    /// address since the DEL.
    pub(super) async fn replay(
        &self,
        locked: &LockedJournal<'_>,
        entry: &Path,
        pending_del: &PendingDel,
    ) -> Result<Replayed, ReplayFailure> {
        let mut pending_del = pending_del.clone().with_default_node(self.node);
        let workload = pending_del.attachment();
        let store = self.store;
        let unreadable = |error| ReplayFailure::of_store("read the handles", &error);
        let mut handles = ipam::release::read_deferred(store, &pending_del)
            .await
            .map_err(unreadable)?;
        if let DeferredHandles::Newer(newer) = &handles
            && self.is_without_later_add(&pending_del, newer)
        {
            pending_del.allocated_before = 0;
            handles = ipam::release::read_deferred(store, &pending_del)
                .await
                .map_err(unreadable)?;
        }
        let DeferredHandles::Own(inputs) = handles else {
            return Ok(Replayed::kept());
        };
        let pending_del = &pending_del;
        let endpoints = ContainerEndpoints::new(store, workload.clone())
            .including_unnamed(&pending_del.pod_uid)
            .delete_own()
            .await;
        if let Err(error) = &endpoints {
            if !has_nothing_to_release(store, pending_del, &inputs) || !error.is_of_one_object() {
                return Err(ReplayFailure::of_endpoint(error));
            }
            tracing::warn!(
                %error,
                "cannot remove the endpoint of a deferred DEL; not trying again"
            );
        }
        let is_shared = has_other_endpoint(store, &workload).await;
        if is_shared.map_err(|error| ReplayFailure::of_store("list the endpoints", &error))? {
            tracing::info!(
                reason = "the container has an endpoint with another interface name",
                "keeping the addresses of a deferred DEL"
            );
        } else {
            let (clock, files) = (self.clock.restarted(), self.files);
            let released = ipam::release::release_deferred(
                store,
                &clock,
                files,
                pending_del,
                inputs,
                &endpoints,
            )
            .await;
            if !released.map_err(|error| ReplayFailure::from(&error))? {
                return Ok(Replayed::kept());
            }
            Box::pin(self.release_vmi(pending_del, &endpoints)).await?;
        }
        locked.remove(entry).map_err(journal_error)?;
        let PendingDel {
            network, ifname, ..
        } = pending_del;
        tracing::info!(%network, %ifname, "replayed a deferred DEL and removed its journal entry");
        Ok(Replayed::Removed)
    }

    /// Returns true if no ADD of the container has followed the deferred DEL, although `newer`, its
    /// addresses, look so: the clock was set back between the ADD and the DEL. An ADD ends within
    /// [`LONGEST_ADD`] and leaves an interface.
    fn is_without_later_add(
        &self,
        pending_del: &PendingDel,
        newer: &BTreeMap<IpAddr, OffsetDateTime>,
    ) -> bool {
        let now = self.clock.now();
        let is_recent = |at: &OffsetDateTime| (now - LONGEST_ADD..=now).contains(at);
        if newer.values().any(is_recent) || self.conf.dataplane_options.grpc_socket().is_some() {
            return false;
        }
        let has_interface = self
            .network
            .has_interface(&pending_del.container_id, newer.keys());
        match has_interface {
            Ok(has_interface) => !has_interface,
            Err(error) => {
                tracing::warn!(
                    %error, "cannot list the interfaces of this node, and so keeps the addresses",
                );
                false
            }
        }
    }

    /// Removes the pod of a deferred DEL from the owners of its VMI's addresses.
    async fn release_vmi(
        &self,
        pending_del: &PendingDel,
        endpoints: &Result<OtherEndpoints<'_, W::Store>, IpamError>,
    ) -> Result<(), ReplayFailure> {
        if !vmi::may_have_had_vmi(pending_del)
            || !kubernetes_api::is_configured(self.conf, self.datastore_config)
        {
            return Ok(());
        }
        let opened;
        let api = match self.api {
            // The call itself sends no request to the Kubernetes API.
            KubernetesApi::Unused => {
                opened = W::open_api(self.conf, self.datastore_config, self.variables)?;
                &opened
            }
            api => api,
        };
        let Some(api) = api.reached(self.store) else {
            return Ok(());
        };
        // The recorded endpoint name contains a placeholder if the name of the node was unknown to
        // the DEL.
        let key = pending_del
            .attachment()
            .key()
            .map_err(|error| naming_error(&error))?;
        let detected = vmi::detect_deferred(self.store, api, pending_del, &key).await;
        let detected = detected.map_err(|error| ReplayFailure::from(&IpamError::from(error)))?;
        let Some(vmi) = detected else { return Ok(()) };
        let (clock, files) = (self.clock.restarted(), self.files);
        let released =
            vmi::release_deferred(self.store, &clock, files, pending_del, &vmi, endpoints).await;
        released.map_err(|error| ReplayFailure::from(&error))
    }

    pub(super) fn span_of(&self, pending_del: &PendingDel) -> Span {
        Subject::of_attachment(&pending_del.attachment()).span(self.replaying_container)
    }
}

/// Returns true if the container has an endpoint with another interface name. The names of the
/// handle and of the host's end do not contain the interface name, so both belong to that endpoint
/// then. A pod whose annotations represent the endpoint has one, whatever its interface's name is.
pub(super) async fn has_other_endpoint<S: Store>(
    store: &S,
    workload: &WorkloadIdentity,
) -> Result<bool, StoreError> {
    match store.endpoint_form() {
        EndpointForm::PodAnnotations => return Ok(false),
        EndpointForm::Object => {}
    }
    let (Ok(key), Ok(select)) = (workload.key(), workload.endpoint_select()) else {
        return Ok(false);
    };
    let endpoints = store.list::<WorkloadEndpoint>(&select).await?;
    Ok(endpoints.iter().any(|entry| {
        workload.is_endpoint_name(&entry.key.name)
            && entry.key != key
            && entry.value.spec.container_id == workload.container_id
    }))
}
