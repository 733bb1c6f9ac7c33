//! A pod that may create tokens, and the results of its requests.

use std::fs;
use std::ops::{Deref, DerefMut};

use anyhow::Result;
use integration_tests::clock::Ahead;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::installation::BIN;
use integration_tests::kubernetes::{
    Access, ApiServer, Audit, ENDPOINT, Kubernetes, on_prepared_kubernetes,
};
use integration_tests::namespaces::Host;
use integration_tests::node_pod::{Agent, NAMESPACE, NodePod, POD_ACCOUNT, may_make_tokens};
use serde_json::Value;

pub(crate) const PLUGINS: &str = "calico-cni-plugin";

pub(crate) const CONF: &str = "10-calico.conflist";

/// Path of the binding that [`may_make_tokens`] creates.
const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/\
                       calico-cni-tokens.kube-system.calico-node";

/// Reason for which a test with [`ClockedAgent`] is skipped.
pub(crate) const REASON: &str =
    "the instructions of this machine are not known, so no clock can be set for one process";

/// Longer than the interval between two checks of the files, in seconds.
const CHECK_INTERVAL: i32 = 90;

/// An agent whose clocks a test can advance.
pub(crate) struct ClockedAgent {
    agent: Agent,
    slept: i32,
    /// Number of restored files after the last wait. One check may restore several files.
    restored: i64,
}

impl ClockedAgent {
    pub(crate) fn start(pod: &NodePod) -> ClockedAgent {
        ClockedAgent::start_under(pod, "")
    }

    /// Starts the agent by another program, such as `setpriv …`.
    pub(crate) fn start_under(pod: &NodePod, wrapper: &str) -> ClockedAgent {
        ClockedAgent {
            agent: pod.agent_under(wrapper).unwrap(),
            slept: 0,
            restored: 0,
        }
    }

    /// Advances all clocks so that a check of the files is due.
    pub(crate) fn make_check_due(&mut self) {
        self.sleep(CHECK_INTERVAL);
    }

    /// Advances all clocks, as if the machine had slept.
    pub(crate) fn sleep(&mut self, seconds: i32) {
        self.slept += seconds;
        self.set_clocks(Ahead {
            calendar: self.slept,
            boot: self.slept,
            timers: self.slept,
        })
        .unwrap();
    }

    /// Lets the agent check its files, and waits until it has done so.
    pub(crate) fn check_files(&mut self) {
        let checks = self.metric("file_checks_total").unwrap();
        self.make_check_due();
        self.await_metric("file_checks_total", checks + 1).unwrap();
    }

    /// Lets the agent check its files, and waits until a check has restored a file.
    pub(crate) fn check_and_restore(&mut self) {
        self.make_check_due();
        self.await_metric("files_restored_total", self.restored + 1)
            .unwrap();
        self.restored = self.metric("files_restored_total").unwrap();
    }

    /// Removes a program and waits until the agent has restored it, which ends a check of the
    /// files.
    pub(crate) fn restore_a_program(&mut self, pod: &NodePod) {
        fs::remove_file(pod.container.path(BIN).join("portmap")).unwrap();
        self.check_and_restore();
    }
}

impl Deref for ClockedAgent {
    type Target = Agent;

    fn deref(&self) -> &Agent {
        &self.agent
    }
}

impl DerefMut for ClockedAgent {
    fn deref_mut(&mut self) -> &mut Agent {
        &mut self.agent
    }
}

/// Returns a pod that reaches the API server by `url` and may create tokens for the plugins.
pub(crate) fn pod_at(host: &Host, api: &ApiServer, url: &str) -> NodePod {
    create_accounts(api).unwrap();
    NodePod::new(host, api, url).unwrap()
}

/// Creates the account of the pod, which may create tokens for the plugins, and the account of the
/// plugins. Writes nothing if they exist.
fn create_accounts(api: &ApiServer) -> Result<()> {
    let account = api.service_account(NAMESPACE, POD_ACCOUNT)?;
    api.service_account(NAMESPACE, PLUGINS)?;
    may_make_tokens(api, &account, PLUGINS)
}

/// Runs a test in a pod that may create tokens for the plugins.
pub(crate) fn in_pod(test: impl FnOnce(&Host, &mut Kubernetes, NodePod) + Send) {
    on_prepared_kubernetes(
        "accounts of the agent",
        create_accounts,
        |host, kubernetes| {
            let pod = pod_at(host, &kubernetes.api, ENDPOINT);
            test(host, kubernetes, pod);
        },
    );
}

/// Runs a test in a pod that may not create tokens yet.
pub(crate) fn in_pod_without_rights(test: impl FnOnce(&Host, &mut Kubernetes, NodePod) + Send) {
    in_pod(|host, kubernetes, pod| {
        let api = &kubernetes.api;
        api.admin().delete(BINDING).unwrap().success();
        // Another right of the same role.
        let reads_nodes = Access {
            verb: "get",
            group: "",
            resource: "nodes",
        };
        await_that(
            PATIENCE,
            || Ok(!api.allows(&pod.account.user, reads_nodes)?),
        )
        .unwrap();
        test(host, kubernetes, pod);
    });
}

/// Returns the number of the pod's requests for a token.
pub(crate) fn token_requests(audit: &Audit, pod: &NodePod) -> Result<usize> {
    Ok(audit
        .of(&pod.account.user)?
        .iter()
        .filter(|request| request.resource == "serviceaccounts/token")
        .count())
}

pub(crate) fn claims(token: &str) -> Value {
    use base64::Engine;
    let middle = token.split('.').nth(1).unwrap();
    serde_json::from_slice(
        &base64::engine::general_purpose::URL_SAFE_NO_PAD
            .decode(middle)
            .unwrap(),
    )
    .unwrap()
}

/// Returns the user for which the API server accepts the plugins' token; `None` if there is no
/// valid token.
pub(crate) fn user(kubernetes: &Kubernetes, pod: &NodePod) -> Option<String> {
    let review = serde_json::json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
    });
    let client = pod.client(&kubernetes.api).ok()?;
    let answer = client
        .create("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review)
        .ok()?;
    answer.body["status"]["userInfo"]["username"]
        .as_str()
        .map(str::to_owned)
}

/// Installs as the init container does.
pub(crate) fn install(pod: &mut NodePod) {
    for (name, value) in [
        ("SLEEP", "false"),
        ("CNI_TRY_SECONDS", "0"),
        ("KUBERNETES_NODE_NAME", "node1"),
    ] {
        pod.set(name, value);
    }
    let outcome = pod.calico(&["install"]).run();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
}
