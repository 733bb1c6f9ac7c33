use super::*;
use crate::store::{RawEntry, Revision, StoreError, decode_entry};

/// The expected bytes are those that upstream writes to etcd.
#[test]
fn first_allocation_encodes_to_upstreams_bytes() {
    let clock = time::OffsetDateTime::from_unix_timestamp_nanos(1_787_360_523_123_400_000).unwrap();
    let mut block = Block::new(cidr("10.0.0.0/30"), &host("node-a"), clock).unwrap();
    let pairs = [
        ("node", "node-a"),
        ("pod", "p"),
        ("namespace", "n"),
        ("timestamp", "2026-08-22 01:02:03.1234 +0000 UTC"),
    ];
    let request = BlockRequest {
        handle: Some(&HandleId::for_container("k8s-pod-network", "abc")),
        attributes: &pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        requester: &host("node-a"),
        check_affinity: true,
    };
    block.assign(1, &request, &Reservations::none()).unwrap();
    block.count_write();
    let bytes = r#"{"cidr":"10.0.0.0/30","affinity":"host:node-a","affinity_claim_time":"2026-08-22T01:02:03Z","allocations":[0,null,null,null],"unallocated":[1,2,3],"attributes":[{"handle_id":"k8s-pod-network.abc","secondary":{"namespace":"n","node":"node-a","pod":"p","timestamp":"2026-08-22 01:02:03.1234 +0000 UTC"}}],"sequenceNumber":1787360523123400001,"sequenceNumberForAllocation":{"0":1787360523123400000},"deleted":false}"#;
    assert_eq!(String::from_utf8(block.encode().unwrap()).unwrap(), bytes);
    assert_eq!(Block::decode(bytes.as_bytes()).unwrap(), block);
}

#[test]
fn block_operations_match_upstreams_transcript() {
    let mut block = fresh();
    let s = block.sequence_number;
    let row = |block: &Block| {
        serde_json::json!([
            block.allocations,
            block.unallocated,
            holders(block),
            block.sequence_number - s,
            block
                .sequence_number_for_allocation
                .iter()
                .map(|(k, v)| (k, v - s))
                .collect::<BTreeMap<_, _>>()
        ])
        .to_string()
    };
    let mut rows = vec![row(&block)];
    assign(&mut block, 1, "A0");
    rows.push(row(&block));
    assign(&mut block, 1, "A1");
    rows.push(row(&block));
    block
        .release_by_handle(&HandleId::new("A0"), None, 0, NOW)
        .unwrap();
    block.count_write();
    rows.push(row(&block));
    assign(&mut block, 1, "A2");
    rows.push(row(&block));
    assert_eq!(
        rows,
        [
            r#"[[null,null,null,null],[0,1,2,3],[],0,{}]"#,
            r#"[[0,null,null,null],[1,2,3],["A0"],1,{"0":0}]"#,
            r#"[[0,1,null,null],[2,3],["A0","A1"],2,{"0":0,"1":1}]"#,
            r#"[[null,0,null,null],[2,3,0],["A1"],3,{"1":1}]"#,
            r#"[[null,0,1,null],[3,0],["A1","A2"],4,{"1":1,"2":3}]"#,
        ]
    );
}

#[test]
fn unknown_fields_of_a_newer_calico_survive_a_block_operation() {
    let stored = r#"{"cidr":"10.0.0.0/31","affinity":null,"allocations":[0,null],"unallocated":[1],"attributes":[{"handle_id":"a","colour":"red"}],"sequenceNumber":18446744073709551615,"sequenceNumberForAllocation":{"0":9007199254740993},"deleted":false,"future":{"x":1},"hostAffinity":"node1"}"#;
    let mut block = Block::decode(stored.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(block.encode().unwrap()).unwrap(), stored);
    assign(&mut block, 1, "a");
    assert_eq!(
        block.attributes.len(),
        2,
        "an attribute with more fields is not reused"
    );
    assert_eq!(
        block.sequence_number, 0,
        "the number wraps as upstream's does"
    );
    let written: serde_json::Value = serde_json::to_value(&block).unwrap();
    assert_eq!(
        (&written["future"]["x"], &written["attributes"][0]["colour"]),
        (&1.into(), &"red".into())
    );
}

#[test]
fn absent_and_null_block_lists_decode_as_empty() {
    for stored in [
        r#"{"cidr":"10.0.0.0/30"}"#,
        r#"{"cidr":"10.0.0.0/30","allocations":null,"unallocated":null,"attributes":null,"sequenceNumberForAllocation":null}"#,
    ] {
        let block = Block::decode(stored.as_bytes()).unwrap();
        assert!(block.allocations.is_empty() && block.verify().is_err());
    }
}

#[test]
fn block_under_the_key_of_another_block_is_corrupt() {
    let raw = |path: &str| RawEntry {
        path: path.into(),
        value: fresh().encode().unwrap().into(),
        revision: Revision("1".into()),
    };
    assert!(decode_entry::<Block>(&raw(&Block::path(&fresh().cidr))).is_ok());
    let error = decode_entry::<Block>(&raw(&Block::path(&cidr("10.0.0.4/30")))).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}
