//! Reads and writes the files of calicoctl's recordings (`tests/golden/calicoctl`).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org/";

fn recorded(course: &str, step: &str) -> Value {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden/calicoctl")
        .join(course);
    serde_json::from_slice(&std::fs::read(golden.join(format!("{step}.json"))).unwrap()).unwrap()
}

/// Returns the recorded content of etcd, locked.
fn pairs() -> Vec<(String, Value)> {
    let mut content: BTreeMap<String, Value> =
        serde_json::from_value(recorded("migrate-etcd", "initial")).unwrap();
    for (key, value) in recorded("migrate-etcd", "02-lock")["changed"]
        .as_object()
        .unwrap()
    {
        content.insert(key.clone(), value.clone());
    }
    content.into_iter().collect()
}

/// Returns the recorded content with another value for a path.
fn pairs_with(path: &str, value: Value) -> Vec<(String, Value)> {
    let mut pairs = pairs();
    pairs.retain(|(known, _)| known != path);
    pairs.push((path.to_owned(), value));
    pairs
}

fn recorded_file() -> String {
    recorded("migrate-etcd", "03-export")["stdout"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Returns the content in an order of its own: calicoctl sorts tiers by their order.
fn sorted(mut file: CalicoctlFile) -> CalicoctlFile {
    file.resources
        .sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]));
    if let Some(metadata) = file.cluster["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    file
}

fn object(file: &CalicoctlFile, kind: &str, name: &str) -> Value {
    let found = file
        .resources
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}")).clone()
}

#[test]
fn export_of_the_recorded_etcd_equals_calicoctls_file() {
    let exported = of_pairs(&pairs()).unwrap();
    let expected = parse(&recorded_file()).unwrap();
    // calicoctl does not rename the nodes of these two kinds.
    let (mut exported, expected) = (sorted(exported), sorted(expected));
    for object in exported
        .resources
        .iter_mut()
        .filter(|object| object["spec"]["node"] == "node1")
    {
        object["spec"]["node"] = "etcd-name-1".into();
    }
    assert_eq!(exported, expected);
}

#[test]
fn written_file_is_read_back() {
    let exported = of_pairs(&pairs()).unwrap();
    let text = exported.to_string();
    assert_eq!(parse(&text).unwrap(), exported);
    assert_eq!(
        text.matches("===\n").count(),
        2,
        "calicoctl splits at this text"
    );
    assert_eq!(
        text.matches("List\nmetadata: {}\n---\n").count(),
        KINDS.len()
    );
}

#[test]
fn text_like_a_separator_stays_in_its_part() {
    let mut file = of_pairs(&pairs()).unwrap();
    file.resources[0]["metadata"]["annotations"] = json!({"a": "x===\n===\ny", "b===": "===\n"});
    file.ipam.handles[0].value["note"] = "===\n".into();
    let text = file.to_string();
    assert_eq!(text.matches("===\n").count(), 2);
    assert_eq!(parse(&text).unwrap(), file);
}

#[test]
fn node_names_of_etcd_are_renamed_in_each_object() {
    let block = "/calico/ipam/v2/assignment/ipv4/block/10.66.0.208-28";
    let handle = |prefix: &str| {
        json!({
            "handle_id": format!("{prefix}etcd-name-1"), "secondary": {"node": "etcd-name-1"},
        })
    };
    let attributes = [
        "ipip-",
        "vxlan-",
        "vxlan-v6-",
        "wireguard-",
        "wireguard-v6-",
    ];
    let mut attributes: Vec<Value> = attributes
        .iter()
        .map(|tunnel| handle(&format!("{tunnel}tunnel-addr-")))
        .collect();
    attributes.push(
        json!({"handle_id": "net1.etcd-name-1", "alternateOwnerAttrs": {"node": "etcd-name-1"}}),
    );
    attributes
        .push(json!({"handle_id": "vxlan-tunnel-addr-other", "secondary": {"node": "other"}}));
    let value =
        json!({"cidr": "10.66.0.208/28", "affinity": "host:etcd-name-1", "attributes": attributes});
    let mut pairs = pairs_with(block, value);
    for (path, value) in [
        (
            "/calico/ipam/v2/handle/wireguard-v6-tunnel-addr-etcd-name-1".to_owned(),
            json!({"block": {}}),
        ),
        (
            "/calico/ipam/v2/virtual/etcd-name-1/ipv4/block/10.66.0.16-28".to_owned(),
            json!({"state": "confirmed"}),
        ),
        (
            format!("{RESOURCES}bgpconfigurations/node.etcd-name-1"),
            json!({"kind": "BGPConfiguration", "metadata": {"name": "node.etcd-name-1"}}),
        ),
    ] {
        pairs.push((path, value));
    }
    let file = of_pairs(&pairs).unwrap();
    let block = &file
        .ipam
        .blocks
        .iter()
        .find(|pair| pair.path == block)
        .unwrap()
        .value;
    assert_eq!(block["affinity"], "host:node1");
    for attribute in &block["attributes"].as_array().unwrap()[..5] {
        assert!(
            attribute["handle_id"]
                .as_str()
                .unwrap()
                .ends_with("tunnel-addr-node1"),
            "{attribute}"
        );
        assert_eq!(attribute["secondary"]["node"], "node1");
    }
    let others = json!([
        {"handle_id": "net1.etcd-name-1", "alternateOwnerAttrs": {"node": "node1"}},
        {"handle_id": "vxlan-tunnel-addr-other", "secondary": {"node": "other"}},
    ]);
    assert_eq!(
        block["attributes"].as_array().unwrap()[5..],
        others.as_array().unwrap()[..]
    );
    let has = |pairs: &[Pair], path: &str| pairs.iter().any(|pair| pair.path == path);
    assert!(has(
        &file.ipam.handles,
        "/calico/ipam/v2/handle/wireguard-v6-tunnel-addr-node1"
    ));
    assert!(has(
        &file.ipam.affinities,
        "/calico/ipam/v2/host/node1/ipv4/block/10.66.0.208-28"
    ));
    assert!(has(
        &file.ipam.affinities,
        "/calico/ipam/v2/virtual/etcd-name-1/ipv4/block/10.66.0.16-28"
    ));
    object(&file, "BGPConfiguration", "node.node1");
    object(&file, "FelixConfiguration", "node.node1");
    assert_eq!(
        object(&file, "HostEndpoint", "hep1")["spec"]["node"],
        "node1"
    );
    assert_eq!(object(&file, "BGPPeer", "peer1")["spec"]["node"], "node1");
}

#[test]
fn nodes_without_a_name_of_their_own_in_kubernetes_are_refused() {
    let node = |name: &str, references: Value| {
        let path = format!("{RESOURCES}nodes/{name}");
        let node =
            json!({"kind": "Node", "metadata": {"name": name}, "spec": {"orchRefs": references}});
        of_pairs(&pairs_with(&path, node))
    };
    let reference = |name: &str| json!({"orchestrator": "k8s", "nodeName": name});
    let other = json!([{"orchestrator": "x", "nodeName": "y"}]);
    for references in [
        json!(null),
        json!([]),
        json!([reference("")]),
        json!([reference("a/b")]),
        other,
    ] {
        let error = node("third", references).unwrap_err().to_string();
        assert!(
            error.starts_with("node third missing a 'k8s' orchestrator reference. "),
            "{error}"
        );
    }
    let same = node("third", json!([reference("x"), reference("node2")])).unwrap_err();
    assert!(
        same.to_string()
            .starts_with("nodes node2 and third are both node2 in Kubernetes"),
        "{same}"
    );
}

/// Objects of a former node remain in etcd under the name that another node has in Kubernetes.
#[test]
fn objects_that_get_the_same_path_are_refused() {
    let ipam = "/calico/ipam/v2/";
    let allow = |name: &str| {
        let metadata = json!({"name": name, "namespace": "ns1"});
        json!({"kind": "NetworkPolicy", "metadata": metadata, "spec": {"tier": "default"}})
    };
    for (path, value, same) in [
        (
            format!("{ipam}host/node1/ipv4/block/10.66.0.208-28"),
            json!({"state": "confirmed"}),
            format!("{ipam}host/node1/ipv4/block/10.66.0.208-28"),
        ),
        (
            format!("{ipam}handle/net1.c0\r"),
            json!({"block": {}}),
            format!("{ipam}handle/net1.c0"),
        ),
        (
            format!("{RESOURCES}felixconfigurations/node.node1"),
            json!({"kind": "FelixConfiguration", "metadata": {"name": "node.node1"}}),
            format!("{RESOURCES}felixconfigurations/node.node1"),
        ),
        (
            format!("{RESOURCES}networkpolicies/ns1/default.allow"),
            allow("default.allow"),
            format!("{RESOURCES}networkpolicies/ns1/allow"),
        ),
    ] {
        let error = of_pairs(&pairs_with(&path, value)).unwrap_err().to_string();
        assert!(
            error.contains(&path) && error.contains(&format!("would both be {same} in the file; ")),
            "{error}"
        );
    }
}

#[test]
fn object_without_a_kind_is_exported_with_the_kind_of_its_path() {
    let path = format!("{RESOURCES}networksets/ns1/bare");
    let bare = json!({
        "metadata": {"name": "bare", "namespace": "ns1"}, "spec": {"nets": ["10.9.0.0/24"]},
    });
    let text = of_pairs(&pairs_with(&path, bare)).unwrap().to_string();
    assert_eq!(
        object(&parse(&text).unwrap(), "NetworkSet", "bare")["apiVersion"],
        "projectcalico.org/v3"
    );
}

#[test]
fn policies_are_exported_under_their_own_names() {
    let policy = |plural: &str, kind: &str, name: &str, tier: &str| {
        let spec = json!({"tier": tier});
        let metadata = json!({"name": name, "namespace": "other"});
        (
            format!("{RESOURCES}{plural}/other/{name}"),
            json!({"kind": kind, "metadata": metadata, "spec": spec}),
        )
    };
    let mut pairs = pairs();
    pairs.push(policy(
        "networkpolicies",
        "NetworkPolicy",
        "default.old",
        "default",
    ));
    pairs.push(policy(
        "networkpolicies",
        "NetworkPolicy",
        "knp.default.derived",
        "",
    ));
    pairs.push(policy(
        "stagednetworkpolicies",
        "StagedNetworkPolicy",
        "mine.staged",
        "mine",
    ));
    pairs.push(policy(
        "stagedkubernetesnetworkpolicies",
        "StagedKubernetesNetworkPolicy",
        "staged",
        "",
    ));
    let file = of_pairs(&pairs).unwrap();
    object(&file, "NetworkPolicy", "old");
    object(&file, "StagedNetworkPolicy", "mine.staged");
    object(&file, "StagedKubernetesNetworkPolicy", "staged");
    assert!(!file.to_string().contains("knp.default"));
    assert_eq!(
        object(&file, "NetworkPolicy", "allow")["metadata"].get("annotations"),
        None
    );
}

#[test]
fn settings_of_the_v3_object_serve_without_those_of_the_allocators() {
    let path = format!("{RESOURCES}ipamconfigurations/default");
    let settings = json!({
        "metadata": {"name": "default"}, "spec": {"strictAffinity": true, "maxBlocksPerHost": 4},
    });
    let mut pairs = pairs_with(&path, settings);
    let config = of_pairs(&pairs).unwrap().ipam.config.unwrap();
    assert_eq!(config.path, "/calico/ipam/v2/config");
    assert_eq!(
        config.value,
        json!({"strict_affinity": true, "auto_allocate_blocks": true, "maxBlocksPerHost": 4})
    );
    pairs.push((config.path, json!({"auto_allocate_blocks": true})));
    assert_eq!(
        of_pairs(&pairs).unwrap().ipam.config.unwrap().value,
        json!({"auto_allocate_blocks": true})
    );
}

#[test]
fn carriage_returns_in_old_handles_are_removed() {
    let path = "/calico/ipam/v2/handle/net1.old";
    let file = of_pairs(&pairs_with(&format!("{path}\r"), json!({"block": {}}))).unwrap();
    assert!(file.ipam.handles.iter().any(|pair| pair.path == path));
    let text = recorded_file().replace("handle/net1.c0", "handle/net1.old\\r");
    assert_eq!(parse(&text).unwrap().ipam.handles[0].path, path);
}

#[test]
fn action_fields_of_felix_are_capitalized() {
    let felix = json!({
        "kind": "FelixConfiguration", "metadata": {"name": "default"},
        "spec": {
            "defaultEndpointToHostAction": "ACCEPT", "iptablesFilterDenyAction": "reject",
            "logSeverityScreen": "INFO",
        },
    });
    let file = of_pairs(&pairs_with(
        &format!("{RESOURCES}felixconfigurations/default"),
        felix,
    ))
    .unwrap();
    let spec = object(&file, "FelixConfiguration", "default")["spec"].clone();
    let expected = json!({
        "defaultEndpointToHostAction": "Accept", "iptablesFilterDenyAction": "Reject",
        "logSeverityScreen": "INFO",
    });
    assert_eq!(spec, expected);
}

#[test]
fn omitted_kinds_are_named_by_their_plurals() {
    for (path, plural) in [
        ("workloadendpoints/ns1/a", Some("workloadendpoints")),
        ("caliconodestatuses/a", Some("caliconodestatuses")),
        ("profiles/kns.ns1", Some("profiles")),
        ("ippools/a", None),
        ("ipamconfigurations/default", None),
        ("clusterinformations/default", None),
    ] {
        assert_eq!(omitted_plural(&format!("{RESOURCES}{path}")), plural);
    }
    for path in [
        "/calico/v1/Ready",
        "/calico/felix/v2/x",
        "/calico/ipam/v2/host/n/other",
    ] {
        assert!(
            omitted_plural(path).is_none() && !is_exported(path),
            "{path}"
        );
    }
}

#[test]
fn incomplete_files_are_refused() {
    let error = |text: &str| parse(text).unwrap_err().to_string();
    assert!(error("no\n").starts_with("it has 1 parts"));
    let broken = recorded("migrate-kubernetes-broken-file", "01-import");
    assert!(
        error(broken["files_before"]["broken.yaml"].as_str().unwrap())
            .starts_with("it has 1 parts")
    );
    let mismatch = recorded("migrate-etcd-end", "02-export-mismatch");
    let mismatch = error(mismatch["stdout"].as_str().unwrap());
    assert!(
        mismatch.starts_with("document 1 is not a list of objects; "),
        "{mismatch}"
    );

    let file = recorded_file();
    assert!(
        error(&file[..file.len() - 10]).starts_with("the part with addresses: EOF while parsing")
    );
    assert!(
        error(&file.replace("kind: BGPPeer\n", "kind: Peer\n"))
            .contains("an object of kind \"Peer\"")
    );
    assert!(
        error(&file.replace("name: six\n", "name: big\n"))
            .starts_with("two objects are called IPPool(big)")
    );
    assert!(
        error(&file.replace("handle/net1.c1", "handle/net1.c0"))
            .starts_with("two objects are called /calico/")
    );
    assert!(error(&file.replace("/block/10.66.0.0-28", "/10.66.0.0")).contains("invalid key"));
    assert!(
        error(&file.replace("\"kind\": \"ClusterInformation\"", "\"kind\": \"x\""))
            .contains("ClusterInformation")
    );
    assert!(
        error(&file.replace("\"clusterGUID\": ", "\"guid\": "))
            .contains("it has no spec.clusterGUID")
    );
    assert!(
        error(&file.replace("\"blocks\": [", "\"block\": [")).contains("unknown field `block`")
    );
    let with_crlf = file.replace('\n', "\r\n");
    assert_eq!(parse(&with_crlf).unwrap(), parse(&file).unwrap());
}

/// The second document repeats an anchor many times.
#[test]
fn file_with_exponential_aliases_is_refused() {
    let mut bomb = String::from("items:\n- &a [x, x, x, x, x, x, x, x, x]\n");
    for (name, of) in [
        ('b', 'a'),
        ('c', 'b'),
        ('d', 'c'),
        ('e', 'd'),
        ('f', 'e'),
        ('g', 'f'),
        ('h', 'g'),
    ] {
        bomb += &format!("- &{name} [{}]\n", vec![format!("*{of}"); 9].join(", "));
    }
    let text = format!("{bomb}---\n===\n{{}}\n===\n{{}}\n");
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.starts_with("document 1: "), "{error}");
}
