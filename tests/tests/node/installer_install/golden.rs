//! The exact bytes of three rendered templates.

use integration_tests::installation::Container;
use integration_tests::namespaces::isolated;

use super::succeeded;

const MANIFEST: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "1.0.0",
  "plugins": [
    {
      "type": "calico",
      "log_level": "info",
      "log_file_path": "/var/log/calico/cni/cni.log",
      "datastore_type": "kubernetes",
      "nodename": "__KUBERNETES_NODE_NAME__",
      "mtu": __CNI_MTU__,
      "ipam": {
          "type": "calico-ipam"
      },
      "policy": {
          "type": "k8s"
      },
      "kubernetes": {
          "kubeconfig": "__KUBECONFIG_FILEPATH__"
      }
    },
    {
      "type": "portmap",
      "snat": true,
      "capabilities": {"portMappings": true}
    }
  ]
}"#;

const OPERATOR: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "1.0.0",
  "plugins": [{"container_settings":{"allow_ip_forwarding":false},"datastore_type":"kubernetes","endpoint_status_dir":"/var/run/calico/endpoint-status","ipam":{"assign_ipv4":"true","assign_ipv6":"false","type":"calico-ipam"},"kubernetes":{"k8s_api_root":"https://__KUBERNETES_SERVICE_HOST__:__KUBERNETES_SERVICE_PORT__","kubeconfig":"__KUBECONFIG_FILEPATH__"},"log_file_max_age":__LOG_FILE_MAX_AGE__,"log_file_max_count":__LOG_FILE_MAX_COUNT__,"log_file_max_size":__LOG_FILE_MAX_SIZE__,"log_file_path":"/var/log/calico/cni/cni.log","log_level":"Info","mtu":0,"nodename_file_optional":false,"policy":{"type":"k8s"},"policy_setup_timeout_seconds":0,"type":"calico"},{"capabilities":{"portMappings":true},"snat":true,"type":"portmap"},{"sysctl":{"net.ipv4.tcp_keepalive_intvl":"15"},"type":"tuning"}]
}
"#;

const DOCUMENT: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "datastore_type": "kubernetes",
      "mtu": 1440,
      "nodename_file_optional": false,
      "log_level": "Info",
      "log_file_path": "/var/log/calico/cni/cni.log",
      "ipam": { "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "false" },
      "container_settings": { "allow_ip_forwarding": false },
      "policy": { "type": "k8s" },
      "kubernetes": { "kubeconfig": "/etc/cni/net.d/calico-kubeconfig" }
    },
    { "type": "portmap", "snat": true, "capabilities": { "portMappings": true } },
    { "type": "bandwidth", "capabilities": { "bandwidth": true } }
  ]
}"#;

#[track_caller]
fn renders(template: &str, variables: &[(&str, &str)], expected: &str) {
    let mut variables = variables.to_vec();
    variables.push(("CNI_NETWORK_CONFIG", template));
    isolated(|host| {
        let container = Container::new(host, "c").unwrap();
        succeeded(&container.run(&variables).unwrap());
        assert_eq!(container.conf("10-calico.conflist").unwrap(), expected);
    });
}

#[test]
fn upstreams_manifest_template_is_rendered_byte_for_byte() {
    let expected = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "1.0.0",
  "plugins": [
    {
      "type": "calico",
      "log_level": "info",
      "log_file_path": "/var/log/calico/cni/cni.log",
      "datastore_type": "kubernetes",
      "nodename": "my-node",
      "mtu": 0,
      "ipam": {
          "type": "calico-ipam"
      },
      "policy": {
          "type": "k8s"
      },
      "kubernetes": {
          "kubeconfig": "/etc/cni/net.d/calico-kubeconfig"
      }
    },
    {
      "type": "portmap",
      "snat": true,
      "capabilities": {"portMappings": true}
    }
  ]
}"#;
    renders(MANIFEST, &[("CNI_MTU", "0")], expected);
}

#[test]
fn operators_template_is_rendered_byte_for_byte() {
    let variables = [
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("KUBERNETES_SERVICE_PORT", "443"),
        ("LOG_FILE_MAX_SIZE", "7"),
        ("CNI_NET_DIR", "/var/run/multus/cni/net.d"),
    ];
    let expected = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "1.0.0",
  "plugins": [{"container_settings":{"allow_ip_forwarding":false},"datastore_type":"kubernetes","endpoint_status_dir":"/var/run/calico/endpoint-status","ipam":{"assign_ipv4":"true","assign_ipv6":"false","type":"calico-ipam"},"kubernetes":{"k8s_api_root":"https://10.96.0.1:443","kubeconfig":"/var/run/multus/cni/net.d/calico-kubeconfig"},"log_file_max_age":30,"log_file_max_count":10,"log_file_max_size":7,"log_file_path":"/var/log/calico/cni/cni.log","log_level":"Info","mtu":0,"nodename_file_optional":false,"policy":{"type":"k8s"},"policy_setup_timeout_seconds":0,"type":"calico"},{"capabilities":{"portMappings":true},"snat":true,"type":"portmap"},{"sysctl":{"net.ipv4.tcp_keepalive_intvl":"15"},"type":"tuning"}]
}
"#;
    renders(OPERATOR, &variables, expected);
}

/// This configuration has no placeholders, so its bytes are independent of the environment.
#[test]
fn documented_configuration_is_written_byte_for_byte() {
    renders(
        DOCUMENT,
        &[("CNI_MTU", "9000"), ("LOG_LEVEL", "debug")],
        DOCUMENT,
    );
}
