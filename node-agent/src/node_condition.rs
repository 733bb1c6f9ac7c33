//! [`NodeCondition`]: reads the Ready condition of this node's Node, if
//! `CNI_NODE_CONDITION_INTERVAL` is set. The condition can show that the configuration is in a
//! directory that no runtime reads: all files are in place then, but kubelet reports that there is
//! no network.

use std::time::Duration;

use datastore::kubernetes::{self, ObjectRequest};
use libcalico::failure::Failure;
use libcalico::kubernetes::{Location, NODES};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::status::SharedStatus;
use installation::service_account::ServiceAccount;

/// Time limit for one request.
const DEADLINE: Duration = Duration::from_secs(10);

/// Number of consecutive reports of a missing network after which the agent is not ready. The first
/// report may be older than the configuration.
const REPORT_LIMIT: u32 = 2;

/// A part of kubelet's message while the runtime has no network. Kubelet derives it from the
/// runtime's status in CRI.
const NO_NETWORK: &str = "NetworkReady=false";

/// The parameters for reading the Ready condition of a Node.
#[derive(Debug)]
pub struct NodeCondition {
    /// The account that sends the requests. It needs the verb `get` on nodes.
    pub account: ServiceAccount,
    /// The name of the Node.
    pub node: String,
    /// The configuration directory on the node, for messages.
    pub net_dir: String,
    /// Interval between two requests.
    pub interval: Duration,
}

impl NodeCondition {
    /// Reads the condition at each `interval`, and writes `has_network` and `node_problem` to the
    /// status. Never returns.
    pub(super) async fn watch(self, status: SharedStatus) {
        let (mut reports, mut reported) = (0_u32, String::new());
        loop {
            let outcome = self.read().await;
            let failure = outcome
                .as_ref()
                .err()
                .map(ToString::to_string)
                .unwrap_or_default();
            if !failure.is_empty() && failure != reported {
                let Self { node, .. } = &self;
                tracing::warn!(
                    node,
                    error = %failure,
                    hint = "allow this pod's service account to get nodes, or unset CNI_NODE_CONDITION_INTERVAL",
                    "cannot read the Ready condition of the Node"
                );
            }
            reported = failure;
            let condition = outcome.ok().flatten();
            let missing = condition.as_ref().and_then(missing_network);
            let has_network = condition.as_ref().map(|_| missing.is_none());
            reports = if missing.is_some() {
                reports.saturating_add(1)
            } else {
                0
            };
            let problem = missing
                .filter(|_| reports >= REPORT_LIMIT)
                .map(|message| self.problem(message));
            {
                let mut status = status.get();
                if let Some(problem) = problem.as_ref().filter(|_| problem != status.node_problem) {
                    tracing::error!("{problem}");
                }
                status.has_network = has_network;
                status.node_problem = problem;
            }
            sleep(self.interval).await;
        }
    }

    /// Returns the Ready condition, if kubelet reports it.
    async fn read(&self) -> Result<Option<Value>, Failure> {
        let client = kubernetes::client(&self.account.access(DEADLINE)?).await?;
        // With `resourceVersion=0` the API server answers from its cache.
        let node = Location::global(NODES, &self.node);
        let request = ObjectRequest::get(&node).query("resourceVersion", "0");
        match timeout(DEADLINE, request.send::<Value>(&client)).await {
            Ok(Ok(node)) => Ok(ready_condition(&node).cloned()),
            Ok(Err(error)) => Err(Failure::new(match error.status() {
                Some(status) => status.message.clone(),
                None => datastore::describe_error_chain(&error),
            })),
            Err(_) => Err(Failure::new(format_args!("no answer within {DEADLINE:?}"))),
        }
    }

    fn problem(&self, message: &str) -> String {
        let NodeCondition { node, net_dir, .. } = self;
        format!(
            "kubelet reports for Node {node}: {message}; the configuration is in {net_dir}, and \
             the container runtime may read another directory: mount that one, and set CNI_NET_DIR \
             to it"
        )
    }
}

/// Returns the Ready condition that kubelet reports. The node controller sets the status `Unknown`
/// when kubelet no longer reports.
fn ready_condition(node: &Value) -> Option<&Value> {
    let mut conditions = node["status"]["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == "Ready" && condition["status"] != "Unknown")
}

/// Returns kubelet's message if it says that the runtime has no network. Other reasons do not
/// concern the agent.
fn missing_network(condition: &Value) -> Option<&str> {
    let message = condition["message"].as_str().unwrap_or_default();
    (condition["status"] == "False" && message.contains(NO_NETWORK)).then_some(message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_kubelets_message_about_the_network_counts() {
        let network = "container runtime network not ready: NetworkReady=false \
                       reason:NetworkPluginNotReady message:Network plugin returns error: cni \
                       plugin not initialized";
        let message = |status: &str, message: &str| {
            let conditions = json!([{ "type": "DiskPressure", "status": "False" },
                { "type": "Ready", "status": status, "message": message }]);
            let node = json!({ "status": { "conditions": conditions } });
            let condition = ready_condition(&node);
            (
                condition.is_some(),
                condition.and_then(missing_network).map(str::to_owned),
            )
        };
        assert_eq!(message("False", network), (true, Some(network.to_owned())));
        assert_eq!(
            message("True", "kubelet is posting ready status"),
            (true, None)
        );
        assert_eq!(message("False", "PLEG is not healthy"), (true, None));
        assert_eq!(
            message("Unknown", "Kubelet stopped posting node status."),
            (false, None)
        );
        assert!(ready_condition(&json!({ "status": {} })).is_none());
    }
}
