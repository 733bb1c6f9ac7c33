//! BlockAffinity: its name, labels and `deleted` mark.

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::error::Malformed;
use super::json::{Fields, set_if_missing, take_text};
use super::resource::ApiGroup;
use crate::api::go_bool;
use crate::ipam::{self, AffinityKey, AffinityOwner};
use crate::names::{HOSTNAME_HASH_LABEL, cidr_name, hostname_hash};
use crate::net::Cidr;

const TYPE_LABEL: &str = "projectcalico.org/affinity-type";
const VERSION_LABEL: &str = "projectcalico.org/ip-version";

/// The labels by which upstream finds the affinities of a node (DS-70).
pub(super) const LABELS: [&str; 3] = [HOSTNAME_HASH_LABEL, TYPE_LABEL, VERSION_LABEL];

/// The selector of affinities that an older release wrote without labels (IPAM-47).
const WITHOUT_LABELS: &str = "!projectcalico.org/affinity-type";

/// The length in bytes from which a name is shortened and gets a hash.
const NAME_LIMIT: usize = 253;
/// The number of hexadecimal digits of the hash in a shortened name.
const HASH: usize = 11;

/// Returns the name of the resource of an affinity, shortened and with a hash if it is too long. It
/// does not contain the owner's type (IPAM-71).
pub fn affinity_name(key: &AffinityKey) -> String {
    let (owner, cidr) = (key.owner.name(), cidr_name(&key.cidr));
    let name = format!("{owner}-{cidr}");
    if name.len() < NAME_LIMIT {
        return name;
    }
    let digest = HEXLOWER.encode(&Sha256::digest(format!("{owner}+{cidr}")));
    let room = NAME_LIMIT - 1 - cidr.len() - (HASH + 2);
    let cut = (0..=room)
        .rev()
        .find(|at| owner.is_char_boundary(*at))
        .unwrap_or_default();
    format!("{}-{cidr}-{}", &owner[..cut], &digest[..HASH])
}

pub(super) fn labels(key: &AffinityKey) -> [(&'static str, String); 3] {
    [
        (HOSTNAME_HASH_LABEL, hostname_hash(key.owner.name())),
        (TYPE_LABEL, key.owner.kind().into()),
        (VERSION_LABEL, key.cidr.version().to_string()),
    ]
}

/// Returns the label selector for a list below `prefix`, if that is a prefix of affinities. A list
/// for all owners of a type uses no selector (`Some(None)`), so that it includes affinities without
/// labels.
pub(super) fn selector(prefix: &str) -> Option<Option<String>> {
    if is_of_any_owner(prefix) {
        return Some(Some(WITHOUT_LABELS.to_owned()));
    }
    let mut segments = prefix.strip_prefix(ipam::AFFINITY_ROOT)?.split('/');
    let kind = segments
        .next()
        .filter(|kind| matches!(*kind, "host" | "virtual"))?;
    let Some(owner) = segments.next().filter(|owner| !owner.is_empty()) else {
        return Some(None);
    };
    let mut selector = format!(
        "{TYPE_LABEL}={kind},{HOSTNAME_HASH_LABEL}={}",
        hostname_hash(owner)
    );
    match segments.next().unwrap_or_default() {
        "" => {}
        version @ ("ipv4" | "ipv6") => {
            selector.push_str(&format!(",{VERSION_LABEL}={}", &version[3..]))
        }
        _ => return None,
    }
    Some(Some(selector))
}

/// Returns true for the prefix that selects the affinities without labels. Their paths do not begin
/// with it.
pub(super) fn is_of_any_owner(prefix: &str) -> bool {
    prefix == ipam::WITHOUT_LABELS
}

/// Converts a `spec` to the key and the stored fields of an affinity.
pub(super) fn from_spec(
    group: ApiGroup,
    mut spec: Fields,
) -> Result<(AffinityKey, Fields), Malformed> {
    let mut required = |key: &str| {
        take_text(&mut spec, key).ok_or_else(|| Malformed(format!("spec.{key} is missing")))
    };
    let node = required("node")?;
    let cidr: Cidr = required("cidr")?
        .parse()
        .map_err(|error| Malformed(format!("spec.cidr: {error}")))?;
    let kind = take_text(&mut spec, "type")
        .filter(|kind| !kind.is_empty())
        .unwrap_or_else(|| "host".into());
    let owner = AffinityOwner::of_kind(&kind, &node)
        .ok_or_else(|| Malformed(format!("spec.type is neither host nor virtual: {kind:?}")))?;
    if group == ApiGroup::CrdV1
        && let Some(text) = take_text(&mut spec, "deleted")
    {
        spec.insert("deleted".into(), parse_deleted(&text)?.into());
    }
    set_if_missing(&mut spec, "state", "");
    set_if_missing(&mut spec, "deleted", false);
    Ok((AffinityKey { owner, cidr }, spec))
}

pub(super) fn to_spec(group: ApiGroup, key: &AffinityKey, mut stored: Fields) -> Fields {
    set_if_missing(&mut stored, "state", "");
    let deleted = stored.get("deleted") == Some(&Value::Bool(true));
    let deleted: Value = match group {
        ApiGroup::CrdV1 => deleted.to_string().into(),
        ApiGroup::V3 => deleted.into(),
    };
    stored.insert("deleted".into(), deleted);
    stored.insert("node".into(), key.owner.name().into());
    stored.insert("type".into(), key.owner.kind().into());
    stored.insert("cidr".into(), key.cidr.to_string().into());
    stored
}

/// Parses a Boolean; an empty text is false.
fn parse_deleted(text: &str) -> Result<bool, Malformed> {
    if text.is_empty() {
        return Ok(false);
    }
    go_bool(text)
        .ok_or_else(|| Malformed(format!("spec.deleted is neither true nor false: {text:?}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ipam::{AffinitySelect, BlockAffinity};
    use crate::net::IpVersion;
    use crate::store::Kind;

    const NODE_1: &str = "A3XPYDATRKB7Q4SM2O5FN4RXIHBFIL2PITFX26BAIP5XAB2X74CA";

    fn key(owner: AffinityOwner, cidr: &str) -> AffinityKey {
        AffinityKey {
            owner,
            cidr: cidr.parse().unwrap(),
        }
    }

    fn fields(value: Value) -> Fields {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn long_affinity_names_are_hashed() {
        let name =
            |host: &str| affinity_name(&key(AffinityOwner::Host(host.into()), "10.244.1.0/26"));
        assert_eq!(name("node-1"), "node-1-10-244-1-0-26");
        let long = name(&"h".repeat(240));
        assert_eq!(
            long,
            format!("{}-10-244-1-0-26-7b683317581", "h".repeat(226))
        );
        assert_eq!(long.len(), 252);
        assert_eq!(name(&"h".repeat(238)).len(), 252, "252 bytes need no hash");
        assert!(name(&"ä".repeat(200)).len() <= 252);
    }

    #[test]
    fn affinity_lists_are_narrowed_by_label() {
        let of = |owner, version| {
            selector(&BlockAffinity::prefix(&AffinitySelect {
                owner,
                version,
                ..AffinitySelect::default()
            }))
        };
        let node = Some(AffinityOwner::Host("node-1".into()));
        assert_eq!(of(None, None), Some(None));
        assert_eq!(
            of(node.clone(), None),
            Some(Some(format!(
                "projectcalico.org/affinity-type=host,projectcalico.org/hostname-hash={NODE_1}"
            )))
        );
        assert_eq!(
            of(node, Some(IpVersion::V6)).unwrap().unwrap(),
            format!(
                "projectcalico.org/affinity-type=host,projectcalico.org/hostname-hash={NODE_1},\
                 projectcalico.org/ip-version=6"
            )
        );
        assert_eq!(selector("/calico/ipam/v2/handle/"), None);
        let unlabelled = BlockAffinity::prefix(&AffinitySelect::without_labels());
        assert_eq!(
            selector(&unlabelled),
            Some(Some("!projectcalico.org/affinity-type".to_owned()))
        );
    }

    /// The stored forms that upstream writes in both API groups.
    #[test]
    fn affinity_deleted_field_is_text_in_v1_and_boolean_in_v3() {
        let key = key(AffinityOwner::Host("node-1".into()), "10.244.1.0/29");
        let stored = fields(json!({"state": "confirmed", "deleted": false}));
        for (group, deleted) in [
            (ApiGroup::CrdV1, json!("false")),
            (ApiGroup::V3, json!(false)),
        ] {
            let spec = to_spec(group, &key, stored.clone());
            assert_eq!(
                spec,
                fields(json!({
                    "state": "confirmed", "node": "node-1", "type": "host", "cidr": "10.244.1.0/29",
                    "deleted": deleted,
                }))
            );
            assert_eq!(
                from_spec(group, spec).unwrap(),
                (key.clone(), stored.clone())
            );
        }
    }

    #[test]
    fn old_and_foreign_affinity_forms_are_decoded() {
        let spec = |more: Value| {
            let mut spec = fields(json!({"node": "n", "cidr": "10.0.0.0/30"}));
            spec.append(&mut fields(more));
            spec
        };
        let (read, stored) = from_spec(
            ApiGroup::CrdV1,
            spec(json!({"type": "", "deleted": "", "new": 1})),
        )
        .unwrap();
        assert_eq!(read, key(AffinityOwner::Host("n".into()), "10.0.0.0/30"));
        assert_eq!(
            stored,
            fields(json!({"state": "", "deleted": false, "new": 1}))
        );
        let (read, stored) = from_spec(
            ApiGroup::CrdV1,
            spec(json!({"type": "virtual", "deleted": "T"})),
        )
        .unwrap();
        assert_eq!(
            (read.owner.kind(), &stored["deleted"]),
            ("virtual", &json!(true))
        );
        for bad in [
            json!({"deleted": "yes"}),
            json!({"type": "@"}),
            json!({"cidr": "10.0.0.0"}),
            json!({"node": 1}),
        ] {
            assert!(from_spec(ApiGroup::CrdV1, spec(bad)).is_err());
        }
    }
}
