//! [`SameCluster`]: whether the API server is that of the cluster whose nodes the datastore has
//! (etcd only).
//!
//! An object in the datastore is deleted because its object in Kubernetes is missing. In the API
//! server of another cluster, or in one whose data are lost, every object is missing. So deletions
//! wait while Calico has nodes of Kubernetes and Kubernetes has none of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::settings::Settings;

/// Interval at which work looks again whether deletions are allowed.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// Time after which nodes that are not listed are reported.
const LISTING_TIME: Duration = Duration::from_secs(300);
/// Time for which a read of a common node shows that the API server is still that of the same
/// cluster.
const CONFIRMED_FOR: Duration = Duration::from_secs(2);
/// Time for which deletions wait if a common node cannot be read.
const UNREADABLE_FOR: Duration = Duration::from_secs(2);
/// Grace period where the settings disable that of leaks.
const DEFAULT_GRACE_PERIOD: Duration = Duration::from_secs(15 * 60);

/// The time since which Kubernetes and Calico have had no node in common. Clones share the state.
/// Every deletion is allowed until the nodes are followed.
#[derive(Debug, Clone, Default)]
pub struct SameCluster(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The number of Calico's nodes; `None` if the nodes are not listed yet.
    listed: Option<usize>,
    /// The time since which the nodes are to be listed; `None` before they are followed.
    followed: Option<Instant>,
    /// True if it was reported that the nodes are not listed.
    is_missing_list_reported: bool,
    mismatch: Option<Mismatch>,
    /// A node that Kubernetes and Calico have.
    common: Option<String>,
    /// The time of the last read of a common node.
    confirmed: Option<Instant>,
    /// The time until which deletions wait because that read failed.
    refused_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Mismatch {
    kind: MismatchKind,
    since: Instant,
    reported: bool,
}

/// The difference between the nodes of Kubernetes and those of Calico.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MismatchKind {
    /// Kubernetes has no Node.
    NoNode,
    /// Kubernetes has Nodes, and Calico has none of them.
    NoCommonNode,
}

impl SameCluster {
    /// Holds deletions until the next [`SameCluster::observe`]. The time of a mismatch stays.
    pub(crate) fn await_nodes(&self) {
        let mut state = self.lock();
        (state.followed, state.listed, state.common) = (Some(Instant::now()), None, None);
        state.is_missing_list_reported = false;
    }

    /// Stores the comparison of the listed nodes: the mismatch, or the name of a common node, and
    /// the number of Calico's nodes.
    pub(crate) fn observe(&self, kind: Option<MismatchKind>, common: Option<&str>, nodes: usize) {
        let mut state = self.lock();
        state.listed = Some(nodes);
        if state.common.as_deref() != common {
            (state.common, state.refused_until) = (common.map(str::to_owned), None);
        }
        if state.mismatch.map(|mismatch| mismatch.kind) != kind {
            state.mismatch = kind.map(|kind| Mismatch {
                kind,
                since: Instant::now(),
                reported: false,
            });
        }
    }

    /// Returns the time after which to ask again, or `None` if deletions are allowed.
    pub(crate) fn hold(&self, settings: &Settings) -> Option<Duration> {
        let state = self.lock();
        state.followed?;
        if state.listed.is_none() {
            return Some(CHECK_INTERVAL);
        }
        let refused = state
            .refused_until
            .map_or(Duration::ZERO, |until| until.duration_since(Instant::now()));
        if !refused.is_zero() {
            return Some(refused);
        }
        match state.mismatch? {
            Mismatch {
                kind: MismatchKind::NoNode,
                ..
            } => Some(CHECK_INTERVAL),
            Mismatch {
                kind: MismatchKind::NoCommonNode,
                since,
                ..
            } => {
                let remaining = grace_period(settings).saturating_sub(since.elapsed());
                (!remaining.is_zero()).then(|| remaining.min(CHECK_INTERVAL))
            }
        }
    }

    /// Returns the name of a common node that must be read before a deletion; `None` if it has just
    /// been read, or if there is none. The watch of the nodes may be behind those of other objects,
    /// or be connected to another API server.
    pub(crate) fn unconfirmed(&self) -> Option<String> {
        let state = self.lock();
        let is_confirmed = state
            .confirmed
            .is_some_and(|read| read.elapsed() < CONFIRMED_FOR);
        state.common.clone().filter(|_| !is_confirmed)
    }

    /// Records that the API server has a common node.
    pub(crate) fn confirm(&self) {
        self.lock().confirmed = Some(Instant::now());
    }

    /// Records that the API server lacks a common node, or that its answer is unreadable. Returns
    /// the time for which deletions wait.
    pub(crate) fn refuse(&self, is_unreadable: bool) -> Duration {
        let wait = if is_unreadable {
            UNREADABLE_FOR
        } else {
            CHECK_INTERVAL
        };
        self.lock().refused_until = Some(Instant::now() + wait);
        wait
    }

    /// Returns the text about a mismatch, or about nodes that are not listed, that has not been
    /// reported.
    pub(crate) fn new_report(&self, settings: &Settings) -> Option<String> {
        let mut state = self.lock();
        let Some(count) = state.listed else {
            let is_late = state
                .followed
                .is_some_and(|since| since.elapsed() >= LISTING_TIME);
            let is_new =
                is_late && !std::mem::replace(&mut state.is_missing_list_reported, is_late);
            return is_new.then(|| {
                "the nodes of Kubernetes or of Calico are not listed yet; nothing is deleted from \
                 the datastore until they are; check that the role of kube-controllers may list \
                 and watch nodes, and its user of etcd read them"
                    .to_owned()
            });
        };
        let mismatch = state
            .mismatch
            .as_mut()
            .filter(|mismatch| !mismatch.reported)?;
        mismatch.reported = true;
        let advice = "check that kubeconfig and etcd endpoints name the same cluster";
        Some(match mismatch.kind {
            MismatchKind::NoNode => format!(
                "Kubernetes has no Node, but the datastore has {count} of its nodes; nothing is \
                 deleted from the datastore until a Node exists; {advice}"
            ),
            MismatchKind::NoCommonNode => format!(
                "Kubernetes has none of the {count} nodes in the datastore; they and other objects \
                 that Kubernetes lacks are deleted in {:?}; {advice}",
                grace_period(settings)
            ),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn grace_period(settings: &Settings) -> Duration {
    settings
        .leak_grace_period
        .filter(|grace| !grace.is_zero())
        .unwrap_or(DEFAULT_GRACE_PERIOD)
}
