//! The allocator's settings (DS-74, IPAM-76): `IPAMConfig` in v1, `IPAMConfiguration` in v3, snake case in the store.

use serde_json::Value;

use super::json::{Fields, require};

/// Stored name and resource's name of the two fields that differ.
const RENAMED: [(&str, &str); 2] =
    [("strict_affinity", "strictAffinity"), ("auto_allocate_blocks", "autoAllocateBlocks")];

/// The stored settings of a `spec`.
pub(super) fn from_spec(mut spec: Fields) -> Fields {
    for (stored, resource) in RENAMED {
        match spec.remove(resource) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(value) => _ = spec.insert(stored.into(), value),
        }
    }
    spec
}

/// The `spec` of stored settings. The two booleans are required there (DS-55).
pub(super) fn to_spec(mut stored: Fields) -> Fields {
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
    use serde_json::json;

    use super::*;
    use crate::ipam::IpamConfig;
    use crate::store::Kind;

    /// DS-9.5.
    #[test]
    fn upstream_vector() {
        let stored = json!({"auto_allocate_blocks": true, "maxBlocksPerHost": 20, "new": 1});
        let spec = json!({"strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": 20, "new": 1});
        assert_eq!(Value::Object(to_spec(stored.as_object().unwrap().clone())), spec);
        assert_eq!(Value::Object(from_spec(spec.as_object().unwrap().clone())), stored);
    }

    #[test]
    fn nothing_written_means_all_false() {
        let config = IpamConfig::decode(Value::Object(from_spec(Fields::new())).to_string().as_bytes()).unwrap();
        assert_eq!(config, IpamConfig::default());
    }
}
