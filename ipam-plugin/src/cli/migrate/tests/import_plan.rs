//! The writes that an import plans, and the reasons for which it refuses a file or a target.

use super::*;

fn recorded_file() -> CalicoctlFile {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden/calicoctl/migrate-etcd/03-export.json");
    let step: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    parse(step["stdout"].as_str().unwrap()).unwrap()
}

fn recorded_items(codec: &Codec) -> Vec<Item> {
    items(recorded_file(), codec, CREATED).unwrap()
}

fn empty_target() -> Target {
    Target {
        namespaces: ["ns1".to_owned()].into(),
        ..Target::default()
    }
}

/// Adds the object of a write to the target, as the API server would return it.
fn store(target: &mut Target, codec: &Codec, write: &Write) {
    let Ok(Request::Create { mut body, .. }) = codec.request(write) else {
        panic!("{write:?}")
    };
    body["metadata"]["uid"] = "11111111-1111-4111-8111-111111111111".into();
    body["metadata"]["resourceVersion"] = "7".into();
    let (kind, path) = (write.kind, write.path.clone());
    let range = Range {
        kind,
        path,
        is_prefix: true,
        keys_only: false,
        freshness: Freshness::Latest,
    };
    let RawEntry {
        path,
        value,
        revision,
    } = codec.decode(&range, body).unwrap().entry;
    target.entries.insert(
        path.clone(),
        RawEntry {
            path,
            value,
            revision,
        },
    );
}

/// Returns the target after the whole import.
fn full_target(codec: &Codec) -> Target {
    let mut target = empty_target();
    for (_, write) in recorded_items(codec)
        .iter()
        .filter_map(|item| item.create.as_ref())
    {
        store(&mut target, codec, write);
    }
    target
}

/// Returns the plan for the recorded file after a change of it.
fn plan_of(codec: &Codec, target: &Target, change: impl FnOnce(&mut CalicoctlFile)) -> Plan {
    let mut file = recorded_file();
    change(&mut file);
    plan(&items(file, codec, CREATED).unwrap(), target)
}

fn refusals(plan: &Plan) -> Vec<String> {
    plan.report
        .refused
        .iter()
        .map(|named| format!("{}: {}", named.object, named.remark))
        .collect()
}

#[test]
fn plan_for_an_empty_target_creates_each_object_in_order() {
    for group in GROUPS {
        let codec = Codec::new(group);
        let Plan {
            writes,
            report,
            ownerless_blocks,
            ..
        } = plan(&recorded_items(&codec), &empty_target());
        assert!(
            report.refused.is_empty()
                && writes
                    .iter()
                    .all(|write| matches!(write.op, WriteOp::Create(_)))
        );
        assert_eq!(
            (report.resources.created, report.ipam.created, writes.len()),
            (17, 13, 30)
        );
        assert_eq!(report.skipped_nodes, ["Node(node1)", "Node(node2)"]);
        assert_eq!(ownerless_blocks, 4);
        let kinds: Vec<&str> = writes
            .chunk_by(|one, next| one.kind == next.kind)
            .map(|chunk| chunk[0].kind)
            .collect();
        assert_eq!(kinds.first(), Some(&"Tier"));
        assert_eq!(
            kinds[kinds.len() - 3..],
            ["BlockAffinity", "IPAMBlock", "IPAMHandle"]
        );
    }
}

#[test]
fn interrupted_plan_continues() {
    for group in GROUPS {
        let codec = Codec::new(group);
        let items = recorded_items(&codec);
        let mut target = empty_target();
        let all = plan(&items, &target).writes;
        for done in 0..=all.len() {
            let Plan { writes, report, .. } = plan(&items, &target);
            assert_eq!(writes, all[done..]);
            assert!(report.refused.is_empty(), "{:?}", report.refused);
            assert_eq!(report.resources.unchanged + report.ipam.unchanged, done);
            if let Some(next) = all.get(done) {
                store(&mut target, &codec, next);
            }
        }
    }
}

#[test]
fn objects_that_differ_are_refused() {
    let codec = Codec::new(ApiGroup::CrdV1);
    let target = full_target(&codec);
    let plan = plan_of(&codec, &target, |file| {
        for object in &mut file.resources {
            match object["metadata"]["name"].as_str().unwrap() {
                "big" => object["spec"]["cidr"] = "10.66.0.0/25".into(),
                "allow" => object["metadata"]["labels"]["a"] = "b".into(),
                _ => {}
            }
        }
        file.ipam.blocks[0].value["allocations"] = json!([null]);
    });
    assert_eq!(
        refusals(&plan),
        [
            "IPPool(big): exists and differs in spec.cidr; correct or delete it",
            "NetworkPolicy(ns1/allow): exists and differs in metadata.labels.a; correct or delete \
             it",
            "IPAMBlock(10.66.0.0/28): exists and differs in allocations; correct or delete it",
        ]
    );
}

#[test]
fn more_fields_of_the_target_are_accepted_except_in_blocks() {
    let codec = Codec::new(ApiGroup::V3);
    let target = full_target(&codec);
    let plan = plan_of(&codec, &target, |file| {
        let pool = file
            .resources
            .iter_mut()
            .find(|object| object["metadata"]["name"] == "big")
            .unwrap();
        pool["spec"]
            .as_object_mut()
            .unwrap()
            .remove("assignmentMode");
        file.ipam.blocks[0]
            .value
            .as_object_mut()
            .unwrap()
            .remove("affinity_claim_time");
    });
    let others: Vec<_> = plan
        .report
        .other_fields
        .iter()
        .map(|named| format!("{} {}", named.object, named.remark))
        .collect();
    assert_eq!(others, ["IPPool(big) spec.assignmentMode"]);
    assert_eq!(
        refusals(&plan),
        [
            "IPAMBlock(10.66.0.0/28): exists and differs in affinity_claim_time; correct or delete \
             it"
        ]
    );
}

#[test]
fn built_in_tier_gets_the_spec_of_the_file() {
    let codec = Codec::new(ApiGroup::CrdV1);
    let target = full_target(&codec);
    let change = |name: &'static str| {
        plan_of(&codec, &target, move |file| {
            let is_it = |object: &&mut Value| {
                object["kind"] == "Tier" && object["metadata"]["name"] == name
            };
            file.resources.iter_mut().find(is_it).unwrap()["spec"]["order"] = 7.into();
        })
    };
    let Plan { writes, report, .. } = change("kube-admin");
    assert_eq!(
        report.resources,
        Counts {
            created: 0,
            configured: 1,
            unchanged: 16
        }
    );
    let [
        Write {
            op: WriteOp::Update(bytes, _),
            ..
        },
    ] = &writes[..]
    else {
        panic!("{writes:?}")
    };
    assert_eq!(
        serde_json::from_slice::<Value>(bytes).unwrap()["spec"]["order"],
        7
    );
    assert_eq!(
        refusals(&change("mine")),
        ["Tier(mine): exists and differs in spec.order; correct or delete it"]
    );
}

#[test]
fn missing_namespaces_and_kinds_are_refused() {
    let codec = Codec::new(ApiGroup::CrdV1);
    let target = Target {
        unserved: vec!["BGPPeer"],
        ..Target::default()
    };
    let refused = refusals(&plan_of(&codec, &target, |_| ()));
    assert!(
        refused[0].starts_with("BGPPeer: the API server does not serve this kind; "),
        "{refused:?}"
    );
    let missing = "namespace ns1 does not exist; create it first";
    assert_eq!(
        refused[1..],
        [
            format!("NetworkPolicy(ns1/allow): {missing}"),
            format!("NetworkSet(ns1/set2): {missing}")
        ]
    );
}

#[test]
fn addresses_that_only_the_target_has_are_refused() {
    let codec = Codec::new(ApiGroup::CrdV1);
    let target = full_target(&codec);
    let plan = plan_of(&codec, &target, |file| {
        file.ipam.handles.remove(0);
        file.resources
            .retain(|object| object["metadata"]["name"] != "six");
        let pool = file
            .resources
            .iter_mut()
            .find(|object| object["metadata"]["name"] == "big")
            .unwrap();
        (pool["metadata"]["name"], pool["spec"]["cidr"]) = ("other".into(), "fd66::/112".into());
    });
    let foreign = "/calico/ipam/v2/handle/net1.c0: exists, but not in the file: another cluster's \
                   addresses are in use here";
    let overlap = "IPPool(other): overlaps /calico/resources/v3/projectcalico.org/ippools/six, \
                   which the file does not contain";
    assert_eq!(refusals(&plan), [foreign, overlap]);
}

#[test]
fn contradictions_in_the_file_are_refused() {
    let codec = Codec::new(ApiGroup::V3);
    let plan = plan_of(&codec, &empty_target(), |file| {
        let handle = Pair {
            path: "/calico/ipam/v2/handle/NET1.c0".into(),
            value: json!({"block": {}}),
        };
        file.ipam.handles.push(handle);
        let block = json!({"cidr": "10.66.0.0/27", "allocations": []});
        file.ipam.blocks.push(Pair {
            path: "/calico/ipam/v2/assignment/ipv4/block/10.66.0.0-27".into(),
            value: block,
        });
    });
    assert_eq!(
        refusals(&plan),
        [
            "IPAMHandle(NET1.c0): has the same name on an API server as IPAMHandle(net1.c0)",
            "IPAMBlock(10.66.0.0/27): overlaps the block 10.66.0.0/28 of the file",
        ]
    );
}

#[test]
fn names_that_no_api_server_accepts_are_refused() {
    let plan = plan_of(&Codec::new(ApiGroup::V3), &empty_target(), |file| {
        let path = "/calico/ipam/v2/host/OLD_HOST/ipv4/block/10.66.0.0-28".into();
        file.ipam.affinities.push(Pair {
            path,
            value: json!({"state": "confirmed"}),
        });
    });
    let refused = refusals(&plan);
    assert!(
        refused[0].contains("host=OLD_HOST") && refused[0].contains("no API server accepts"),
        "{refused:?}"
    );
    assert_eq!(refused.len(), 1);
}

#[test]
fn invalid_values_are_refused() {
    let error_of = |change: &dyn Fn(&mut CalicoctlFile)| {
        let mut file = recorded_file();
        change(&mut file);
        items(file, &Codec::new(ApiGroup::CrdV1), CREATED)
            .unwrap_err()
            .to_string()
    };
    let labels = error_of(&|file| {
        let node = file
            .resources
            .iter_mut()
            .find(|object| object["kind"] == "Node")
            .unwrap();
        node["metadata"]["labels"] = json!({"rack": 7});
    });
    assert!(
        labels.contains("metadata.labels has a value that is no text"),
        "{labels}"
    );
    let block = error_of(&|file| file.ipam.blocks[0].value["allocations"] = json!(["0"]));
    assert!(block.contains("IPAMBlock("), "{block}");
    let other = error_of(&|file| file.ipam.blocks[0].value["cidr"] = "10.99.0.0/28".into());
    assert!(other.contains("belongs to another path"), "{other}");
}

/// Kubernetes deletes an object whose owners do not exist.
#[test]
fn references_to_owners_in_etcd_are_left_out() {
    let mut file = recorded_file();
    let pool = file
        .resources
        .iter_mut()
        .find(|object| object["kind"] == "IPPool")
        .unwrap();
    pool["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u"}]);
    for group in GROUPS {
        let items = items(file.clone(), &Codec::new(group), CREATED).unwrap();
        let (_, write) = items
            .iter()
            .find(|item| item.kind == "IPPool")
            .and_then(|item| item.create.as_ref())
            .unwrap();
        let Ok(Request::Create { body, .. }) = Codec::new(group).request(write) else {
            panic!("{write:?}")
        };
        assert!(!body.to_string().contains("ownerReferences"), "{body}");
    }
}

#[test]
fn node_gets_the_missing_fields_alone() {
    let codec = Codec::new(ApiGroup::CrdV1);
    let mut target = full_target(&codec);
    let path = "/calico/resources/v3/projectcalico.org/nodes/node1";
    let mut read = |node: Value| {
        let range = Range {
            kind: "Node",
            path: path.into(),
            is_prefix: false,
            keys_only: false,
            freshness: Freshness::Latest,
        };
        let entry = codec.decode(&range, node).unwrap().entry;
        target.entries.insert(path.into(), entry);
        plan_of(&codec, &target, |_| ())
    };
    let node = |annotations: Value| {
        json!({
            "metadata": {"name": "node1", "resourceVersion": "5", "annotations": annotations}
        })
    };
    let Plan { writes, report, .. } = read(node(json!({})));
    assert_eq!(
        (report.resources.configured, report.skipped_nodes),
        (1, vec!["Node(node2)".to_owned()])
    );
    let Ok(Request::PatchStatus { body, .. }) = codec.request(&writes[0]) else {
        panic!("{writes:?}")
    };
    let mut annotations = body["metadata"]["annotations"].clone();
    annotations
        .as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    let expected = json!({
        "projectcalico.org/IPv4Address": "172.31.0.1/24",
        "projectcalico.org/labels": r#"{"zone":"a"}"#,
    });
    assert_eq!(annotations, expected);
    assert!(read(node(annotations)).writes.is_empty());
    let other = read(node(
        json!({"projectcalico.org/IPv4Address": "172.31.0.9/24"}),
    ));
    assert!(
        refusals(&other)[0].starts_with("Node(node1): exists and spec.bgp.ipv4Address differs; ")
    );
}

#[test]
fn target_with_an_import_of_another_cluster_or_in_use_is_refused() {
    let information = |guid: &str, is_ready: bool, mark: Option<&str>| {
        let annotations = mark.map_or_else(|| json!({}), |mark| json!({IMPORTING: mark}));
        let spec = json!({"clusterGUID": guid, "datastoreReady": is_ready});
        let information =
            json!({"metadata": {"name": "default", "annotations": annotations}, "spec": spec});
        serde_json::from_value::<ClusterInformation>(information).unwrap()
    };
    for (information, expected, refused) in [
        (
            information("a", true, None),
            FormerImport::Unlocked,
            Some("has the clusterGUID of the file and is unlocked"),
        ),
        (information("b", true, None), FormerImport::None, None),
        (information("a", false, None), FormerImport::None, None),
        (
            information("a", false, Some("a")),
            FormerImport::Incomplete,
            None,
        ),
        (
            information("b", false, Some("b")),
            FormerImport::OfOther("b".into()),
            Some("clusterGUID b is incomplete"),
        ),
    ] {
        let former_import = FormerImport::of(&information, "a");
        assert_eq!(former_import, expected);
        let codec = Codec::new(ApiGroup::V3);
        let refused_now = refusals(&plan(
            &recorded_items(&codec),
            &Target {
                former_import,
                ..empty_target()
            },
        ));
        match refused {
            Some(text) => assert!(refused_now[0].contains(text), "{refused_now:?}"),
            None => assert_eq!(refused_now, Vec::<String>::new()),
        }
    }
}

/// Definitions of other versions of Calico lack fields, which the API server then drops.
#[test]
fn fields_that_the_api_server_dropped_stop_no_incomplete_import() {
    let codec = Codec::new(ApiGroup::V3);
    let with_field = |target: &Target| {
        plan_of(&codec, target, |file| {
            let pool = file
                .resources
                .iter_mut()
                .find(|object| object["metadata"]["name"] == "big")
                .unwrap();
            pool["spec"]["future"] = json!({"a": 1});
        })
    };
    let mut target = full_target(&codec);
    let refused = refusals(&with_field(&target));
    assert_eq!(
        refused,
        ["IPPool(big): exists and differs in spec.future.a; correct or delete it"]
    );
    target.former_import = FormerImport::Incomplete;
    let Plan { report, writes, .. } = with_field(&target);
    assert!(writes.is_empty() && report.refused.is_empty(), "{report:?}");
    let [dropped] = &report.dropped_fields[..] else {
        panic!("{report:?}")
    };
    assert_eq!(
        (dropped.object.as_str(), dropped.remark.as_str()),
        ("IPPool(big)", "spec.future.a")
    );
    let allocation = plan_of(&codec, &target, |file| {
        file.ipam.handles[0].value["block"]["10.9.0.0/28"] = 1.into()
    });
    assert!(
        refusals(&allocation)[0].contains("exists and differs in block."),
        "{:?}",
        refusals(&allocation)
    );
}
