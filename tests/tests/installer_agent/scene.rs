//! A pod that may make tokens, and what its requests for tokens come to.

use anyhow::Result;
use integration_tests::clock::Ahead;
use integration_tests::kubernetes::{Audit, Kubernetes, on_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::node_pod::{Agent, NAMESPACE, NodePod, may_make_tokens};
use serde_json::Value;

/// The account of the plugins.
pub(crate) const PLUGINS: &str = "calico-cni-plugin";

/// The configuration that it installs.
pub(crate) const CONF: &str = "10-calico.conflist";

/// Why a test with [`Hastened`] is skipped.
pub(crate) const REASON: &str =
    "the instructions of this machine are not known, so no clock can be set for one process";

/// More than passes between two looks at the files.
const LOOK: i32 = 90;

/// An agent whose clocks can be set on, so that it looks at its files when the test wants it to.
pub(crate) struct Hastened {
    pub(crate) agent: Agent,
    slept: i32,
}

impl Hastened {
    pub(crate) fn start(pod: &NodePod) -> Hastened {
        Hastened { agent: pod.agent().unwrap(), slept: 0 }
    }

    /// Both clocks: as if the machine had slept.
    pub(crate) fn look(&mut self) {
        self.slept += LOOK;
        self.agent.set_clocks(Ahead { calendar: self.slept, boot: self.slept }).unwrap();
    }
}

/// Runs a test in a pod that may make tokens for the plugins.
pub(crate) fn in_pod(test: impl FnOnce(&Host, &mut Kubernetes, NodePod) + Send) {
    on_kubernetes(|host, kubernetes| {
        let api = &kubernetes.api;
        let pod = NodePod::new(host, api, integration_tests::kubernetes::ENDPOINT).unwrap();
        api.service_account(NAMESPACE, PLUGINS).unwrap();
        may_make_tokens(api, &pod, PLUGINS).unwrap();
        test(host, kubernetes, pod);
    });
}

/// How many tokens the pod asked for.
pub(crate) fn asked(audit: &Audit, pod: &NodePod) -> Result<usize> {
    Ok(audit.of(&pod.account.user)?.iter().filter(|request| request.resource == "serviceaccounts/token").count())
}

/// The claims of a token.
pub(crate) fn claims(token: &str) -> Value {
    use base64::Engine;
    let middle = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(middle).unwrap()).unwrap()
}

/// As whom the API server knows a token.
pub(crate) fn user(kubernetes: &Kubernetes, pod: &NodePod) -> Option<String> {
    let review = serde_json::json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let client = pod.client(&kubernetes.api).ok()?;
    let answer = client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).ok()?;
    answer.body["status"]["userInfo"]["username"].as_str().map(str::to_owned)
}

/// Installs as the init container does.
pub(crate) fn install(pod: &mut NodePod) {
    for (name, value) in [("SLEEP", "false"), ("CNI_TRY_SECONDS", "0"), ("KUBERNETES_NODE_NAME", "node1")] {
        pod.set(name, value);
    }
    let outcome = pod.calico(&["install"]).run().unwrap();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
}
