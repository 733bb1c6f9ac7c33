//! [`Values`]: the values of the placeholders in a template.

use serde_json::Value;

use crate::environment::Environment;

/// The placeholder of the pod's token.
pub const TOKEN: &str = "__SERVICEACCOUNT_TOKEN__";

/// The built-in template. It equals upstream's byte for byte, so that both installers produce the same file (INST-100).
pub const BUILT_IN: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "1.0.0",
  "plugins": [
    {
      "type": "calico",
      "log_level": "__LOG_LEVEL__",
      "log_file_path": "__LOG_FILE_PATH__",
      "datastore_type": "__DATASTORE_TYPE__",
      "nodename": "__KUBERNETES_NODE_NAME__",
      "mtu": __CNI_MTU__,
      "ipam": {"type": "calico-ipam"},
      "policy": {"type": "k8s"},
      "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"},
      "require_mtu_file": __REQUIRE_MTU_FILE__,
      "calico_api_group": "__CALICO_API_GROUP__"
    },
    {
      "type": "portmap",
      "snat": true,
      "capabilities": {"portMappings": true}
    }
  ]
}"#;

/// The values of the placeholders.
#[derive(Clone, PartialEq, Eq)]
pub struct Values {
    /// Placeholders in the order of replacement, which is upstream's: a value may contain a placeholder that is
    /// replaced later (INST-11).
    before: Vec<(&'static str, String)>,
    token: String,
    tls: Tls,
    after: Vec<(&'static str, String)>,
}

/// The paths of the TLS files for etcd on the node. A missing file has an empty path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The CA certificates.
    pub ca: String,
    /// The client certificate.
    pub cert: String,
    /// The key of the client certificate.
    pub key: String,
}

impl Values {
    /// Reads the values from the environment. `host_name` is the name of this machine in lower case.
    pub(crate) fn new(environment: &Environment<'_>, host_name: &str, net_dir: &str) -> Values {
        let text = |name, default| environment.text(name, default);
        Values {
            before: vec![
                ("__LOG_LEVEL__", text("LOG_LEVEL", "info")),
                ("__LOG_FILE_PATH__", text("LOG_FILE_PATH", "/var/log/calico/cni/cni.log")),
                ("__LOG_FILE_MAX_SIZE__", environment.bare("LOG_FILE_MAX_SIZE", "100")),
                ("__LOG_FILE_MAX_AGE__", environment.bare("LOG_FILE_MAX_AGE", "30")),
                ("__LOG_FILE_MAX_COUNT__", environment.bare("LOG_FILE_MAX_COUNT", "10")),
                ("__DATASTORE_TYPE__", text("DATASTORE_TYPE", "kubernetes")),
                ("__KUBERNETES_NODE_NAME__", text("KUBERNETES_NODE_NAME", host_name)),
                ("__KUBECONFIG_FILEPATH__", format!("{net_dir}/calico-kubeconfig")),
                ("__CNI_MTU__", environment.bare("CNI_MTU", "1500")),
                ("__KUBERNETES_SERVICE_HOST__", text("KUBERNETES_SERVICE_HOST", "")),
                ("__KUBERNETES_SERVICE_PORT__", text("KUBERNETES_SERVICE_PORT", "")),
                ("__CALICO_API_GROUP__", text("CALICO_API_GROUP", "crd.projectcalico.org/v1")),
            ],
            token: String::new(),
            tls: Tls::default(),
            after: vec![
                ("__ETCD_ENDPOINTS__", text("ETCD_ENDPOINTS", "")),
                ("__ETCD_DISCOVERY_SRV__", text("ETCD_DISCOVERY_SRV", "")),
                ("__REQUIRE_MTU_FILE__", environment.bare("REQUIRE_MTU_FILE", "false")),
            ],
        }
    }

    /// Sets the token of the pod.
    #[must_use]
    pub fn with_token(self, token: String) -> Values {
        Values { token, ..self }
    }

    /// Sets the TLS files for etcd.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Values {
        Values { tls, ..self }
    }

    /// Replaces the placeholders in a template and leaves all other bytes as they are.
    #[must_use]
    pub fn fill(&self, template: &str) -> String {
        let middle = [
            (TOKEN, &self.token),
            ("__ETCD_CERT_FILE__", &self.tls.cert),
            ("__ETCD_CA_CERT_FILE__", &self.tls.ca),
            ("__ETCD_KEY_FILE__", &self.tls.key),
        ];
        let (before, after) = (self.before.iter(), self.after.iter());
        let all =
            before.map(|(name, value)| (*name, value)).chain(middle).chain(after.map(|(name, value)| (*name, value)));
        let mut text = template.to_owned();
        for (name, value) in all {
            if text.contains(name) {
                text = text.replace(name, &escaped(value));
            }
        }
        text
    }
}

// Written by hand because the token is a secret.
impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Values")
            .field("before", &self.before)
            .field("tls", &self.tls)
            .field("after", &self.after)
            .finish()
    }
}

/// Escapes a value for a place between quotes in JSON. Numbers and Booleans do not change.
fn escaped(value: &str) -> String {
    let quoted = Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
