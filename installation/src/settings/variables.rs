//! The environment variables of `calico install`, for `--help` and the README.

pub use node_process::process::Variable;
use node_process::process::variable;

/// The variables in groups with a title.
pub const GROUPS: [(&str, &[Variable]); 4] = [
    ("Files", &FILES),
    ("Placeholders of the template", &PLACEHOLDERS),
    ("API server", &API),
    ("Cluster", &CLUSTER),
];

const FILES: [Variable; 16] = [
    variable(
        "CNI_NETWORK_CONFIG",
        "built in",
        "template of the network configuration",
    ),
    variable(
        "CNI_NETWORK_CONFIG_FILE",
        "",
        "file with the template; takes precedence over CNI_NETWORK_CONFIG",
    ),
    variable(
        "CNI_CONF_NAME",
        "10-calico.conflist",
        "name of the configuration",
    ),
    variable(
        "CNI_OLD_CONF_NAME",
        "10-calico.conflist",
        "configuration to remove at the end, if it has another name and is Calico's",
    ),
    variable(
        "CNI_NET_DIR",
        "/etc/cni/net.d",
        "configuration directory on the node, for paths in the configuration",
    ),
    variable(
        "CNI_BIN_DIR",
        "/opt/cni/bin",
        "plugin directory on the node, for the records of installed files",
    ),
    variable(
        "CNI_FORMER_NET_DIR",
        "",
        "configuration directory on the node before CNI_NET_DIR changed, mounted at \
         /host/former-net-dir; our files in it are removed",
    ),
    variable(
        "CNI_FORMER_BIN_DIR",
        "",
        "plugin directory on the node before CNI_BIN_DIR changed, mounted at /host/former-bin-dir; \
         our files in it are removed",
    ),
    variable(
        "TEST_FILE_PERMISSION",
        "0600",
        "mode of the configuration; a mode that grants more is kept",
    ),
    variable(
        "TLS_ASSETS_DIR",
        "/calico-secrets",
        "directory where etcd-ca, etcd-cert and etcd-key are mounted",
    ),
    variable(
        "UPDATE_CNI_BINARIES",
        "ours",
        "true: replace existing plugins; ours: replace Calico's, and others only if this installer \
         installed them; false: replace none",
    ),
    variable(
        "SKIP_CNI_BINARIES",
        "",
        "comma-separated list of plugins other than Calico's that are not installed",
    ),
    variable(
        "CNI_INSTALL_PLUGINS",
        "all",
        "calico-only: install only Calico's plugins",
    ),
    variable(
        "CNI_LINK_IPAM",
        "true",
        "false: install calico-ipam as a copy of calico instead of a hard link",
    ),
    variable(
        "CNI_TRY_SECONDS",
        "30",
        "seconds to try the new configuration, which is then used even if it fails, and for a pod \
         to wait for the API server and for etcd before it fails; 0: do not try",
    ),
    variable(
        "SLEEP",
        "true",
        "in a pod: keep running as the agent, which renews the token and restores files",
    ),
];

const PLACEHOLDERS: [Variable; 13] = [
    variable("LOG_LEVEL", "info", "__LOG_LEVEL__"),
    variable(
        "LOG_FILE_PATH",
        "/var/log/calico/cni/cni.log",
        "__LOG_FILE_PATH__",
    ),
    variable("LOG_FILE_MAX_SIZE", "100", "__LOG_FILE_MAX_SIZE__, MiB"),
    variable("LOG_FILE_MAX_AGE", "30", "__LOG_FILE_MAX_AGE__, days"),
    variable("LOG_FILE_MAX_COUNT", "10", "__LOG_FILE_MAX_COUNT__"),
    variable("DATASTORE_TYPE", "kubernetes", "__DATASTORE_TYPE__"),
    variable(
        "KUBERNETES_NODE_NAME",
        "the host's name",
        "__KUBERNETES_NODE_NAME__, and the nodename file if it is missing",
    ),
    variable(
        "CNI_MTU",
        "1500",
        "__CNI_MTU__; 0: use /var/lib/calico/mtu, which is written if it is missing and a pool \
         exists: the lowest MTU of the uplinks minus the overhead of the pools' encapsulation",
    ),
    variable(
        "REQUIRE_MTU_FILE",
        "false",
        "__REQUIRE_MTU_FILE__; true: the MTU file is written if it is missing, too",
    ),
    variable(
        "CALICO_API_GROUP",
        "crd.projectcalico.org/v1",
        "__CALICO_API_GROUP__",
    ),
    variable("ETCD_ENDPOINTS", "", "__ETCD_ENDPOINTS__"),
    variable("ETCD_DISCOVERY_SRV", "", "__ETCD_DISCOVERY_SRV__"),
    variable(
        "(others)",
        "",
        "__KUBECONFIG_FILEPATH__, __KUBERNETES_SERVICE_HOST__, __KUBERNETES_SERVICE_PORT__, \
         __SERVICEACCOUNT_TOKEN__, __ETCD_CERT_FILE__, __ETCD_CA_CERT_FILE__, __ETCD_KEY_FILE__",
    ),
];

const API: [Variable; 6] = [
    variable(
        "KUBERNETES_SERVICE_HOST",
        "Kubernetes sets it",
        "host of the API server, also for the kubeconfig",
    ),
    variable(
        "KUBERNETES_SERVICE_PORT",
        "Kubernetes sets it",
        "port of the API server",
    ),
    variable(
        "KUBERNETES_SERVICE_PROTOCOL",
        "https",
        "protocol of the API server",
    ),
    variable(
        "SKIP_TLS_VERIFY",
        "false",
        "true: the kubeconfig accepts any certificate of the API server",
    ),
    variable(
        "CALICO_CNI_SERVICE_ACCOUNT",
        "calico-cni-plugin",
        "service account whose token the plugins use",
    ),
    variable(
        "CNI_TOKEN_BOUND_TO_NODE",
        "false",
        "true: bind the plugins' token to the Node KUBERNETES_NODE_NAME, with which it ends",
    ),
];

const CLUSTER: [Variable; 4] = [
    variable("NO_DEFAULT_POOLS", "false", "true: create no pool"),
    variable(
        "CALICO_IPV4POOL_CIDR",
        "none",
        "range of the first IPv4 pool, created if there is none; options: \
         CALICO_IPV4POOL_BLOCK_SIZE, _IPIP, _VXLAN, _NAT_OUTGOING, _NODE_SELECTOR",
    ),
    variable(
        "CALICO_IPV6POOL_CIDR",
        "none",
        "the same for IPv6, without _IPIP",
    ),
    variable(
        "CALICO_IPAM_STRICT_AFFINITY",
        "false",
        "true: the settings of IPAM are created with strictAffinity if there are none",
    ),
];
