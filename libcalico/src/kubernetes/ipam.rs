//! The objects of address management: converts their stored values to the `spec` of the custom
//! resources and back.
//!
//! * IPAMBlock: the CIDR in the `spec` identifies the block.
//! * IPAMHandle: the `spec` contains the ID; the resource's name is derived from the ID.
//! * The settings: `IPAMConfig` in v1, `IPAMConfiguration` in v3, with some names in snake case in
//!   the store (IPAM-76).

use data_encoding::HEXLOWER;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::error::Malformed;
use super::json::{Fields, set_if_missing, take_text, text};
use crate::ipam::{Block, BlockSummary, HandleId, ListedBlock};
use crate::names::{cidr_name, is_dns_name};
use crate::net::Cidr;
use crate::store::Kind;

/// The name of `affinity_claim_time` in the stored block and in the `spec`.
const CLAIM_TIME: (&str, &str) = ("affinity_claim_time", "affinityClaimTime");

/// Returns the path of the block that the CIDR in the `spec` identifies, not the resource's name
/// (DS-69).
pub(super) fn block_path_of_spec(spec: &Fields) -> Result<String, Malformed> {
    let cidr = text(spec, "cidr").ok_or_else(|| Malformed("spec.cidr is missing".into()))?;
    let cidr: Cidr = cidr
        .parse()
        .map_err(|error| Malformed(format!("spec.cidr: {error}")))?;
    Ok(Block::path(&cidr))
}

pub(super) fn block_name_of_path(path: &str) -> Option<String> {
    Some(cidr_name(&Block::parse_path(path)?))
}

pub(super) fn block_path_of_name(name: &str) -> Option<String> {
    Some(Block::path(&cidr_of_name(name)?))
}

/// Returns the network that [`cidr_name`] converts to this name. No name is ambiguous, because four
/// decimal numbers are not an IPv6 address.
pub fn cidr_of_name(name: &str) -> Option<Cidr> {
    let (address, prefix) = name.rsplit_once('-')?;
    let v4 = address.bytes().filter(|b| *b == b'-').count() == 3 && !address.contains("--");
    let address = address.replace('-', if v4 { "." } else { ":" });
    let cidr = format!("{address}/{prefix}").parse().ok()?;
    (cidr_name(&cidr) == name).then_some(cidr)
}

pub(super) fn block_from_spec(mut spec: Fields) -> Fields {
    if let Some(time) = spec.remove(CLAIM_TIME.1) {
        spec.insert(CLAIM_TIME.0.into(), time);
    }
    spec.entry("affinity").or_insert(Value::Null);
    // The resource requires this unused field.
    if spec.get("strictAffinity") == Some(&Value::Bool(false)) {
        spec.remove("strictAffinity");
    }
    spec
}

/// Sets each required field except `cidr` to an empty value if it is null or missing. The API
/// server drops nulls and then rejects an object without such a field (DS-55).
pub(super) fn block_to_spec(mut block: Fields) -> Fields {
    if let Some(time) = block.remove(CLAIM_TIME.0) {
        block.insert(CLAIM_TIME.1.into(), time);
    }
    block.retain(|_, value| !value.is_null());
    // Unknown to the API server.
    block.remove("hostAffinity");
    for list in ["allocations", "attributes", "unallocated"] {
        set_if_missing(&mut block, list, Vec::<Value>::new());
    }
    set_if_missing(&mut block, "sequenceNumberForAllocation", Fields::new());
    set_if_missing(&mut block, "strictAffinity", false);
    block
}

/// Returns the part of a block that a survey reads; `None` for an object that identifies no block.
///
/// # Errors
/// If `object` is not JSON.
pub fn decode_listed_block(object: &[u8]) -> serde_json::Result<Option<ListedBlock>> {
    match serde_json::from_slice(object) {
        Ok(SurveyedObject {
            spec: Some(summary),
            ..
        }) => return Ok(Some(ListedBlock::Block(summary))),
        Ok(SurveyedObject::<BlockSummary> {
            metadata,
            spec: None,
        }) => {
            return Ok(cidr_of_name(&metadata.name).map(ListedBlock::Range));
        }
        Err(error) if !error.is_data() => return Err(error),
        Err(_) => {}
    }
    // At most the range can be decoded.
    let Ok(SurveyedObject::<Value> { metadata, spec }) = serde_json::from_slice(object) else {
        return serde_json::from_slice::<IgnoredAny>(object).map(|_| None);
    };
    let stored = spec
        .as_ref()
        .and_then(|spec| spec["cidr"].as_str())
        .and_then(|cidr| cidr.parse().ok());
    Ok(stored
        .or_else(|| cidr_of_name(&metadata.name))
        .map(ListedBlock::Range))
}

#[derive(Deserialize)]
struct SurveyedObject<S> {
    metadata: Named,
    spec: Option<S>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

const NAME_LIMIT: usize = 253;
/// The number of hexadecimal digits of the hash in a name derived from an invalid ID.
const HASH: usize = 11;

/// Returns the name of the resource: the ID in lower case (IPAM-74).
///
/// Upstream cannot store a handle whose ID is invalid as a name. We shorten the ID, replace invalid
/// characters and append a hash. Upstream finds such a handle in lists, by the ID in its `spec`.
pub fn handle_name(id: &HandleId) -> String {
    let lower = id.as_str().to_ascii_lowercase();
    if lower.len() <= NAME_LIMIT && is_dns_name(&lower) {
        return lower;
    }
    let digest = HEXLOWER.encode(&Sha256::digest(id.as_str()));
    let legal = |c: char| {
        if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' {
            c
        } else {
            '-'
        }
    };
    let kept: String = lower
        .chars()
        .take(NAME_LIMIT - HASH - 1)
        .map(legal)
        .collect();
    // Each part between dots must begin and end with a letter or digit.
    let parts: Vec<&str> = kept
        .split('.')
        .map(|part| part.trim_matches('-'))
        .filter(|part| !part.is_empty())
        .collect();
    if parts.is_empty() {
        digest[..HASH].to_owned()
    } else {
        format!("{}-{}", parts.join("."), &digest[..HASH])
    }
}

/// Converts a `spec` to the handle's ID and stored fields.
pub(super) fn handle_from_spec(mut spec: Fields) -> Result<(HandleId, Fields), Malformed> {
    let id = take_text(&mut spec, "handleID").filter(|id| !id.is_empty());
    let id = id.ok_or_else(|| Malformed("spec.handleID is missing".into()))?;
    Ok((HandleId::new(id), spec))
}

pub(super) fn handle_to_spec(id: &HandleId, mut stored: Fields) -> Fields {
    set_if_missing(&mut stored, "block", Value::Object(Fields::new()));
    set_if_missing(&mut stored, "deleted", false);
    stored.insert("handleID".into(), id.as_str().into());
    stored
}

/// The two fields whose names differ: the stored name and the resource's.
const RENAMED: [(&str, &str); 2] = [
    ("strict_affinity", "strictAffinity"),
    ("auto_allocate_blocks", "autoAllocateBlocks"),
];

pub(super) fn config_from_spec(mut spec: Fields) -> Fields {
    for (stored, resource) in RENAMED {
        match spec.remove(resource) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(value) => _ = spec.insert(stored.into(), value),
        }
    }
    spec
}

/// Converts stored settings to a `spec`, which requires the two booleans (DS-55).
pub(super) fn config_to_spec(mut stored: Fields) -> Fields {
    for (stored_name, resource) in RENAMED {
        if let Some(value) = stored.remove(stored_name) {
            stored.insert(resource.into(), value);
        }
        set_if_missing(&mut stored, resource, false);
    }
    stored
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::ipam::IpamConfig;
    use crate::store::Kind;

    fn fields(value: Value) -> Fields {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn block_names_map_to_paths_and_back() {
        for (cidr, name) in [
            ("10.65.0.0/26", "10-65-0-0-26"),
            ("fd00:10:244:1::/122", "fd00-10-244-1---122"),
            ("fd00:10:244:0:1::40/122", "fd00-10-244-0-1--40-122"),
            ("::/116", "---116"),
        ] {
            let path = Block::path(&cidr.parse().unwrap());
            assert_eq!(block_name_of_path(&path).as_deref(), Some(name));
            assert_eq!(block_path_of_name(name), Some(path));
        }
        for name in [
            "",
            "10-65-0-0",
            "10-65-0-1-26",
            "10.65.0.0-26",
            "010-65-0-0-26",
            "x-1",
        ] {
            assert_eq!(block_path_of_name(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_block_name_round_trips(v4: u32, v6: u128, p4 in 0u8..=32, p6 in 0u8..=128) {
            for (ip, prefix) in [
                (std::net::Ipv4Addr::from(v4).into(), p4),
                (std::net::Ipv6Addr::from(v6).into(), p6),
            ] {
                let cidr = Cidr::new(ip, prefix).unwrap();
                prop_assert_eq!(cidr_of_name(&cidr_name(&cidr)), Some(cidr));
            }
        }
    }

    #[test]
    fn block_converts_between_upstreams_stored_forms() {
        let stored = fields(json!({
            "cidr": "10.244.1.0/31", "affinity": "host:node-1",
            "affinity_claim_time": "2026-08-22T06:33:20Z",
            "allocations": [0, null], "unallocated": [1],
            "attributes": [{
                "handle_id": "vxlan-tunnel-addr-node-1", "secondary": {"node": "node-1"},
            }],
            "sequenceNumber": 1_787_380_400_123_456_789_u64,
            "sequenceNumberForAllocation": {"0": 1_787_380_400_123_456_789_u64}, "deleted": false,
        }));
        let mut spec = stored.clone();
        let time = spec.remove("affinity_claim_time").unwrap();
        spec.insert("affinityClaimTime".into(), time);
        spec.insert("strictAffinity".into(), false.into());
        assert_eq!(block_to_spec(stored.clone()), spec);
        assert_eq!(block_from_spec(spec), stored);
    }

    #[test]
    fn block_without_owner_or_allocations_round_trips() {
        let stored = fields(json!({
            "cidr": "10.0.0.0/30", "affinity": null, "allocations": [], "unallocated": [],
            "attributes": null,
            "sequenceNumber": 5, "sequenceNumberForAllocation": {}, "deleted": false,
            "hostAffinity": "node1",
        }));
        let spec = block_to_spec(stored);
        assert_eq!(
            spec,
            fields(json!({
                "cidr": "10.0.0.0/30", "allocations": [], "unallocated": [], "attributes": [],
                "sequenceNumber": 5, "sequenceNumberForAllocation": {}, "deleted": false,
                "strictAffinity": false,
            }))
        );
        assert_eq!(block_from_spec(spec)["affinity"], Value::Null);
    }

    #[test]
    fn block_survey_decodes_partially_readable_blocks() {
        let seen = |object: Value| decode_listed_block(object.to_string().as_bytes()).unwrap();
        let named = json!({"name": "10-0-0-0-30"});
        let spec =
            json!({"cidr": "10.0.0.4/30", "allocations": [], "unallocated": [], "attributes": []});
        let found = seen(json!({"metadata": named, "spec": spec}));
        assert!(matches!(
            found,
            Some(ListedBlock::Block(summary)) if summary.cidr() == "10.0.0.4/30".parse().unwrap(),
        ));
        for (object, range) in [
            (json!({"metadata": named}), Some("10.0.0.0/30")),
            (
                json!({"metadata": named, "spec": {"cidr": "10.0.0.4/30", "unallocated": 1}}),
                Some("10.0.0.4/30"),
            ),
            (
                json!({"metadata": named, "spec": {"cidr": 1}}),
                Some("10.0.0.0/30"),
            ),
            (json!({"metadata": named, "spec": "x"}), Some("10.0.0.0/30")),
            (json!({"metadata": {"name": "x"}, "spec": {}}), None),
            (json!({"metadata": {}}), None),
            (json!({}), None),
        ] {
            let found = match seen(object.clone()) {
                Some(ListedBlock::Range(cidr)) => Some(cidr.to_string()),
                Some(ListedBlock::Block(_)) => panic!("{object}"),
                None => None,
            };
            assert_eq!(found.as_deref(), range, "{object}");
        }
        assert!(decode_listed_block(b"{").is_err());
        assert!(decode_listed_block(br#"{"metadata":1,"#).is_err());
    }

    #[test]
    fn unknown_block_fields_of_a_newer_calico_are_preserved() {
        let spec = fields(
            json!({"cidr": "10.0.0.0/30", "affinity": "host:n", "strictAffinity": true,
                    "future": [1],
            "allocations": [], "unallocated": [], "attributes": [],
            "sequenceNumberForAllocation": {}}),
        );
        let block = Block::decode(
            Value::Object(block_from_spec(spec.clone()))
                .to_string()
                .as_bytes(),
        )
        .unwrap();
        let mut written = block_to_spec(fields(serde_json::to_value(block).unwrap()));
        assert_eq!(
            (written.remove("sequenceNumber"), written.remove("deleted")),
            (Some(0.into()), Some(false.into()))
        );
        assert_eq!(written, spec);
    }

    fn name(id: &str) -> String {
        handle_name(&HandleId::new(id))
    }

    #[test]
    fn handle_name_is_the_id_in_lower_case() {
        assert_eq!(name("k8s-pod-network.9C1E5B7D"), "k8s-pod-network.9c1e5b7d");
        assert_eq!(name("vxlan-tunnel-addr-node-1"), "vxlan-tunnel-addr-node-1");
    }

    #[test]
    fn handle_ids_that_are_no_valid_names_are_hashed() {
        let hashed = name("my_net.9C1E");
        assert!(
            hashed.starts_with("my-net.9c1e-") && hashed.len() == "my-net.9c1e-".len() + HASH,
            "{hashed}"
        );
        assert_ne!(name("my_net.9C1E"), name("my_net.9c1e"));
        assert_eq!(name("___").len(), HASH);
        assert!(is_dns_name(&name("net_.c1")) && is_dns_name(&name("net..c1")));
    }

    proptest! {
        #[test]
        fn every_handle_id_yields_a_valid_name(id in "\\PC{0,300}") {
            prop_assert!(is_dns_name(&name(&id)), "{}", name(&id));
        }

        #[test]
        fn valid_handle_ids_are_used_as_names_unchanged(
            id in "[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?(\\.[a-z0-9]{1,64})?",
        ) {
            prop_assert_eq!(name(&id), id);
        }
    }

    #[test]
    fn handle_id_preserves_its_case_in_the_spec() {
        let stored = json!({"block": {"10.244.1.0/29": 1}, "deleted": false})
            .as_object()
            .unwrap()
            .clone();
        let id = HandleId::new("k8s-pod-network.9C1E5B7D");
        let spec = handle_to_spec(&id, stored.clone());
        assert_eq!(
            Value::Object(spec.clone()),
            json!({
                "handleID": "k8s-pod-network.9C1E5B7D", "block": {"10.244.1.0/29": 1},
                "deleted": false,
            })
        );
        assert_eq!(handle_from_spec(spec).unwrap(), (id, stored));
        assert!(handle_from_spec(Fields::new()).is_err());
    }

    #[test]
    fn settings_convert_between_upstreams_stored_forms() {
        let stored = json!({"auto_allocate_blocks": true, "maxBlocksPerHost": 20, "new": 1});
        let spec = json!({
            "strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": 20, "new": 1,
        });
        assert_eq!(
            Value::Object(config_to_spec(stored.as_object().unwrap().clone())),
            spec
        );
        assert_eq!(
            Value::Object(config_from_spec(spec.as_object().unwrap().clone())),
            stored
        );
    }

    #[test]
    fn missing_ipam_config_fields_are_false() {
        let config = IpamConfig::decode(
            Value::Object(config_from_spec(Fields::new()))
                .to_string()
                .as_bytes(),
        )
        .unwrap();
        assert_eq!(config, IpamConfig::default());
    }
}
