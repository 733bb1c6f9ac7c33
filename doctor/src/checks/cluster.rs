//! Checks of the API server and the datastore.

use allocation::cluster_state::NotReadyError;
use libcalico::api::{Node, NodeSpec};
use libcalico::validation::validate_node;
use netconf::CniError;
use netconf::conf::DatastoreType;

use super::configuration::REINSTALL;
use crate::report::{Checked, Finding, fail, pass, warn};
use crate::role::{MANIFEST_PATH, Permission};
use crate::snapshot::{
    ApiServer, BlockCount, Cluster, DatastoreAnswers, NodeSnapshot, Observed, PermissionCheck,
    Pool, Readiness, TlsFile, Unobserved,
};

/// Runs the checks. Skips those that need a response of the datastore, if it does not respond.
pub(super) fn check(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let Some(cluster) = &snapshot.cluster else {
        return vec![Finding::new(
            "datastore",
            Err("no readable configuration names the datastore".into()),
        )];
    };
    let mut findings = Vec::new();
    findings.extend(check_tls(&cluster.tls).map(|checked| Finding::new("TLS files", checked)));
    findings.push(Finding::new("datastore", check_datastore(cluster)));
    let separate_api = match cluster.kind {
        DatastoreType::Etcdv3 | DatastoreType::Local => cluster.api.as_ref(),
        DatastoreType::Kubernetes => None,
    };
    let separate_api =
        separate_api.map(|api| Finding::new("API server", check_separate_api_server(api)));
    let Some(answers) = cluster.answers() else {
        findings.extend(separate_api);
        let skipped = ["permissions", "cluster information", "pools", "blocks"];
        findings.extend(
            skipped.map(|name| Finding::new(name, Err("the datastore does not answer".into()))),
        );
        return findings;
    };
    findings.extend(check_permissions(
        "etcd permissions",
        &answers.etcd_permissions,
        GRANT_ETCD,
    ));
    findings.extend(separate_api);
    let permission_checks = cluster
        .api
        .as_ref()
        .map(|api| &api.permissions[..])
        .unwrap_or_default();
    findings.extend(check_permissions(
        "permissions",
        permission_checks,
        &format!("kubectl apply -f {MANIFEST_PATH}"),
    ));
    findings.extend(
        check_node(cluster, answers, snapshot).map(|checked| Finding::new("node object", checked)),
    );
    findings.push(Finding::new(
        "cluster information",
        check_cluster_information(cluster, &answers.ready),
    ));
    findings.push(Finding::new("pools", check_pools(cluster, &answers.pools)));
    findings.push(Finding::new(
        "blocks",
        answers.blocks.clone().and_then(check_blocks),
    ));
    findings
}

const GRANT_ETCD: &str = "`etcdctl role grant-permission ROLE --prefix=true readwrite /calico/`, \
                          with a role of that user";

fn check_datastore(cluster: &Cluster) -> Checked {
    let DatastoreAnswers {
        latency,
        silent_members,
        ..
    } = match &cluster.reached {
        Ok(answers) => answers,
        Err(reason) => {
            return fail(
                format!("{}: {reason}", cluster.address),
                datastore_remedy(cluster.kind),
            );
        }
    };
    let observation = format!(
        "{} answers after {} ms",
        cluster.address,
        latency.as_millis()
    );
    if silent_members.is_empty() {
        return pass(observation);
    }
    let silent = silent_members
        .iter()
        .map(|(endpoint, reason)| format!("{endpoint} does not: {reason}"));
    let remedy = "find the cause with `etcdctl endpoint health`; remove deleted members from \
                  etcd_endpoints (ETCD_ENDPOINTS)";
    warn(
        format!(
            "{observation}, but {}",
            silent.collect::<Vec<_>>().join("; ")
        ),
        remedy,
    )
}

fn datastore_remedy(kind: DatastoreType) -> &'static str {
    match kind {
        DatastoreType::Kubernetes => {
            "check that this node can reach the API server; without kube-proxy set \
             KUBERNETES_SERVICE_HOST and _PORT for the installer (ConfigMap \
             kubernetes-services-endpoint)"
        }
        DatastoreType::Etcdv3 => {
            "check with `etcdctl endpoint health` that this node can reach etcd with these \
             certificates; correct ETCD_ENDPOINTS (ConfigMap calico-cni-config) or the \
             certificates (Secret calico-etcd-secrets)"
        }
        DatastoreType::Local => {
            "if the file does not exist, create it with `calico-ipam init --datastore-path FILE`, \
             or correct datastore_path"
        }
    }
}

fn check_tls(files: &[TlsFile]) -> Option<Checked> {
    if files.is_empty() {
        return None;
    }
    let place = |file: &TlsFile| format!("{} {}", file.setting, file.path.display());
    if let Some((file, reason)) = files
        .iter()
        .find_map(|file| Some((file, file.mode.as_ref().err()?)))
    {
        let remedy = "add etcd-ca, etcd-cert and etcd-key to the Secret calico-etcd-secrets, and \
                      run the installer again";
        return Some(fail(format!("{}: {reason}", place(file)), remedy));
    }
    let is_open = |key: &&TlsFile| {
        key.setting == "etcd_key_file" && matches!(key.mode, Ok(mode) if mode & 0o077 != 0)
    };
    Some(match files.iter().find(is_open) {
        Some(key) => warn(
            format!("{} is readable by other users than root", place(key)),
            format!("chmod 600 {}", key.path.display()),
        ),
        None => pass(files.iter().map(place).collect::<Vec<_>>().join(", ")),
    })
}

/// Checks the API server of a cluster whose datastore is another one.
fn check_separate_api_server(
    ApiServer {
        address, reached, ..
    }: &ApiServer,
) -> Checked {
    match reached {
        Ok(()) => pass(format!("{address} answers, beside the datastore")),
        Err(reason) => fail(
            format!("{address}: {reason}"),
            "check that this node can reach the API server, which plugins query for each pod; \
             without kube-proxy set KUBERNETES_SERVICE_HOST and _PORT for the installer (ConfigMap \
             kubernetes-services-endpoint)",
        ),
    }
}

fn check_permissions(
    name: &str,
    permission_checks: &[PermissionCheck],
    remedy: &str,
) -> Option<Finding> {
    let unanswered = permission_checks
        .iter()
        .find_map(|check| check.is_allowed.as_ref().err());
    let missing: Vec<&Permission> = permission_checks
        .iter()
        .filter(|check| check.is_allowed == Ok(false))
        .map(|check| &check.permission)
        .collect();
    if permission_checks.is_empty() {
        return None;
    }
    let texts: Vec<String> = missing
        .iter()
        .map(|permission| permission.to_string())
        .collect();
    let observation = format!("the account may not {}", texts.join(", "));
    let checked = match unanswered {
        Some(reason) if missing.is_empty() => Err(reason.clone()),
        None if missing.is_empty() => pass(format!(
            "all {} required permissions are granted",
            permission_checks.len()
        )),
        // Only pods with a virtual machine need these permissions.
        _ if missing
            .iter()
            .all(|permission| permission.group == "kubevirt.io") =>
        {
            warn(
                observation,
                format!("{remedy}, if there are virtual machines in this cluster"),
            )
        }
        _ => fail(observation, remedy),
    };
    Some(Finding::new(name, checked))
}

/// Returns a failure, or skips the check if the API server rejects the credentials: another finding
/// gives the remedy.
fn fail_unreadable(reason: &Unobserved, cluster: &Cluster) -> Checked {
    let remedy = match cluster.kind {
        DatastoreType::Kubernetes
            if cluster
                .api
                .as_ref()
                .is_some_and(|api| api.rejection.is_some()) =>
        {
            return Err(reason.clone());
        }
        DatastoreType::Kubernetes => format!(
            "if a permission or a definition is missing: kubectl apply -f {MANIFEST_PATH}, and \
             apply the CRDs of deploy/crds"
        ),
        DatastoreType::Etcdv3 => format!("if a permission is missing: {GRANT_ETCD}"),
        DatastoreType::Local => {
            "check with `calico-ipam check` that the file is readable and undamaged".into()
        }
    };
    fail(reason.clone(), remedy)
}

fn check_node(
    cluster: &Cluster,
    answers: &DatastoreAnswers,
    snapshot: &NodeSnapshot,
) -> Option<Checked> {
    let name = snapshot.node.as_ref()?.name.as_ref().ok()?;
    Some(match answers.node_exists.as_ref()? {
        Ok(true) => pass(format!("Node {name} exists")),
        Ok(false) => check_missing_node(cluster.kind, name),
        Err(reason) => Err(reason.clone()),
    })
}

fn check_missing_node(kind: DatastoreType, name: &str) -> Checked {
    let missing = || format!("the datastore has no Node {name}: no pod gets an address");
    match kind {
        DatastoreType::Kubernetes => fail(
            format!(
                "the API server has no Node {name}: kube-controllers treats its addresses as leaked"
            ),
            "correct nodename in the configuration and in the nodename file (KUBERNETES_NODE_NAME \
             of the installer)",
        ),
        DatastoreType::Local if is_valid(name) => pass(format!(
            "the datastore has no Node {name} yet; the first ADD creates it"
        )),
        DatastoreType::Local => fail(
            missing(),
            "set nodename in the configuration to a name of lower-case letters, digits, `-` and \
             `.`",
        ),
        DatastoreType::Etcdv3 => fail(
            missing(),
            format!(
                "{REINSTALL}, or start calico-node, or run `calico-ipam init --node {name}`, which \
                 create the Node; or correct nodename"
            ),
        ),
    }
}

/// Returns true if a Node may have this name. An ADD creates no Node with an invalid name.
fn is_valid(name: &str) -> bool {
    validate_node(&Node::new(name, NodeSpec::default())).is_ok()
}

fn check_cluster_information(cluster: &Cluster, ready: &Observed<Readiness>) -> Checked {
    match ready {
        Ok(Readiness::Ready) => pass("the datastore is ready"),
        Ok(Readiness::Locked) => fail(
            "the datastore is not ready according to ClusterInformation default: every ADD and DEL \
             fails",
            "wait for the end of an upgrade or a migration, which sets spec.datastoreReady to \
             false and then to true; if none runs, set it to true",
        ),
        Ok(Readiness::Moved) => {
            let CniError { msg, details, .. } = NotReadyError::Moved.into();
            fail(msg, details)
        }
        Ok(Readiness::Missing) => fail(
            "ClusterInformation default is missing: every ADD fails, and each DEL is deferred",
            "run kube-controllers, or the installer, or `calico-ipam init`",
        ),
        Err(reason) => fail_unreadable(reason, cluster),
    }
}

fn check_pools(cluster: &Cluster, pools: &Observed<Vec<Pool>>) -> Checked {
    let remedy = "create an IPPool (`calico-ipam init --pool 10.65.0.0/16`), or enable one";
    let pools = match pools {
        Ok(pools) if pools.is_empty() => {
            return fail("there is no IPPool: calico-ipam assigns no address", remedy);
        }
        Ok(pools) => pools,
        Err(reason) => return fail_unreadable(reason, cluster),
    };
    let enabled: Vec<&Pool> = pools.iter().filter(|pool| pool.serves_pods).collect();
    let of_node: Vec<&Pool> = enabled
        .iter()
        .copied()
        .filter(|pool| pool.is_of_node())
        .collect();
    let listed = of_node
        .iter()
        .map(|Pool { name, cidr, .. }| format!("{name} {cidr}"));
    let unknown = of_node
        .iter()
        .find_map(|pool| Some((&pool.name, pool.selects_node.as_ref().err()?)));
    match (enabled.len(), of_node.len(), unknown) {
        (0, ..) => fail(
            format!("none of {} pools is enabled for pods", pools.len()),
            remedy,
        ),
        (enabled, 0, _) => fail(
            format!(
                "none of {enabled} enabled pools selects this node: calico-ipam assigns no address \
                 here"
            ),
            "correct the nodeSelector of an IPPool, or the labels of the Node",
        ),
        (.., Some((name, reason))) => warn(
            format!("it is unknown whether {name} selects this node: {reason}"),
            "check the nodeSelector of the IPPool and the labels of the Node",
        ),
        (.., None) => pass(listed.collect::<Vec<_>>().join(", ")),
    }
}

fn check_blocks(blocks: BlockCount) -> Checked {
    match blocks {
        BlockCount {
            confirmed: 0,
            pending: 0,
        } => pass("this node has no block; its first pod claims one"),
        BlockCount {
            confirmed,
            pending: 0,
        } => pass(format!("this node has {confirmed} blocks")),
        BlockCount { confirmed, pending } => warn(
            format!(
                "this node has {confirmed} blocks, and {pending} whose claim or release is \
                 incomplete"
            ),
            "an ADD that uses such a block, or garbage collection, completes its claim or release; \
             if they remain, find the cause with `calico-ipam check`",
        ),
    }
}
