//! The template for when none is given: byte for byte what upstream's installer falls back to (INST-100), as what comes out
//! of it is compared (INST 9.1).

/// The template.
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
