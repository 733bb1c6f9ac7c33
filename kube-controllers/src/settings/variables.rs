//! The environment variables that the process reads, for `--help` and the README.

pub use node_process::process::Variable;
use node_process::process::variable;

pub(super) const LOG_LEVEL: &str = "LOG_LEVEL";
pub(super) const ENABLED_CONTROLLERS: &str = "ENABLED_CONTROLLERS";
pub(super) const RECONCILER_PERIOD: &str = "RECONCILER_PERIOD";
pub(super) const COMPACTION_PERIOD: &str = "COMPACTION_PERIOD";
pub(super) const HEALTH_ENABLED: &str = "HEALTH_ENABLED";
pub(super) const STATUS_LIVENESS: &str = "STATUS_LIVENESS";
pub(super) const SYNC_NODE_LABELS: &str = "SYNC_NODE_LABELS";
pub(super) const AUTO_HOST_ENDPOINTS: &str = "AUTO_HOST_ENDPOINTS";
pub(super) const LEAK_GRACE_PERIOD: &str = "LEAK_GRACE_PERIOD";
pub(super) const PROMETHEUS_METRICS_PORT: &str = "PROMETHEUS_METRICS_PORT";
pub(super) const WORKLOAD_ENDPOINT_WORKERS: &str = "WORKLOAD_ENDPOINT_WORKERS";
pub(super) const PROFILE_WORKERS: &str = "PROFILE_WORKERS";
pub(super) const POLICY_WORKERS: &str = "POLICY_WORKERS";
pub(super) const NODE_WORKERS: &str = "NODE_WORKERS";
pub(super) const LEADER_ELECTION: &str = "LEADER_ELECTION";
pub(super) const LEADER_ELECTION_NAMESPACE: &str = "LEADER_ELECTION_NAMESPACE";
pub(super) const LEADER_ELECTION_NAME: &str = "LEADER_ELECTION_NAME";
pub(super) const GC_MODE: &str = "GC_MODE";
pub(super) const GC_PARALLELISM: &str = "GC_PARALLELISM";
pub(super) const GC_REQUESTS_PER_SECOND: &str = "GC_REQUESTS_PER_SECOND";
pub(super) const ORPHAN_ENDPOINT_GRACE_PERIOD: &str = "ORPHAN_ENDPOINT_GRACE_PERIOD";
/// The variable that the status reports on a Kubernetes datastore in place of [`SYNC_NODE_LABELS`]
/// (KC-122).
pub(super) const DATASTORE_TYPE: &str = "DATASTORE_TYPE";

/// The variables of the controllers.
pub const CONTROLLERS: [Variable; 25] = [
    variable(
        LOG_LEVEL,
        "info",
        "least severity that is logged: panic, fatal, error, warning, info, debug, trace",
    ),
    variable(
        ENABLED_CONTROLLERS,
        "all",
        "comma list of node (pod), policy (networkpolicy), namespace (profile), serviceaccount, \
         workloadendpoint, loadbalancer; the datastore kubernetes takes node and loadbalancer",
    ),
    variable(
        RECONCILER_PERIOD,
        "5m",
        "interval at which policy, namespace, serviceaccount and workloadendpoint compare all \
         objects",
    ),
    variable(
        COMPACTION_PERIOD,
        "10m",
        "interval of the compactions of etcd; 0: never",
    ),
    variable(
        HEALTH_ENABLED,
        "true",
        "whether the probes check the datastore and the API server",
    ),
    variable(
        STATUS_LIVENESS,
        "readiness",
        "heartbeat: check-status -l fails when the process hangs, not when a server is \
         unreachable; the process writes the status file every 5 s",
    ),
    variable(
        "STATUS_FILE",
        "/status/status.json",
        "file for check-status, which reads the variable too",
    ),
    variable(
        SYNC_NODE_LABELS,
        "true",
        "whether labels of Kubernetes' nodes are copied to Calico's (etcd)",
    ),
    variable(
        AUTO_HOST_ENDPOINTS,
        "disabled",
        "enabled: each node gets a host endpoint for all its interfaces",
    ),
    variable(
        LEAK_GRACE_PERIOD,
        "15m",
        "time between the first sight of a leaked address and its release; 0: only addresses of \
         deleted nodes and of virtual machines are released",
    ),
    variable(
        PROMETHEUS_METRICS_PORT,
        "9094",
        "port of the metrics; 0: none",
    ),
    variable(
        WORKLOAD_ENDPOINT_WORKERS,
        "1",
        "workers of workloadendpoint",
    ),
    variable(
        PROFILE_WORKERS,
        "1",
        "workers of namespace, and of serviceaccount",
    ),
    variable(POLICY_WORKERS, "1", "workers of policy"),
    variable(
        NODE_WORKERS,
        "1",
        "workers of node for labels and deletion of nodes (etcd) and for host endpoints; for \
         garbage collection see GC_PARALLELISM",
    ),
    variable(
        LEADER_ELECTION,
        "if the Lease may be written",
        "true: only the replica that holds the Lease writes, or none; false: this is the only \
         replica",
    ),
    variable(
        LEADER_ELECTION_NAMESPACE,
        "kube-system",
        "namespace of the Lease",
    ),
    variable(
        LEADER_ELECTION_NAME,
        "calico-kube-controllers",
        "name of the Lease",
    ),
    variable(
        "POD_NAME",
        "the host's name",
        "name of the replica in the Lease and in Events",
    ),
    variable("POD_NAMESPACE", "that of the pod", "namespace of the pod"),
    variable(
        GC_MODE,
        "reclaim",
        "report: unused or wrong addresses, blocks, handles, affinities, and in etcd endpoints and \
         nodes, are only logged",
    ),
    variable(
        GC_PARALLELISM,
        "8",
        "blocks that garbage collection works on at once",
    ),
    variable(
        GC_REQUESTS_PER_SECOND,
        "0",
        "requests per second of garbage collection; 0: the limit of the client",
    ),
    variable(
        ORPHAN_ENDPOINT_GRACE_PERIOD,
        "the grace period of leaks, at least 5m",
        "time for which an endpoint stays after its pod is deleted (etcd); 0: forever",
    ),
    variable(
        "FV_TEST",
        "false",
        "true: policies get their own names before calico-node is rolled out everywhere",
    ),
];

/// The variables of the datastore and the API server. Each except KUBECONFIG may have the prefix
/// `CALICO_`, which takes precedence.
pub const DATASTORE: [Variable; 22] = [
    variable(
        DATASTORE_TYPE,
        "etcdv3 if ETCD_ENDPOINTS is set, else kubernetes",
        "etcdv3 or kubernetes",
    ),
    variable(
        "KUBECONFIG",
        "the account of the pod",
        "how to reach the API server",
    ),
    variable(
        "K8S_API_ENDPOINT",
        "",
        "URL of the API server, which takes precedence over the kubeconfig",
    ),
    variable("K8S_CERT_FILE", "", "client certificate for the API server"),
    variable("K8S_KEY_FILE", "", "the key of that certificate"),
    variable(
        "K8S_CA_FILE",
        "",
        "authorities for the API server's certificate",
    ),
    variable("K8SAPITOKEN", "", "token for the API server"),
    variable(
        "K8S_INSECURE_SKIP_TLS_VERIFY",
        "false",
        "true: the certificate of the API server is not verified",
    ),
    variable(
        "K8S_CURRENT_CONTEXT",
        "that of the kubeconfig",
        "context of the kubeconfig",
    ),
    variable(
        "K8S_CLIENT_QPS",
        "500",
        "requests per second for Calico's objects",
    ),
    variable(
        "K8S_CLIENT_BURST",
        "1000",
        "requests above that rate for a short time",
    ),
    variable(
        "CALICO_API_GROUP",
        "discovered in the API server",
        "projectcalico.org/v3 or crd.projectcalico.org/v1",
    ),
    variable("ETCD_ENDPOINTS", "", "comma list of URLs"),
    variable(
        "ETCD_DISCOVERY_SRV",
        "",
        "refused: list the servers in ETCD_ENDPOINTS",
    ),
    variable("ETCD_USERNAME", "", "user of etcd"),
    variable("ETCD_PASSWORD", "", "the user's password"),
    variable("ETCD_CERT_FILE", "", "client certificate for etcd"),
    variable("ETCD_KEY_FILE", "", "the key of that certificate"),
    variable(
        "ETCD_CA_CERT_FILE",
        "the system's",
        "authorities for etcd's certificate",
    ),
    variable(
        "TLS_MIN_VERSION",
        "1.2",
        "oldest TLS version for etcd: 1.2 or 1.3",
    ),
    variable(
        "TLS_CIPHER_SUITES",
        "all",
        "comma list of the cipher suites of TLS 1.2 for etcd, by Go's names",
    ),
    variable(
        "FELIX_INTERFACEPREFIX",
        "cali",
        "prefix of the names of pods' interfaces",
    ),
];
