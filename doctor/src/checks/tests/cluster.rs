//! Tests of the findings about the datastore and the API server.

use super::*;
use crate::snapshot::Observed;

#[test]
fn etcd_findings_have_their_own_remedies() {
    only(
        "FAIL TLS files: etcd_key_file /x/etcd-key: gone",
        |snapshot| on_etcd(snapshot).tls[1].mode = Err("gone".into()),
    );
    only(
        "warn TLS files: etcd_key_file /x/etcd-key is readable by other users than root",
        |snapshot| {
            let cluster = on_etcd(snapshot);
            (cluster.tls[0].mode, cluster.tls[1].mode) = (Ok(0o644), Ok(0o640));
        },
    );
    only(
        "warn datastore: https://10.96.0.1:443 answers after 7 ms, but https://b:2379 does not: \
         refused",
        |snapshot| {
            answers(on_etcd(snapshot)).silent_members =
                vec![("https://b:2379".into(), "refused".into())];
        },
    );
    only(
        "FAIL etcd permissions: the account may not write IPAMHandle",
        |snapshot| {
            answers(on_etcd(snapshot)).etcd_permissions[1].is_allowed = Ok(false);
        },
    );
    only(
        "FAIL API server: https://10.96.0.1:443: refused",
        |snapshot| {
            api(on_etcd(snapshot)).reached = Err("refused".into());
        },
    );
    only(
        "FAIL node object: the datastore has no Node node1: no pod",
        |snapshot| {
            answers(on_etcd(snapshot)).node_exists = Some(Ok(false));
        },
    );
    let mut snapshot = good();
    answers(on_etcd(&mut snapshot)).node_exists = Some(Ok(false));
    let finding = run_all(&snapshot)
        .into_iter()
        .find(|finding| finding.name == "node object")
        .unwrap();
    assert!(
        finding.remedy.contains("run the installer again")
            && finding.remedy.contains("calico-ipam init --node node1")
    );
    for kind in [
        DatastoreType::Kubernetes,
        DatastoreType::Etcdv3,
        DatastoreType::Local,
    ] {
        let mut snapshot = good();
        cluster(&mut snapshot).kind = kind;
        answers(cluster(&mut snapshot)).pools = Err("refused".into());
        let remedies: Vec<String> = run_all(&snapshot)
            .into_iter()
            .map(|finding| finding.remedy)
            .collect();
        assert_eq!(
            remedies.concat().contains("kubectl"),
            kind == DatastoreType::Kubernetes,
            "{remedies:?}"
        );
        cluster(&mut snapshot).reached = Err("away".into());
        let remedies: Vec<String> = run_all(&snapshot)
            .into_iter()
            .map(|finding| finding.remedy)
            .collect();
        let word = match kind {
            DatastoreType::Kubernetes => "kube-proxy",
            DatastoreType::Etcdv3 => "etcdctl",
            DatastoreType::Local => "calico-ipam init",
        };
        assert!(remedies.concat().contains(word), "{remedies:?}");
    }
}

#[test]
fn unreachable_datastore_fails_and_skips_the_dependent_checks() {
    let found = wrong(|snapshot| cluster(snapshot).reached = Err("connection refused".into()));
    assert_eq!(
        found[0],
        "FAIL datastore: https://10.96.0.1:443: connection refused"
    );
    assert!(
        found.len() == 5
            && found[1..]
                .iter()
                .all(|finding| finding.starts_with("skipped ")),
        "{found:?}"
    );
    only("skipped datastore: ", |snapshot| snapshot.cluster = None);
}

#[test]
fn missing_permissions_are_reported_by_importance() {
    only(
        "FAIL permissions: the account may not get pods",
        |snapshot| api(cluster(snapshot)).permissions[0].is_allowed = Ok(false),
    );
    only(
        "warn permissions: the account may not get virtualmachines.kubevirt.io",
        |snapshot| {
            api(cluster(snapshot)).permissions[1].is_allowed = Ok(false);
        },
    );
    only("skipped permissions: forbidden", |snapshot| {
        api(cluster(snapshot)).permissions[0].is_allowed = Err("forbidden".into())
    });
    let none = wrong(|snapshot| api(cluster(snapshot)).permissions.clear());
    assert!(none.is_empty(), "{none:?}");
}

#[test]
fn missing_cluster_information_and_unusable_pools_are_reported() {
    only(
        "FAIL cluster information: ClusterInformation default is missing",
        |snapshot| answers(cluster(snapshot)).ready = Ok(Readiness::Missing),
    );
    only(
        "FAIL cluster information: the datastore is not ready according to ClusterInformation \
         default",
        |snapshot| answers(cluster(snapshot)).ready = Ok(Readiness::Locked),
    );
    only(
        "FAIL cluster information: Calico's objects moved to projectcalico.org/v3",
        |snapshot| answers(cluster(snapshot)).ready = Ok(Readiness::Moved),
    );
    only("FAIL cluster information: refused", |snapshot| {
        answers(cluster(snapshot)).ready = Err("refused".into())
    });
    only("FAIL pools: there is no IPPool", |snapshot| {
        answers(cluster(snapshot)).pools = Ok(Vec::new())
    });
    only("FAIL pools: none of 1 pools is enabled", |snapshot| {
        answers(cluster(snapshot)).pools = Ok(vec![pool("p", "10.0.0.0/8", false)])
    });
    let selects = |selects_node: Observed<bool>| {
        move |snapshot: &mut NodeSnapshot| {
            answers(cluster(snapshot)).pools.as_mut().unwrap()[0].selects_node = selects_node
        }
    };
    only(
        "FAIL pools: none of 1 enabled pools selects this node",
        selects(Ok(false)),
    );
    only(
        "warn pools: it is unknown whether default selects this node: why",
        selects(Err("why".into())),
    );
    let mut snapshot = good();
    let other = Pool {
        selects_node: Ok(false),
        ..pool("other", "10.66.0.0/16", true)
    };
    answers(cluster(&mut snapshot))
        .pools
        .as_mut()
        .unwrap()
        .push(other);
    let finding = run_all(&snapshot)
        .into_iter()
        .find(|finding| finding.name == "pools")
        .unwrap();
    assert_eq!(
        (finding.state, finding.observation.as_str()),
        (Severity::Ok, "default 10.65.0.0/16")
    );
    only("FAIL pools: refused", |snapshot| {
        answers(cluster(snapshot)).pools = Err("refused".into())
    });
    only(
        "warn blocks: this node has 1 blocks, and 1 whose",
        |snapshot| {
            answers(cluster(snapshot)).blocks = Ok(BlockCount {
                confirmed: 1,
                pending: 1,
            });
        },
    );
    only("skipped blocks: refused", |snapshot| {
        answers(cluster(snapshot)).blocks = Err("refused".into())
    });
    only(
        "FAIL node object: the API server has no Node node1",
        |snapshot| answers(cluster(snapshot)).node_exists = Some(Ok(false)),
    );
}

#[test]
fn missing_node_of_the_embedded_datastore_is_a_failure_only_if_its_name_is_invalid() {
    let without_node = |snapshot: &mut NodeSnapshot| {
        cluster(snapshot).kind = DatastoreType::Local;
        answers(cluster(snapshot)).node_exists = Some(Ok(false));
    };
    assert_eq!(wrong(without_node), Vec::<String>::new());
    only(
        "FAIL node object: the datastore has no Node node_1: no pod",
        |snapshot| {
            without_node(snapshot);
            let node = node(snapshot);
            (node.name, node.configured, node.written) = (
                Ok("node_1".into()),
                "node_1".into(),
                Ok(Some("node_1".into())),
            );
        },
    );
}
