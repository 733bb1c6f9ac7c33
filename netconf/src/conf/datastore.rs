//! The location and the credentials of the datastore and of the API server.

use std::fmt;

use crate::decode::{DecodeError, FromNode, FromObject, Node, Object, read_fields};

/// Location and credentials of the datastore. The environment can add to these settings and
/// override them; see [`super::NetConf::with_environment`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default)
)]
pub struct DatastoreConf {
    /// Kind of the datastore. Default: `etcdv3` with `etcd_endpoints`, `local` with
    /// `datastore_path`, `kubernetes` with `kubernetes.kubeconfig`, `k8s_api_root` or the variable
    /// `KUBERNETES_SERVICE_HOST`; else an error: `no datastore is configured`. Read by ADD, DEL,
    /// CHECK, STATUS, GC, `-t`.
    pub datastore_type: Option<DatastoreType>,

    /// File of the `local` datastore; default `/var/lib/calico/calico.db`. Read by ADD, DEL, CHECK,
    /// STATUS, GC, `-t`.
    pub datastore_path: String,

    /// URLs of the etcd servers, separated by commas. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub etcd_endpoints: String,

    /// DNS domain whose SRV records name the etcd servers. Not supported: with etcd, a value is an
    /// error. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub etcd_discovery_srv: String,

    /// PEM file with the key of the etcd client certificate. Read by ADD, DEL, CHECK, STATUS, GC,
    /// `-t`.
    pub etcd_key_file: String,

    /// PEM file with the etcd client certificate. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub etcd_cert_file: String,

    /// PEM file with the CA certificates that verify the etcd servers. Read by ADD, DEL, CHECK,
    /// STATUS, GC, `-t`.
    pub etcd_ca_cert_file: String,

    /// The key of the etcd client certificate itself, as PEM or base64 of PEM, instead of
    /// `etcd_key_file`. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub etcd_key: Secret,

    /// The etcd client certificate itself, as PEM or base64 of PEM, instead of `etcd_cert_file`.
    /// Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub etcd_cert: String,

    /// The CA certificates themselves, as PEM or base64 of PEM, instead of `etcd_ca_cert_file`.
    /// Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub etcd_ca_cert: String,

    /// User name for etcd, with `etcd_password`. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub etcd_username: String,

    /// Password of `etcd_username`. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub etcd_password: Secret,

    /// Deprecated and without effect: use `etcd_endpoints`. Not read.
    #[cfg_attr(feature = "schema", schemars(extend("deprecated" = true)))]
    pub etcd_authority: String,

    /// Deprecated and without effect: use `etcd_endpoints`. Not read.
    #[cfg_attr(feature = "schema", schemars(extend("deprecated" = true)))]
    pub etcd_scheme: String,

    /// API group of Calico's resources on the API server, `crd.projectcalico.org/v1` or
    /// `projectcalico.org/v3` in any letter case; discovered by default. Read by ADD, DEL, CHECK,
    /// STATUS, GC, `-t`.
    pub calico_api_group: Option<ApiGroup>,

    /// Requests per second to the API server; 0 selects the client's default, and a negative value
    /// means no limit. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    #[cfg_attr(feature = "schema", schemars(range(min = -2147483648, max = 2147483647)))]
    pub qps: i32,

    /// Number of requests that may be sent to the API server at once, before `qps` delays further
    /// requests; 0 selects the client's default. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    #[cfg_attr(feature = "schema", schemars(range(min = -2147483648, max = 2147483647)))]
    pub burst: i32,
}

/// Kind of the datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(rename_all = "lowercase")
)]
pub enum DatastoreType {
    /// The API server.
    Kubernetes,
    /// etcd, version 3.
    Etcdv3,
    /// A SQLite file on this host.
    Local,
}

/// API group and version of Calico's resources on the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema))]
pub enum ApiGroup {
    /// `crd.projectcalico.org/v1`.
    #[cfg_attr(feature = "schema", serde(rename = "crd.projectcalico.org/v1"))]
    CrdV1,
    /// `projectcalico.org/v3`.
    #[cfg_attr(feature = "schema", serde(rename = "projectcalico.org/v3"))]
    V3,
}

impl DatastoreType {
    /// Values of `datastore_type`, which are case-sensitive.
    pub(crate) const WORDS: [(&'static str, DatastoreType); 3] = [
        ("kubernetes", DatastoreType::Kubernetes),
        ("etcdv3", DatastoreType::Etcdv3),
        ("local", DatastoreType::Local),
    ];
}

impl ApiGroup {
    /// Values of `calico_api_group`, in any letter case.
    pub(crate) const WORDS: [(&'static str, ApiGroup); 2] = [
        ("crd.projectcalico.org/v1", ApiGroup::CrdV1),
        ("projectcalico.org/v3", ApiGroup::V3),
    ];
}

impl FromObject for DatastoreConf {
    fn from_object(object: &Object<'_>) -> Result<DatastoreConf, DecodeError> {
        Ok(DatastoreConf {
            datastore_type: object.read_word("datastore_type", &DatastoreType::WORDS, false)?,
            datastore_path: object.read_or_default("datastore_path")?,
            etcd_endpoints: object.read_or_default("etcd_endpoints")?,
            etcd_discovery_srv: object.read_or_default("etcd_discovery_srv")?,
            etcd_key_file: object.read_or_default("etcd_key_file")?,
            etcd_cert_file: object.read_or_default("etcd_cert_file")?,
            etcd_ca_cert_file: object.read_or_default("etcd_ca_cert_file")?,
            etcd_key: object.read_or_default("etcd_key")?,
            etcd_cert: object.read_or_default("etcd_cert")?,
            etcd_ca_cert: object.read_or_default("etcd_ca_cert")?,
            etcd_username: object.read_or_default("etcd_username")?,
            etcd_password: object.read_or_default("etcd_password")?,
            etcd_authority: object.read_or_default("etcd_authority")?,
            etcd_scheme: object.read_or_default("etcd_scheme")?,
            calico_api_group: object.read_word("calico_api_group", &ApiGroup::WORDS, true)?,
            qps: object.read_or_default("qps")?,
            burst: object.read_or_default("burst")?,
        })
    }
}

/// Kind of policy, and access to the API server for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct Policy {
    /// `k8s`: labels, annotations, ports and profiles come from the pod. Empty: the plugin creates
    /// a profile with the network's name, except on an API server. Any other value: the profile
    /// with the network's name is expected to exist. Read by ADD, DEL, CHECK, GC.
    #[cfg_attr(feature = "schema", serde(rename = "type"))]
    pub policy_type: String,

    /// URL of the API server; `kubernetes.k8s_api_root` takes precedence. Read by ADD, DEL, CHECK,
    /// STATUS, GC, `-t`.
    pub k8s_api_root: String,

    /// Bearer token for the API server. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub k8s_auth_token: Secret,

    /// File with the client certificate for the API server. Read by ADD, DEL, CHECK, STATUS, GC,
    /// `-t`.
    pub k8s_client_certificate: String,

    /// File with the key of the client certificate. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub k8s_client_key: String,

    /// File with the CA certificates that verify the API server. Read by ADD, DEL, CHECK, STATUS,
    /// GC, `-t`.
    pub k8s_certificate_authority: String,
}

/// Access to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct Kubernetes {
    /// Path of a kubeconfig. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub kubeconfig: String,

    /// URL of the API server. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub k8s_api_root: String,

    /// Node whose pod CIDRs replace `usePodCidr`. Read by ADD with host-local.
    pub node_name: String,
}

/// Text that must not be printed: a key, a password or a token. Empty if not set.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    schemars(inline)
)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// Returns the text. Callers use it only to authenticate.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns true if the text is empty, which means not set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "\"\"" } else { "<hidden>" })
    }
}

read_fields!(Policy {
    policy_type: "type",
    k8s_api_root,
    k8s_auth_token,
    k8s_client_certificate,
    k8s_client_key,
    k8s_certificate_authority
});
read_fields!(Kubernetes {
    kubeconfig,
    k8s_api_root,
    node_name
});

impl FromNode for Secret {
    fn from_node(node: &Node<'_>) -> Result<Secret, DecodeError> {
        String::from_node(&node.secret()).map(Secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_debug_output_is_hidden() {
        assert_eq!(
            format!("{:?}", Secret::new("hunter2".to_owned())),
            "<hidden>"
        );
    }
}
