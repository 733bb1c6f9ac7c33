//! The API server and the datastore.

use crate::doctor::facts::{BlockCount, Cluster, Facts, Pool};
use crate::doctor::finding::Finding;
use crate::doctor::role::{MANIFEST_PATH, Permission};

/// What depends on an answer is skipped without one.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let Some(cluster) = &facts.cluster else {
        return vec![Finding::skipped("datastore", "no configuration says where it is")];
    };
    let reached = match &cluster.reached {
        Ok(after) => Finding::ok("datastore", format!("{} answers after {} ms", cluster.place, after.as_millis())),
        Err(reason) => {
            let way_out = "can this node reach it? Without kube-proxy set KUBERNETES_SERVICE_HOST and _PORT for the installer \
                           (ConfigMap kubernetes-services-endpoint)";
            let skipped = ["permissions", "cluster information", "pools", "blocks"];
            let because = "nobody answers";
            let mut findings = vec![Finding::fail("datastore", format!("{}: {reason}", cluster.place), way_out)];
            findings.extend(skipped.map(|name| Finding::skipped(name, because)));
            return findings;
        }
    };
    let mut findings = vec![reached];
    findings.extend(permissions(cluster));
    findings.extend(node(cluster, facts));
    findings.extend([cluster_information(cluster), pools(cluster), blocks(cluster)]);
    findings
}

fn permissions(cluster: &Cluster) -> Option<Finding> {
    const NAME: &str = "permissions";
    let asked = &cluster.granted;
    let unsaid = asked.iter().find_map(|granted| granted.allowed.as_ref().err());
    let lacking: Vec<&Permission> =
        asked.iter().filter(|granted| granted.allowed == Ok(false)).map(|granted| &granted.permission).collect();
    if asked.is_empty() {
        return None;
    }
    if let (Some(reason), true) = (unsaid, lacking.is_empty()) {
        return Some(Finding::skipped(NAME, reason.clone()));
    }
    if lacking.is_empty() {
        return Some(Finding::ok(NAME, format!("all {} that are needed", asked.len())));
    }
    let texts: Vec<String> = lacking.iter().map(|permission| permission.to_string()).collect();
    let seen = format!("the account may not {}", texts.join(", "));
    let way_out = format!("kubectl apply -f {MANIFEST_PATH}");
    // Only pods with a virtual machine need these.
    Some(match lacking.iter().all(|permission| permission.group == "kubevirt.io") {
        true => Finding::warn(NAME, seen, format!("{way_out}, if there are virtual machines in this cluster")),
        false => Finding::fail(NAME, seen, way_out),
    })
}

fn node(cluster: &Cluster, facts: &Facts) -> Option<Finding> {
    const NAME: &str = "node object";
    let name = facts.node.as_ref()?.name.as_ref().ok()?;
    Some(match cluster.node_exists.as_ref()? {
        Ok(true) => Finding::ok(NAME, format!("Node {name} exists")),
        Ok(false) => Finding::fail(
            NAME,
            format!("the API server has no Node {name}: its addresses are taken for leaked"),
            "correct nodename in the configuration and in the nodename file (KUBERNETES_NODE_NAME of the installer)",
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
            "there is no ClusterInformation default: every ADD and DEL fails",
            "run kube-controllers, or the installer, or `calico-ipam init`",
        ),
        Err(reason) => Finding::fail(
            NAME,
            reason.clone(),
            format!("kubectl apply -f {MANIFEST_PATH}, and the CRDs of deploy/crds"),
        ),
    }
}

fn pools(cluster: &Cluster) -> Finding {
    const NAME: &str = "pools";
    let way_out = "create an IPPool (`calico-ipam init --pool 10.65.0.0/16`), or enable one";
    match &cluster.pools {
        Err(reason) => Finding::fail(
            NAME,
            reason.clone(),
            format!("kubectl apply -f {MANIFEST_PATH}, and the CRDs of deploy/crds"),
        ),
        Ok(pools) if pools.is_empty() => Finding::fail(NAME, "there is none: no pod gets an address", way_out),
        Ok(pools) => {
            let serving: Vec<String> = pools
                .iter()
                .filter(|pool| pool.serves_pods)
                .map(|Pool { name, cidr, .. }| format!("{name} {cidr}"))
                .collect();
            match serving.is_empty() {
                true => Finding::fail(NAME, format!("none of {} is enabled for pods", pools.len()), way_out),
                false => Finding::ok(NAME, serving.join(", ")),
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
