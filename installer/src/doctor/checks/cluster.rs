//! Checks of the API server and the datastore.

use std::time::Duration;

use super::configuration::REINSTALL;
use crate::doctor::finding::Finding;
use crate::doctor::role::{MANIFEST_PATH, Permission};
use crate::doctor::snapshot::{BlockCount, Cluster, DatastoreKind, Granted, NodeSnapshot, Pool, TlsFile, Unobserved};

/// Runs the checks. Checks that need a response are skipped if there is none.
pub(super) fn check(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let Some(cluster) = &snapshot.cluster else {
        return vec![Finding::skipped("datastore", "no configuration says where it is")];
    };
    let mut findings: Vec<Finding> = tls(&cluster.tls).into_iter().collect();
    match &cluster.reached {
        Ok(after) => findings.push(reached(cluster, *after)),
        Err(reason) => {
            let seen = format!("{}: {reason}", cluster.place);
            findings.push(Finding::fail("datastore", seen, way_to(cluster)));
            findings.extend(api_beside(cluster));
            let skipped = ["permissions", "cluster information", "pools", "blocks"];
            findings.extend(skipped.map(|name| Finding::skipped(name, "nobody answers")));
            return findings;
        }
    }
    findings.extend(permissions("etcd permissions", &cluster.granted_by_etcd, GRANT_ETCD));
    findings.extend(api_beside(cluster));
    findings.extend(permissions("permissions", &cluster.granted, &format!("kubectl apply -f {MANIFEST_PATH}")));
    findings.extend(node(cluster, snapshot));
    findings.extend([cluster_information(cluster), pools(cluster), blocks(cluster)]);
    findings
}

/// The remedy for missing permissions of an etcd user.
const GRANT_ETCD: &str = "etcdctl role grant-permission ROLE --prefix=true readwrite /calico/, of a role of that user";

fn reached(cluster: &Cluster, after: Duration) -> Finding {
    const NAME: &str = "datastore";
    let seen = format!("{} answers after {} ms", cluster.place, after.as_millis());
    if cluster.silent.is_empty() {
        return Finding::ok(NAME, seen);
    }
    let silent: Vec<String> =
        cluster.silent.iter().map(|(endpoint, reason)| format!("{endpoint} does not: {reason}")).collect();
    let way_out =
        "`etcdctl endpoint health` says more; take members that are gone out of etcd_endpoints (ETCD_ENDPOINTS)";
    Finding::warn(NAME, format!("{seen}, but {}", silent.join("; ")), way_out)
}

/// Returns the remedy for an unreachable datastore.
fn way_to(cluster: &Cluster) -> &'static str {
    match cluster.kind {
        DatastoreKind::Kubernetes => {
            "can this node reach it? Without kube-proxy set KUBERNETES_SERVICE_HOST and _PORT for the installer \
             (ConfigMap kubernetes-services-endpoint)"
        }
        DatastoreKind::Etcd => {
            "can this node reach it, and with these certificates? Addresses are those of ETCD_ENDPOINTS (ConfigMap \
             calico-config), certificates those of the Secret calico-etcd-secrets; `etcdctl endpoint health` says more"
        }
        DatastoreKind::Local => "`calico-ipam init --datastore-path FILE` makes it; datastore_path is where it is",
    }
}

fn tls(files: &[TlsFile]) -> Option<Finding> {
    const NAME: &str = "TLS files";
    if files.is_empty() {
        return None;
    }
    let place = |file: &TlsFile| format!("{} {}", file.setting, file.path.display());
    for file in files {
        if let Err(reason) = &file.mode {
            let way_out =
                "give the Secret calico-etcd-secrets etcd-ca, etcd-cert and etcd-key, and run the installer again";
            return Some(Finding::fail(NAME, format!("{}: {reason}", place(file)), way_out));
        }
    }
    let is_open =
        |file: &&TlsFile| file.setting == "etcd_key_file" && file.mode.as_ref().is_ok_and(|mode| mode & 0o077 != 0);
    Some(match files.iter().find(is_open) {
        Some(key) => Finding::warn(
            NAME,
            format!("{} can be read by others", place(key)),
            format!("chmod 600 {}", key.path.display()),
        ),
        None => Finding::ok(NAME, files.iter().map(place).collect::<Vec<_>>().join(", ")),
    })
}

/// Checks the API server that stores pods, namespaces and nodes if the datastore is another one.
fn api_beside(cluster: &Cluster) -> Option<Finding> {
    const NAME: &str = "API server";
    let (place, reached) = cluster.api_beside.as_ref()?;
    Some(match reached {
        Ok(()) => Finding::ok(NAME, format!("{place} answers, beside the datastore")),
        Err(reason) => Finding::fail(
            NAME,
            format!("{place}: {reason}"),
            "plugins ask it for each pod. Can this node reach it? Without kube-proxy set KUBERNETES_SERVICE_HOST and \
             _PORT for the installer (ConfigMap kubernetes-services-endpoint)",
        ),
    })
}

fn permissions(name: &str, asked: &[Granted], way_out: &str) -> Option<Finding> {
    let unsaid = asked.iter().find_map(|granted| granted.allowed.as_ref().err());
    let lacking: Vec<&Permission> =
        asked.iter().filter(|granted| granted.allowed == Ok(false)).map(|granted| &granted.permission).collect();
    if asked.is_empty() {
        return None;
    }
    if let (Some(reason), true) = (unsaid, lacking.is_empty()) {
        return Some(Finding::skipped(name, reason.clone()));
    }
    if lacking.is_empty() {
        return Some(Finding::ok(name, format!("all {} that are needed", asked.len())));
    }
    let texts: Vec<String> = lacking.iter().map(|permission| permission.to_string()).collect();
    let seen = format!("the account may not {}", texts.join(", "));
    // Only pods with a virtual machine need these permissions.
    Some(if lacking.iter().all(|permission| permission.group == "kubevirt.io") {
        Finding::warn(name, seen, format!("{way_out}, if there are virtual machines in this cluster"))
    } else {
        Finding::fail(name, seen, way_out)
    })
}

/// Returns a finding for a datastore that responds with an error. If the API server rejects the credentials, another
/// finding gives the remedy.
fn report_unreadable(name: &str, reason: &Unobserved, cluster: &Cluster) -> Finding {
    let way_in = match cluster.kind {
        DatastoreKind::Kubernetes if cluster.refused.is_some() => return Finding::skipped(name, reason.clone()),
        DatastoreKind::Kubernetes => format!("kubectl apply -f {MANIFEST_PATH}, and the CRDs of deploy/crds"),
        DatastoreKind::Etcd => GRANT_ETCD.into(),
        DatastoreKind::Local => "look whether the file can be read, and is whole: `calico-ipam check`".into(),
    };
    Finding::fail(name, reason.clone(), way_in)
}

fn node(cluster: &Cluster, snapshot: &NodeSnapshot) -> Option<Finding> {
    const NAME: &str = "node object";
    let name = snapshot.node.as_ref()?.name.as_ref().ok()?;
    let by_others = format!("calico-node makes it, and so does `calico-ipam init --node {name}`; or correct nodename");
    Some(match cluster.node_exists.as_ref()? {
        Ok(true) => Finding::ok(NAME, format!("Node {name} exists")),
        Ok(false) if cluster.kind == DatastoreKind::Kubernetes => Finding::fail(
            NAME,
            format!("the API server has no Node {name}: its addresses are taken for leaked"),
            "correct nodename in the configuration and in the nodename file (KUBERNETES_NODE_NAME of the installer)",
        ),
        Ok(false) => Finding::fail(
            NAME,
            format!("the datastore has no Node {name}: no pod gets an address"),
            match cluster.kind {
                // Only on etcd does the installer create the Node.
                DatastoreKind::Etcd => format!("{REINSTALL}, or {by_others}"),
                _ => by_others,
            },
        ),
        Err(reason) => Finding::skipped(NAME, reason.clone()),
    })
}

fn cluster_information(cluster: &Cluster) -> Finding {
    const NAME: &str = "cluster information";
    match &cluster.ready {
        Ok(Some(Some(true))) => Finding::ok(NAME, "the datastore is ready"),
        Ok(Some(_)) => Finding::fail(
            NAME,
            "ClusterInformation default says that the datastore is not ready: every ADD and DEL fails",
            "an upgrade sets it and unsets it; if none is under way, set spec.datastoreReady to true",
        ),
        Ok(None) => Finding::fail(
            NAME,
            "there is no ClusterInformation default: every ADD fails, and each DEL notes a debt",
            "run kube-controllers, or the installer, or `calico-ipam init`",
        ),
        Err(reason) => report_unreadable(NAME, reason, cluster),
    }
}

fn pools(cluster: &Cluster) -> Finding {
    const NAME: &str = "pools";
    let way_out = "create an IPPool (`calico-ipam init --pool 10.65.0.0/16`), or enable one";
    match &cluster.pools {
        Err(reason) => report_unreadable(NAME, reason, cluster),
        Ok(pools) if pools.is_empty() => Finding::fail(NAME, "there is none: no pod gets an address", way_out),
        Ok(pools) => {
            let enabled: Vec<&Pool> = pools.iter().filter(|pool| pool.serves_pods).collect();
            let of_node: Vec<&Pool> = enabled.iter().copied().filter(|pool| pool.is_of_node()).collect();
            let listed = of_node.iter().map(|Pool { name, cidr, .. }| format!("{name} {cidr}"));
            let unsaid = of_node.iter().find_map(|pool| Some((&pool.name, pool.selects_node.as_ref().err()?)));
            match (enabled.len(), of_node.len(), unsaid) {
                (0, ..) => Finding::fail(NAME, format!("none of {} is enabled for pods", pools.len()), way_out),
                (enabled, 0, _) => Finding::fail(
                    NAME,
                    format!("none of {enabled} that are enabled selects this node: no pod gets an address"),
                    "correct the nodeSelector of an IPPool, or the labels of the Node",
                ),
                (.., Some((name, reason))) => Finding::warn(
                    NAME,
                    format!("whether {name} selects this node is not known: {reason}"),
                    "look at its nodeSelector and the labels of the Node",
                ),
                (.., None) => Finding::ok(NAME, listed.collect::<Vec<_>>().join(", ")),
            }
        }
    }
}

fn blocks(cluster: &Cluster) -> Finding {
    const NAME: &str = "blocks";
    match &cluster.blocks {
        Err(reason) => Finding::skipped(NAME, reason.clone()),
        Ok(BlockCount { confirmed: 0, pending: 0 }) => {
            Finding::ok(NAME, "this node has none; its first pod claims one")
        }
        Ok(BlockCount { confirmed, pending: 0 }) => Finding::ok(NAME, format!("this node has {confirmed}")),
        Ok(BlockCount { confirmed, pending }) => Finding::warn(
            NAME,
            format!("this node has {confirmed}, and {pending} that are claimed or given up half"),
            "the next ADD on this node finishes them; if they stay, `calico-ipam check` says more",
        ),
    }
}
