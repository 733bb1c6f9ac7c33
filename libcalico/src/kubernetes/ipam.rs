//! IPAMHandle: the `spec` contains the ID; the resource's name is derived from the ID. The IPAM settings: `IPAMConfig` in
//! v1, `IPAMConfiguration` in v3, with some names in snake case in the store (IPAM-76).

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::error::Malformed;
use super::json::{Fields, require, take_text};
use crate::ipam::HandleId;
use crate::names::is_dns_name;

/// The longest name that an object can have.
const NAME_LIMIT: usize = 253;
/// The number of hexadecimal digits of the hash that is added to a name derived from an invalid ID.
const HASH: usize = 11;

/// Returns the name of the resource: the ID in lower case (IPAM-74).
///
/// Upstream cannot store a handle whose ID contains characters that are invalid in names, such as the `_` of a
/// network's name. We replace them and append a hash of the ID. Upstream finds such a handle in lists, by the ID in its
/// `spec`.
pub fn handle_name(id: &HandleId) -> String {
    let lower = id.as_str().to_ascii_lowercase();
    if lower.len() <= NAME_LIMIT && is_dns_name(&lower) {
        return lower;
    }
    let digest = HEXLOWER.encode(&Sha256::digest(id.as_str()));
    let legal = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' { c } else { '-' };
    let kept: String = lower.chars().take(NAME_LIMIT - HASH - 1).map(legal).collect();
    // Each part between dots must begin and end with a letter or digit.
    let parts: Vec<&str> = kept.split('.').map(|part| part.trim_matches('-')).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { digest[..HASH].to_owned() } else { format!("{}-{}", parts.join("."), &digest[..HASH]) }
}

/// Converts a `spec` to the handle's ID and its stored fields.
pub(super) fn handle_from_spec(mut spec: Fields) -> Result<(HandleId, Fields), Malformed> {
    let id = take_text(&mut spec, "handleID").filter(|id| !id.is_empty());
    let id = id.ok_or_else(|| Malformed("spec.handleID is missing".into()))?;
    Ok((HandleId::new(id), spec))
}

/// Returns the `spec` of the handle stored under `id`.
pub(super) fn handle_to_spec(id: &HandleId, mut stored: Fields) -> Fields {
    require(&mut stored, "block", Value::Object(Fields::new()));
    require(&mut stored, "deleted", false);
    stored.insert("handleID".into(), id.as_str().into());
    stored
}

/// The stored name and the resource's name of the two fields whose names differ.
const RENAMED: [(&str, &str); 2] =
    [("strict_affinity", "strictAffinity"), ("auto_allocate_blocks", "autoAllocateBlocks")];

/// Converts a `spec` to the stored settings.
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
        require(&mut stored, resource, false);
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

    fn name(id: &str) -> String {
        handle_name(&HandleId::new(id))
    }

    #[test]
    fn upstream_vectors() {
        assert_eq!(name("k8s-pod-network.9C1E5B7D"), "k8s-pod-network.9c1e5b7d");
        assert_eq!(name("vxlan-tunnel-addr-node-1"), "vxlan-tunnel-addr-node-1");
    }

    #[test]
    fn ids_that_are_no_names_are_hashed() {
        let hashed = name("my_net.9C1E");
        assert!(hashed.starts_with("my-net.9c1e-") && hashed.len() == "my-net.9c1e-".len() + HASH, "{hashed}");
        assert_ne!(name("my_net.9C1E"), name("my_net.9c1e"));
        assert_eq!(name("___").len(), HASH);
        assert!(is_dns_name(&name("net_.c1")) && is_dns_name(&name("net..c1")));
    }

    proptest! {
        #[test]
        fn every_id_gets_a_name(id in "\\PC{0,300}") {
            prop_assert!(is_dns_name(&name(&id)), "{}", name(&id));
        }

        #[test]
        fn legal_ids_keep_theirs(id in "[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?(\\.[a-z0-9]{1,64})?") {
            prop_assert_eq!(name(&id), id);
        }
    }

    /// The stored forms that upstream writes.
    #[test]
    fn the_id_keeps_its_case() {
        let stored = json!({"block": {"10.244.1.0/29": 1}, "deleted": false}).as_object().unwrap().clone();
        let id = HandleId::new("k8s-pod-network.9C1E5B7D");
        let spec = handle_to_spec(&id, stored.clone());
        assert_eq!(
            Value::Object(spec.clone()),
            json!({"handleID": "k8s-pod-network.9C1E5B7D", "block": {"10.244.1.0/29": 1}, "deleted": false})
        );
        assert_eq!(handle_from_spec(spec).unwrap(), (id, stored));
        assert!(handle_from_spec(Fields::new()).is_err());
    }

    /// The stored forms that upstream writes.
    #[test]
    fn upstream_vector() {
        let stored = json!({"auto_allocate_blocks": true, "maxBlocksPerHost": 20, "new": 1});
        let spec = json!({"strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": 20, "new": 1});
        assert_eq!(Value::Object(config_to_spec(stored.as_object().unwrap().clone())), spec);
        assert_eq!(Value::Object(config_from_spec(spec.as_object().unwrap().clone())), stored);
    }

    #[test]
    fn nothing_written_means_all_false() {
        let config = IpamConfig::decode(Value::Object(config_from_spec(Fields::new())).to_string().as_bytes()).unwrap();
        assert_eq!(config, IpamConfig::default());
    }
}
