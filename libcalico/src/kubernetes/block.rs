//! IPAMBlock: converts the stored block to the `spec` of the custom resource and back.

use serde::Deserialize;
use serde_json::Value;

use super::error::Malformed;
use super::json::{Fields, require, text};
use crate::ipam::{Block, BlockGlance, Sighting};
use crate::names::cidr_name;
use crate::net::Cidr;
use crate::store::Kind;

/// The name of `affinity_claim_time` in the stored block and in the `spec`.
const CLAIM_TIME: (&str, &str) = ("affinity_claim_time", "affinityClaimTime");

/// Returns the path of the block that a `spec` describes. The CIDR in the `spec` identifies the block, not the
/// resource's name (DS-69).
pub(super) fn path_of_spec(spec: &Fields) -> Result<String, Malformed> {
    let cidr = text(spec, "cidr").ok_or_else(|| Malformed("spec.cidr is missing".into()))?;
    let cidr: Cidr = cidr.parse().map_err(|error| Malformed(format!("spec.cidr: {error}")))?;
    Ok(Block::path(&cidr))
}

/// Returns the resource name of the block at `path`.
pub(super) fn name_of_path(path: &str) -> Option<String> {
    Some(cidr_name(&Block::parse_path(path)?))
}

/// Returns the path of the block with the resource name `name`.
pub(super) fn path_of_name(name: &str) -> Option<String> {
    Some(Block::path(&cidr_of_name(name)?))
}

/// Inverts [`cidr_name`]. No name is ambiguous, because four decimal numbers are not an IPv6 address.
pub fn cidr_of_name(name: &str) -> Option<Cidr> {
    let (address, prefix) = name.rsplit_once('-')?;
    let v4 = address.bytes().filter(|b| *b == b'-').count() == 3 && !address.contains("--");
    let address = address.replace('-', if v4 { "." } else { ":" });
    let cidr = format!("{address}/{prefix}").parse().ok()?;
    (cidr_name(&cidr) == name).then_some(cidr)
}

/// Converts a `spec` to the stored block.
pub(super) fn from_spec(mut spec: Fields) -> Fields {
    if let Some(time) = spec.remove(CLAIM_TIME.1) {
        spec.insert(CLAIM_TIME.0.into(), time);
    }
    spec.entry("affinity").or_insert(Value::Null);
    // The resource requires this unused field; blocks in etcd do not have it.
    if spec.get("strictAffinity") == Some(&Value::Bool(false)) {
        spec.remove("strictAffinity");
    }
    spec
}

/// Converts a stored block to a `spec`. The API server drops nulls and then rejects the object if a required field is
/// missing (DS-55).
pub(super) fn to_spec(mut block: Fields) -> Fields {
    if let Some(time) = block.remove(CLAIM_TIME.0) {
        block.insert(CLAIM_TIME.1.into(), time);
    }
    block.retain(|_, value| !value.is_null());
    // Deprecated, and unknown to the API server.
    block.remove("hostAffinity");
    for list in ["allocations", "attributes", "unallocated"] {
        require(&mut block, list, Vec::<Value>::new());
    }
    require(&mut block, "sequenceNumberForAllocation", Fields::new());
    require(&mut block, "strictAffinity", false);
    block
}

/// Returns the part of a block that a survey reads, from the block's object or from its metadata alone; `None` for an
/// object that identifies no block.
///
/// # Errors
/// If `object` is not JSON.
pub fn sighting_of_block(object: &[u8]) -> serde_json::Result<Option<Sighting>> {
    match serde_json::from_slice(object) {
        Ok(Seen { spec: Some(glance), .. }) => return Ok(Some(Sighting::Block(glance))),
        Ok(Seen::<BlockGlance> { metadata, spec: None }) => {
            return Ok(cidr_of_name(&metadata.name).map(Sighting::Range));
        }
        Err(error) if !error.is_data() => return Err(error),
        Err(_) => {}
    }
    // The block exists but cannot be decoded: report its range only.
    let Ok(Seen::<Value> { metadata, spec }) = serde_json::from_slice(object) else { return Ok(None) };
    let told = spec.as_ref().and_then(|spec| spec["cidr"].as_str()).and_then(|cidr| cidr.parse().ok());
    Ok(told.or_else(|| cidr_of_name(&metadata.name)).map(Sighting::Range))
}

/// The parts of an object that a survey reads.
#[derive(Deserialize)]
struct Seen<S> {
    metadata: Named,
    spec: Option<S>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn names_and_back() {
        for (cidr, name) in [
            ("10.65.0.0/26", "10-65-0-0-26"),
            ("fd00:10:244:1::/122", "fd00-10-244-1---122"),
            ("fd00:10:244:0:1::40/122", "fd00-10-244-0-1--40-122"),
            ("::/116", "---116"),
        ] {
            let path = Block::path(&cidr.parse().unwrap());
            assert_eq!(name_of_path(&path).as_deref(), Some(name));
            assert_eq!(path_of_name(name), Some(path));
        }
        for name in ["", "10-65-0-0", "10-65-0-1-26", "10.65.0.0-26", "010-65-0-0-26", "x-1"] {
            assert_eq!(path_of_name(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_name_comes_back(v4: u32, v6: u128, p4 in 0u8..=32, p6 in 0u8..=128) {
            for (ip, prefix) in [(std::net::Ipv4Addr::from(v4).into(), p4), (std::net::Ipv6Addr::from(v6).into(), p6)] {
                let cidr = Cidr::new(ip, prefix).unwrap();
                prop_assert_eq!(cidr_of_name(&cidr_name(&cidr)), Some(cidr));
            }
        }
    }

    /// The stored forms that upstream writes in etcd and on an API server.
    #[test]
    fn upstream_vector() {
        let stored = fields(json!({
            "cidr": "10.244.1.0/31", "affinity": "host:node-1", "affinity_claim_time": "2026-08-22T06:33:20Z",
            "allocations": [0, null], "unallocated": [1],
            "attributes": [{"handle_id": "vxlan-tunnel-addr-node-1", "secondary": {"node": "node-1"}}],
            "sequenceNumber": 1_787_380_400_123_456_789_u64,
            "sequenceNumberForAllocation": {"0": 1_787_380_400_123_456_789_u64}, "deleted": false,
        }));
        let mut spec = stored.clone();
        let time = spec.remove("affinity_claim_time").unwrap();
        spec.insert("affinityClaimTime".into(), time);
        spec.insert("strictAffinity".into(), false.into());
        assert_eq!(to_spec(stored.clone()), spec);
        assert_eq!(from_spec(spec), stored);
    }

    #[test]
    fn a_block_without_owner_or_allocations() {
        let stored = fields(json!({
            "cidr": "10.0.0.0/30", "affinity": null, "allocations": [], "unallocated": [], "attributes": null,
            "sequenceNumber": 5, "sequenceNumberForAllocation": {}, "deleted": false, "hostAffinity": "node1",
        }));
        let spec = to_spec(stored);
        assert_eq!(
            spec,
            fields(json!({
                "cidr": "10.0.0.0/30", "allocations": [], "unallocated": [], "attributes": [],
                "sequenceNumber": 5, "sequenceNumberForAllocation": {}, "deleted": false, "strictAffinity": false,
            }))
        );
        assert_eq!(from_spec(spec)["affinity"], Value::Null);
    }

    #[test]
    fn a_survey_sees_blocks_whatever_can_be_read_of_them() {
        let seen = |object: Value| sighting_of_block(object.to_string().as_bytes()).unwrap();
        let named = json!({"name": "10-0-0-0-30"});
        let spec = json!({"cidr": "10.0.0.4/30", "allocations": [], "unallocated": [], "attributes": []});
        let found = seen(json!({"metadata": named, "spec": spec}));
        assert!(matches!(found, Some(Sighting::Block(glance)) if glance.cidr() == "10.0.0.4/30".parse().unwrap()));
        for (object, range) in [
            (json!({"metadata": named}), Some("10.0.0.0/30")),
            (json!({"metadata": named, "spec": {"cidr": "10.0.0.4/30", "unallocated": 1}}), Some("10.0.0.4/30")),
            (json!({"metadata": named, "spec": {"cidr": 1}}), Some("10.0.0.0/30")),
            (json!({"metadata": named, "spec": "x"}), Some("10.0.0.0/30")),
            (json!({"metadata": {"name": "x"}, "spec": {}}), None),
            (json!({"metadata": {}}), None),
            (json!({}), None),
        ] {
            let found = match seen(object.clone()) {
                Some(Sighting::Range(cidr)) => Some(cidr.to_string()),
                Some(Sighting::Block(_)) => panic!("{object}"),
                None => None,
            };
            assert_eq!(found.as_deref(), range, "{object}");
        }
        assert!(sighting_of_block(b"{").is_err());
    }

    #[test]
    fn what_a_newer_calico_wrote_survives() {
        let spec = fields(json!({"cidr": "10.0.0.0/30", "affinity": "host:n", "strictAffinity": true, "future": [1],
            "allocations": [], "unallocated": [], "attributes": [], "sequenceNumberForAllocation": {}}));
        let block = Block::decode(Value::Object(from_spec(spec.clone())).to_string().as_bytes()).unwrap();
        let mut written = to_spec(fields(serde_json::to_value(block).unwrap()));
        assert_eq!((written.remove("sequenceNumber"), written.remove("deleted")), (Some(0.into()), Some(false.into())));
        assert_eq!(written, spec);
    }
}
