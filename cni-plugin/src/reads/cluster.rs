//! The state of the cluster, which every verb reads together with its other objects.

use allocation::cluster_state::{self, NotReadyError, first_read_error};
use datastore::ClusterStore as _;
use libcalico::store::StoreError;
use netconf::CniError;

use super::call_batch::{CallAnswers, CallBatch};
use crate::context::Context;
use crate::world::World;

/// The readiness of the datastore, as its ClusterInformation shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClusterState {
    Ready,
    /// The datastore is not ready, for example during an upgrade of the cluster (CNI-75, CNI-76).
    Locked,
    /// There is no ClusterInformation: the datastore was never set up, or is being set up again.
    Missing,
}

/// A datastore that no verb may change.
#[derive(Debug)]
pub(super) struct NotReady {
    /// The error of the call.
    pub(super) error: CniError,
    /// True if there is no ClusterInformation, see [`ClusterState::Missing`].
    pub(super) is_missing: bool,
}

impl From<NotReady> for CniError {
    fn from(not_ready: NotReady) -> Self {
        not_ready.error
    }
}

impl ClusterState {
    pub(super) fn of(answers: &CallAnswers<'_, impl World>) -> Result<Self, StoreError> {
        Ok(match answers.cluster_information()? {
            None => ClusterState::Missing,
            Some(cluster) if cluster.spec.datastore_ready == Some(true) => ClusterState::Ready,
            Some(_) => ClusterState::Locked,
        })
    }

    fn ensure_ready(self) -> Result<(), NotReady> {
        let error = match self {
            ClusterState::Ready => return Ok(()),
            ClusterState::Locked => NotReadyError::Locked.into(),
            ClusterState::Missing => first_read_error(&StoreError::NotFound {
                key: "ClusterInformation(default)".into(),
            }),
        };
        Err(NotReady {
            error,
            is_missing: self == ClusterState::Missing,
        })
    }
}

/// Reads the ClusterInformation. Fails if this is not possible or the datastore is not ready.
pub async fn ensure_cluster_is_ready(cx: &Context<impl World>) -> Result<(), CniError> {
    let read = async || {
        let answers = CallBatch::new(cx).read().await?;
        Ok((ClusterState::of(&answers)?, ()))
    };
    let (ready, ()) = in_present_group(cx, read)
        .await
        .map_err(|error| first_read_error(&error))?;
    Ok(ready?)
}

/// Returns the objects that `read` reads, and whether the datastore is ready. If a migration has
/// locked the API group and moved the objects to `projectcalico.org/v3`, switches to that group and
/// reads again, unless the configuration names the old group.
pub(super) async fn in_present_group<T>(
    cx: &Context<impl World>,
    mut read: impl AsyncFnMut() -> Result<(ClusterState, T), StoreError>,
) -> Result<(Result<(), NotReady>, T), StoreError> {
    let (state, objects) = read().await?;
    if state == ClusterState::Ready {
        return Ok((Ok(()), objects));
    }
    stop_prefetch(cx).await;
    let has_moved = cluster_state::has_moved(&cx.store).await;
    if has_moved && !cx.store.has_configured_group() {
        cluster_state::switch_to_v3(&cx.store).await?;
        let (state, objects) = read().await?;
        if state != ClusterState::Ready {
            stop_prefetch(cx).await;
        }
        return Ok((state.ensure_ready(), objects));
    }
    let ready = if has_moved {
        Err(NotReady {
            error: NotReadyError::Moved.into(),
            is_missing: state == ClusterState::Missing,
        })
    } else {
        state.ensure_ready()
    };
    Ok((ready, objects))
}

/// Records on the node that the datastore is not ready, so that later ADDs do not prefetch.
async fn stop_prefetch(cx: &Context<impl World>) {
    if let Some(request) = cx.ipam_request() {
        Box::pin(request.stop_prefetch(None)).await;
    }
}
