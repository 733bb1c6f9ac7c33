//! GET and LIST: selectors, order, forms of objects, tombstones.

use std::collections::BTreeSet;

use libcalico::api::{IpPool, IpPoolSpec, ObjectKey};
use libcalico::ipam::{AffinitySelect, Block, BlockAffinity, ListedBlock};
use libcalico::kubernetes::{ApiGroup, Namespace, PodOnNode};
use libcalico::net::IpVersion;
use libcalico::store::{Kind, ReadBatch, StoredValue, Survey, Write};
use serde_json::json;

use super::{ApiServer, GROUPS, at, cidr, create_affinity, create_block, edit, host};

#[test]
fn affinities_are_selected_by_their_labels() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        create_affinity(&mut server, "n1", "10.65.0.0/26");
        create_affinity(&mut server, "n1", "fd00:65::/122");
        create_affinity(&mut server, "n2", "10.65.0.64/26");
        let unlabeled = at(&server, "BlockAffinity", "n2-10-65-0-128-26");
        let deleted = match group {
            ApiGroup::CrdV1 => json!("false"),
            ApiGroup::V3 => json!(false),
        };
        let spec = json!({
            "cidr": "10.65.0.128/26", "node": "n2", "state": "confirmed", "deleted": deleted,
        });
        server.put_object(&unlabeled, json!({ "spec": spec }));
        let ranges = |select: AffinitySelect| {
            let listed = server.list::<BlockAffinity>(&select).into_iter();
            listed
                .map(|entry| entry.key.cidr.to_string())
                .collect::<Vec<_>>()
        };
        let of_n1 = AffinitySelect::of(host("n1"));
        assert_eq!(ranges(of_n1.clone()), ["10.65.0.0/26", "fd00:65::/122"]);
        let of_n1_v6 = AffinitySelect {
            version: Some(IpVersion::V6),
            ..of_n1
        };
        assert_eq!(ranges(of_n1_v6), ["fd00:65::/122"]);
        assert_eq!(ranges(AffinitySelect::of(host("n2"))), ["10.65.0.64/26"]);
        assert_eq!(ranges(AffinitySelect::without_labels()), ["10.65.0.128/26"]);
        assert_eq!(ranges(AffinitySelect::default()).len(), 4);
    }
}

#[test]
fn list_has_the_order_of_names() {
    let mut server = ApiServer::new(ApiGroup::CrdV1);
    for range in ["10.65.0.64/26", "10.65.0.128/26", "10.65.0.0/26"] {
        create_block(&mut server, range);
    }
    let listed = server.list::<Block>(&Some(IpVersion::V4)).into_iter();
    let ranges: Vec<String> = listed.map(|entry| entry.key.to_string()).collect();
    assert_eq!(ranges, ["10.65.0.0/26", "10.65.0.128/26", "10.65.0.64/26"]);
}

#[test]
fn keys_only_list_and_get_of_a_revision_have_no_values() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let block = create_block(&mut server, "10.65.0.0/26");
        let pool = IpPool::new("p", IpPoolSpec::default());
        server
            .apply(&Write::create::<IpPool>(&ObjectKey::global("p"), &pool).unwrap())
            .unwrap();
        let mut batch = ReadBatch::new();
        batch.list_keys::<Block>(&Some(IpVersion::V4));
        batch.list_keys::<Block>(&Some(IpVersion::V6));
        batch.get_revision::<Block>(&block.key);
        batch.list_keys::<IpPool>(&Default::default());
        let answers: Vec<_> = batch
            .ranges()
            .iter()
            .map(|range| server.answer(range).unwrap())
            .collect();
        assert_eq!(
            answers.iter().map(Vec::len).collect::<Vec<_>>(),
            [1, 0, 1, 1]
        );
        for entry in answers.iter().flatten() {
            assert_eq!(entry.value, StoredValue::Bytes(Vec::new()));
        }
        let read = &answers[2][0].revision;
        assert_eq!(read.resource_version(), block.revision.resource_version());
    }
}

#[test]
fn get_of_a_tombstone_is_empty_and_has_the_write_that_completes_the_deletion() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        create_block(&mut server, "10.65.0.0/26");
        create_affinity(&mut server, "n1", "10.65.0.0/26");
        let location = at(&server, "IPAMBlock", "10-65-0-0-26");
        edit(&mut server, &location, |block| {
            block["spec"]["deleted"] = true.into();
        });
        let affinity = at(&server, "BlockAffinity", "n1-10-65-0-0-26");
        let deleted = match group {
            ApiGroup::CrdV1 => json!("true"),
            ApiGroup::V3 => json!(true),
        };
        edit(&mut server, &affinity, |affinity| {
            affinity["spec"]["deleted"] = deleted;
        });
        assert_eq!(server.list::<Block>(&None).len(), 1);
        assert!(
            server
                .list::<BlockAffinity>(&AffinitySelect::default())
                .is_empty()
        );

        let mut batch = ReadBatch::new();
        batch.get::<Block>(&cidr("10.65.0.0/26"));
        let (entries, completions) = server.answer_and_completions(&batch.ranges()[0]).unwrap();
        assert!(entries.is_empty());
        server.apply(&completions[0]).unwrap();
        assert!(server.object(&location).is_none());
        let (_, completions) = server.answer_and_completions(&batch.ranges()[0]).unwrap();
        assert!(completions.is_empty());
    }
}

#[test]
fn survey_has_the_blocks_of_the_families() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        create_block(&mut server, "10.65.0.0/26");
        create_block(&mut server, "fd00:65::/122");
        for ranges_only in [false, true] {
            let survey = Survey {
                families: BTreeSet::from([IpVersion::V6]),
                ranges_only,
            };
            let blocks = server.survey(&survey).unwrap();
            assert_eq!(blocks.len(), 1);
            assert_eq!(blocks[0].cidr(), cidr("fd00:65::/122"));
            let is_range = matches!(blocks[0], ListedBlock::Range(_));
            assert_eq!(is_range, ranges_only);
        }
    }
}

#[test]
fn pods_are_selected_by_node_and_by_namespace() {
    let mut server = ApiServer::new(ApiGroup::CrdV1);
    server.create_namespace("default-2").unwrap();
    for (namespace, name, node) in [
        ("default", "a", "n1"),
        ("default", "b", "n2"),
        ("default", "c", ""),
        ("default-2", "a", "n1"),
    ] {
        server.create_pod(namespace, name, node, &[]).unwrap();
    }
    let on_n1 = server.list::<PodOnNode>(&"n1".into());
    let keys: Vec<String> = on_n1.iter().map(|entry| entry.key.to_string()).collect();
    // etcd compares keys as texts, and `-` is less than `/`.
    assert_eq!(keys, ["default-2/a on n1", "default/a on n1"]);
    assert_eq!(server.pods(None).len(), 4);
    assert_eq!(server.pods(Some("default")).len(), 3);
}

#[test]
fn range_that_the_codec_refuses_is_an_error() {
    let server = ApiServer::new(ApiGroup::CrdV1);
    let mut batch = ReadBatch::new();
    batch.list_pairs(
        "Profile",
        "/calico/resources/v3/projectcalico.org/profiles/",
    );
    assert!(server.answer(&batch.ranges()[0]).is_err());
    assert_eq!(server.list::<Namespace>(&()).len(), 2);
    assert_eq!(Namespace::KIND, "Namespace");
}
