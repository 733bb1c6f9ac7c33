//! [`NodeRollout`]: checks if the DaemonSet `calico-node` is rolled out in its newest version
//! (KC-284).

use datastore::kubernetes::ObjectError;
use node_process::process;

use crate::leader::namespace_of_pod;
use crate::rollout::{DAEMON_SETS, Rollout, RolloutState};

const NAME: &str = "calico-node";
/// Namespace of the DaemonSet if the namespace of this process's pod is unknown.
const NAMESPACE: &str = "calico-system";
/// Variable that skips the check if its value is `true`. Upstream's tests set it, because they have
/// no DaemonSet.
const SKIP: &str = "FV_TEST";

pub(super) struct NodeRollout {
    kubernetes: kube::Client,
    namespace: String,
    skip: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RolloutBlocker {
    /// The DaemonSet is missing, for example because Canal uses another name.
    #[error("the DaemonSet {namespace}/{NAME} is missing")]
    Missing { namespace: String },
    #[error("cannot read the DaemonSet {namespace}/{NAME}; no policy is renamed: {cause}")]
    Unreadable {
        namespace: String,
        cause: ObjectError,
    },
    #[error("the roll-out of the DaemonSet {namespace}/{NAME} is not complete")]
    InProgress { namespace: String },
}

impl NodeRollout {
    /// Selects the DaemonSet in the namespace of this process's pod, or else in [`NAMESPACE`].
    /// Sends no request.
    pub(super) fn from_environment(kubernetes: kube::Client) -> Self {
        let namespace = namespace_of_pod().unwrap_or_else(|| NAMESPACE.into());
        let skip = process::variables().text(SKIP, "") == "true";
        NodeRollout {
            kubernetes,
            namespace,
            skip,
        }
    }

    pub(super) async fn check_complete(&self) -> Result<(), RolloutBlocker> {
        if self.skip {
            return Ok(());
        }
        let namespace = self.namespace.clone();
        match Rollout::of(&namespace, DAEMON_SETS, NAME)
            .state(&self.kubernetes)
            .await
        {
            Ok(RolloutState::Complete) => Ok(()),
            Ok(_) => Err(RolloutBlocker::InProgress { namespace }),
            Err(cause) if cause.is_missing() => Err(RolloutBlocker::Missing { namespace }),
            Err(cause) => Err(RolloutBlocker::Unreadable { namespace, cause }),
        }
    }
}
