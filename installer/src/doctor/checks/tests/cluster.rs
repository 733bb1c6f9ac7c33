//! Tests of the findings about the datastore and the API server.

use super::*;

#[test]
fn an_etcd_has_ways_out_of_its_own() {
    only("FAIL TLS files: etcd_key_file /x/etcd-key: gone", |facts| on_etcd(facts).tls[1].mode = Err("gone".into()));
    only("warn TLS files: etcd_key_file /x/etcd-key can be read by others", |facts| {
        let cluster = on_etcd(facts);
        (cluster.tls[0].mode, cluster.tls[1].mode) = (Ok(0o644), Ok(0o640));
    });
    only("warn datastore: https://10.96.0.1:443 answers after 7 ms, but https://b:2379 does not: refused", |facts| {
        on_etcd(facts).silent = vec![("https://b:2379".into(), "refused".into())];
    });
    only("FAIL etcd permissions: the account may not write IPAMHandle", |facts| {
        on_etcd(facts).granted_by_etcd[1].allowed = Ok(false);
    });
    only("FAIL API server: https://10.96.0.1:443: refused", |facts| {
        on_etcd(facts).api_beside.as_mut().unwrap().1 = Err("refused".into());
    });
    only("FAIL node object: the datastore has no Node node1: no pod", |facts| {
        on_etcd(facts).node_exists = Some(Ok(false));
    });
    let mut facts = good();
    on_etcd(&mut facts).node_exists = Some(Ok(false));
    let told = all(&facts).into_iter().find(|finding| finding.name == "node object").unwrap();
    assert!(told.way_out.contains("run the installer again") && told.way_out.contains("calico-ipam init --node node1"));
    for kind in [DatastoreKind::Kubernetes, DatastoreKind::Etcd, DatastoreKind::Local] {
        let mut facts = good();
        cluster(&mut facts).kind = kind;
        cluster(&mut facts).pools = Err("refused".into());
        let told: Vec<String> = all(&facts).into_iter().map(|finding| finding.way_out).collect();
        assert_eq!(told.concat().contains("kubectl"), kind == DatastoreKind::Kubernetes, "{told:?}");
        cluster(&mut facts).reached = Err("away".into());
        let told: Vec<String> = all(&facts).into_iter().map(|finding| finding.way_out).collect();
        let word = match kind {
            DatastoreKind::Kubernetes => "kube-proxy",
            DatastoreKind::Etcd => "etcdctl",
            DatastoreKind::Local => "calico-ipam init",
        };
        assert!(told.concat().contains(word), "{told:?}");
    }
}

#[test]
fn without_an_answer_the_rest_is_skipped() {
    let found = wrong(|facts| cluster(facts).reached = Err("connection refused".into()));
    assert_eq!(found[0], "FAIL datastore: https://10.96.0.1:443: connection refused");
    assert!(found.len() == 5 && found[1..].iter().all(|told| told.starts_with("skipped ")), "{found:?}");
    only("skipped datastore: ", |facts| facts.cluster = None);
}

#[test]
fn permissions_that_lack() {
    only("FAIL permissions: the account may not get pods", |facts| cluster(facts).granted[0].allowed = Ok(false));
    only("warn permissions: the account may not get virtualmachines.kubevirt.io", |facts| {
        cluster(facts).granted[1].allowed = Ok(false);
    });
    only("skipped permissions: forbidden", |facts| cluster(facts).granted[0].allowed = Err("forbidden".into()));
    let none = wrong(|facts| cluster(facts).granted.clear());
    assert!(none.is_empty(), "{none:?}");
}

#[test]
fn what_the_datastore_says() {
    only("FAIL cluster information: there is no", |facts| cluster(facts).ready = Ok(None));
    only("FAIL cluster information: ClusterInformation default says", |facts| {
        cluster(facts).ready = Ok(Some(Some(false)))
    });
    only("FAIL cluster information: ", |facts| cluster(facts).ready = Ok(Some(None)));
    only("FAIL cluster information: refused", |facts| cluster(facts).ready = Err("refused".into()));
    only("FAIL pools: there is none", |facts| cluster(facts).pools = Ok(Vec::new()));
    only("FAIL pools: none of 1 is enabled", |facts| cluster(facts).pools = Ok(vec![pool("p", "10.0.0.0/8", false)]));
    let selects = |selects_node: Result<bool, String>| {
        move |facts: &mut Facts| cluster(facts).pools.as_mut().unwrap()[0].selects_node = selects_node
    };
    only("FAIL pools: none of 1 that are enabled selects this node", selects(Ok(false)));
    only("warn pools: whether default selects this node is not known: why", selects(Err("why".into())));
    let mut facts = good();
    let other = Pool { selects_node: Ok(false), ..pool("other", "10.66.0.0/16", true) };
    cluster(&mut facts).pools.as_mut().unwrap().push(other);
    let told = all(&facts).into_iter().find(|finding| finding.name == "pools").unwrap();
    assert_eq!((told.state, told.seen.as_str()), (State::Ok, "default 10.65.0.0/16"));
    only("FAIL pools: refused", |facts| cluster(facts).pools = Err("refused".into()));
    only("warn blocks: this node has 1, and 1 that", |facts| {
        cluster(facts).blocks = Ok(BlockCount { confirmed: 1, pending: 1 });
    });
    only("skipped blocks: refused", |facts| cluster(facts).blocks = Err("refused".into()));
    only("FAIL node object: the API server has no Node node1", |facts| cluster(facts).node_exists = Some(Ok(false)));
}
