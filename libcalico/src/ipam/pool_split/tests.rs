//! Parts, names and refusals of a split.

use serde_json::json;

use super::*;
use crate::api::{IP_POOL_FINALIZER, IpPoolSpec};

fn pool(name: &str, cidr: &str, block_size: u8) -> IpPool {
    IpPool::new(
        name,
        IpPoolSpec {
            cidr: cidr.into(),
            block_size: Some(block_size),
            ..IpPoolSpec::default()
        },
    )
}

fn parts(pool: &IpPool, number: u32) -> Result<Vec<(String, String)>, Failure> {
    let parts = split(pool, number, std::slice::from_ref(pool))?;
    Ok(parts
        .into_iter()
        .map(|part| (part.metadata.name, part.spec.cidr))
        .collect())
}

#[test]
fn split_of_a_pool_yields_equal_parts() {
    let ranges = |pool: &IpPool, number| -> Vec<String> {
        parts(pool, number)
            .unwrap()
            .into_iter()
            .map(|(_, range)| range)
            .collect()
    };
    let four = [
        "10.66.0.0/26",
        "10.66.0.64/26",
        "10.66.0.128/26",
        "10.66.0.192/26",
    ];
    assert_eq!(ranges(&pool("big", "10.66.0.0/24", 28), 4), four);
    assert_eq!(
        ranges(&pool("six", "fd00::/116", 122), 2),
        ["fd00::/117", "fd00::800/117"]
    );
    assert_eq!(
        ranges(&pool("all", "0.0.0.0/0", 26), 2),
        ["0.0.0.0/1", "128.0.0.0/1"]
    );
    assert_eq!(
        parts(&pool("big", "10.66.0.0/24", 28), 16).unwrap()[15].0,
        "split-big-15"
    );
}

#[test]
fn split_copies_the_pool_except_for_its_identity() {
    let mut old = pool("big", "10.66.0.0/24", 28);
    old.spec.disabled = true;
    old.spec.unknown.insert("future".into(), json!("field"));
    old.metadata.labels.insert("a".into(), "b".into());
    old.metadata.annotations.insert("c".into(), "d".into());
    old.metadata
        .unknown
        .insert("finalizers".into(), json!([IP_POOL_FINALIZER]));
    old.metadata
        .unknown
        .insert("ownerReferences".into(), json!([{"name": "x"}]));
    (old.metadata.uid, old.metadata.resource_version) = ("u".into(), "7".into());
    old.status = Some(json!({"conditions": []}));
    let part = split(&old, 2, &[]).unwrap().remove(0);
    assert_eq!(
        (part.spec.disabled, part.spec.block_size, &part.spec.unknown),
        (false, Some(28), &old.spec.unknown)
    );
    assert_eq!(
        (&part.metadata.labels, &part.metadata.annotations),
        (&old.metadata.labels, &old.metadata.annotations)
    );
    assert_eq!(
        part.metadata.unknown.keys().collect::<Vec<_>>(),
        ["finalizers"]
    );
    assert_eq!(
        (
            part.metadata.uid.as_str(),
            part.metadata.resource_version.as_str(),
            part.status
        ),
        ("", "", None)
    );
}

#[test]
fn split_into_zero_or_odd_parts_is_refused() {
    for number in [0, 1, 3, 6, u32::MAX] {
        let error = parts(&pool("big", "10.66.0.0/24", 28), number).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("number to split CIDR into is not a valid power of 2: {number}")
        );
    }
}

#[test]
fn split_below_the_block_size_is_refused() {
    let big = pool("big", "10.66.0.0/24", 28);
    assert_eq!(parts(&big, 16).unwrap().len(), 16);
    let error = parts(&big, 64).unwrap_err().to_string();
    let upstreams = "IP pool size is too small for use with Calico IPAM. It must be equal to or \
                     greater than the block size.";
    assert_eq!(
        error,
        format!("a part, such as 10.66.0.0/30, would be smaller than a block of /28: {upstreams}")
    );
    let error = parts(&big, 512).unwrap_err().to_string();
    assert_eq!(
        error,
        "the CIDR 10.66.0.0/24 is not large enough to be split into 512 parts"
    );
}

#[test]
fn split_into_too_many_parts_is_refused() {
    let wide = pool("wide", "fd00::/64", 122);
    assert_eq!(parts(&wide, 1024).unwrap().len(), 1024);
    let error = parts(&wide, 1 << 31).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("at most 1024 parts, not 2147483648; split the parts again"),
        "{error}"
    );
}

#[test]
fn split_of_a_long_name_stays_within_253_characters() {
    for (name, cut) in [
        ("a".repeat(253), 245),
        ("a".repeat(246), 245),
        ("a".repeat(245), 245),
        ("a".repeat(9), 9),
    ] {
        let parts = parts(&pool(&name, "10.0.0.0/20", 26), 16).unwrap();
        assert_eq!(parts[0].0, format!("split-{}-0", "a".repeat(cut)));
        assert!(parts.iter().all(|(name, _)| name.len() <= 253), "{parts:?}");
    }
    let dotted = format!("{}.b", "a".repeat(244));
    assert_eq!(
        part_name(&dotted, 7),
        format!("split-{}-7", "a".repeat(244))
    );
}

#[test]
fn split_with_a_taken_name_or_range_is_refused() {
    let big = pool("big", "10.66.0.0/24", 28);
    let refused = |other: IpPool| {
        let error = split(&big, 2, &[big.clone(), other]).unwrap_err();
        error.to_string()
    };
    let taken = "IPPool split-big-1 exists and is no part of this split; delete it, or give the \
                 pool to split another name";
    assert_eq!(refused(pool("split-big-1", "10.9.0.0/24", 28)), taken);
    assert_eq!(refused(pool("split-big-1", "10.66.0.128/25", 27)), taken);
    let overlap = "IPPool other with CIDR 10.66.0.0/16 overlaps with the pool to split; delete \
                   one of the two first";
    assert_eq!(refused(pool("other", "10.66.0.0/16", 26)), overlap);

    let mut terminating = big.clone();
    terminating.metadata.deletion_timestamp = Some("2026-11-23T04:42:10Z".into());
    assert_eq!(
        split(&terminating, 2, &[]).unwrap_err().to_string(),
        "IPPool big is being deleted and cannot be split"
    );
}

#[test]
fn split_accepts_parts_of_an_interrupted_split() {
    let big = pool("big", "10.66.0.0/24", 28);
    let whole = split(&big, 4, &[]).unwrap();
    let pools = [&whole[..2], std::slice::from_ref(&big)].concat();
    assert_eq!(split(&big, 4, &pools).unwrap(), whole);
}
