//! The IPAM settings: `IPAMConfig` in v1, `IPAMConfiguration` in v3, with some names in snake case in the store
//! (IPAM-76).

use serde_json::Value;

use super::json::{Fields, require};

/// The stored name and the resource's name of the two fields whose names differ.
const RENAMED: [(&str, &str); 2] =
    [("strict_affinity", "strictAffinity"), ("auto_allocate_blocks", "autoAllocateBlocks")];

/// Converts a `spec` to the stored settings.
pub(super) fn from_spec(mut spec: Fields) -> Fields {
    for (stored, resource) in RENAMED {
        match spec.remove(resource) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(value) => _ = spec.insert(stored.into(), value),
        }
    }
    spec
}

/// Converts stored settings to a `spec`, which requires the two booleans (DS-55).
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

    /// The stored forms that upstream writes.
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
