//! The environment variables of `calico install`, for `--help` and the README.

pub use node_process::process::Variable;
use node_process::process::variable;

/// The variables in groups with a title.
pub const GROUPS: [(&str, &[Variable]); 4] =
    [("Files", &FILES), ("Placeholders of the template", &PLACEHOLDERS), ("API server", &API), ("Cluster", &CLUSTER)];

const FILES: [Variable; 13] = [
    variable("CNI_NETWORK_CONFIG", "built in", "template of the network configuration"),
    variable("CNI_NETWORK_CONFIG_FILE", "", "file with the template; wins over CNI_NETWORK_CONFIG"),
    variable("CNI_CONF_NAME", "10-calico.conflist", "name of the configuration"),
    variable("CNI_OLD_CONF_NAME", "10-calico.conflist", "removed in the end if it has another name and is Calico's"),
    variable("CNI_NET_DIR", "/etc/cni/net.d", "configuration directory on the node, for paths in the configuration"),
    variable("TEST_FILE_PERMISSION", "0600", "mode of the configuration; one that grants more stays"),
    variable("TLS_ASSETS_DIR", "/calico-secrets", "where etcd-ca, etcd-cert and etcd-key are mounted"),
    variable(
        "UPDATE_CNI_BINARIES",
        "ours",
        "true: replace plugins that are there, ours: of others than Calico's only those that were installed from here, \
         false: none",
    ),
    variable("SKIP_CNI_BINARIES", "", "comma list of plugins, others than Calico's, that are not installed"),
    variable("CNI_INSTALL_PLUGINS", "all", "calico-only: no other plugins than Calico's"),
    variable("CNI_LINK_IPAM", "true", "false: calico-ipam is a copy, not a second name of calico"),
    variable(
        "CNI_TRY_SECONDS",
        "30",
        "how long the new configuration is tried, then used all the same; and how long a pod waits for an etcd, then \
         fails; 0: not",
    ),
    variable("SLEEP", "true", "in a pod: stay, and keep the token and the files fresh"),
];

const PLACEHOLDERS: [Variable; 13] = [
    variable("LOG_LEVEL", "info", "__LOG_LEVEL__"),
    variable("LOG_FILE_PATH", "/var/log/calico/cni/cni.log", "__LOG_FILE_PATH__"),
    variable("LOG_FILE_MAX_SIZE", "100", "__LOG_FILE_MAX_SIZE__, MiB"),
    variable("LOG_FILE_MAX_AGE", "30", "__LOG_FILE_MAX_AGE__, days"),
    variable("LOG_FILE_MAX_COUNT", "10", "__LOG_FILE_MAX_COUNT__"),
    variable("DATASTORE_TYPE", "kubernetes", "__DATASTORE_TYPE__"),
    variable("KUBERNETES_NODE_NAME", "the host's name", "__KUBERNETES_NODE_NAME__, and the nodename file if absent"),
    variable(
        "CNI_MTU",
        "1500",
        "__CNI_MTU__; 0: /var/lib/calico/mtu, which is written if absent: the lowest MTU of the uplinks without what \
         the pools' encapsulation takes, once there is a pool",
    ),
    variable("REQUIRE_MTU_FILE", "false", "__REQUIRE_MTU_FILE__; true: that file is written if absent, too"),
    variable("CALICO_API_GROUP", "crd.projectcalico.org/v1", "__CALICO_API_GROUP__"),
    variable("ETCD_ENDPOINTS", "", "__ETCD_ENDPOINTS__"),
    variable("ETCD_DISCOVERY_SRV", "", "__ETCD_DISCOVERY_SRV__"),
    variable(
        "(others)",
        "",
        "__KUBECONFIG_FILEPATH__, __KUBERNETES_SERVICE_HOST__, __KUBERNETES_SERVICE_PORT__, __SERVICEACCOUNT_TOKEN__, \
         __ETCD_CERT_FILE__, __ETCD_CA_CERT_FILE__, __ETCD_KEY_FILE__",
    ),
];

const API: [Variable; 5] = [
    variable("KUBERNETES_SERVICE_HOST", "Kubernetes sets it", "host of the API server, for the kubeconfig too"),
    variable("KUBERNETES_SERVICE_PORT", "Kubernetes sets it", "its port"),
    variable("KUBERNETES_SERVICE_PROTOCOL", "https", "its protocol"),
    variable("SKIP_TLS_VERIFY", "false", "true: the kubeconfig takes any certificate of the API server"),
    variable("CALICO_CNI_SERVICE_ACCOUNT", "calico-cni-plugin", "service account whose token the plugins use"),
];

const CLUSTER: [Variable; 3] = [
    variable("NO_DEFAULT_POOLS", "false", "true: no pool is made"),
    variable(
        "CALICO_IPV4POOL_CIDR",
        "none",
        "range of the first IPv4 pool, made where there is none; with it CALICO_IPV4POOL_BLOCK_SIZE, _IPIP, _VXLAN, \
         _NAT_OUTGOING, _NODE_SELECTOR",
    ),
    variable("CALICO_IPV6POOL_CIDR", "none", "the same for IPv6, without _IPIP"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent;

    const README: &str = include_str!("../../../deploy/README.md");

    #[test]
    fn deploy_readme_lists_every_install_variable() {
        let installers = GROUPS.iter().flat_map(|(_, variables)| variables.iter());
        for Variable { name, default, meaning } in installers.chain(&agent::VARIABLES) {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            // Unescaped underscores would format the text in bold.
            let row = format!("| `{name}` | {default} | {} |", meaning.replace("__", "\\_\\_"));
            assert!(README.lines().any(|line| line == row), "deploy/README.md lacks: {row}");
        }
    }
}
