//! [`Handle`]: the number of addresses of one container, tunnel, virtual machine or Service in each
//! block. The order of writes keeps a count from being too low; after an interrupted operation it
//! can be too high (IPAM-75).

use std::collections::BTreeMap;
use std::fmt;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::block::null_as_empty;
use crate::api::Unknown;
use crate::net::{Cidr, IpVersion};
use crate::store::Kind;

/// The stored handle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Handle {
    /// The number of the handle's allocations per block, which may be too high (IPAM-75).
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        serialize_with = "in_textual_order"
    )]
    pub block: BTreeMap<Cidr, i64>,
    /// True if the handle is marked for deletion, as upstream does in Kubernetes before the
    /// deletion (DS-72).
    #[serde(default)]
    pub deleted: bool,
    /// Fields that this version does not model.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A contradiction between a handle and a block, or an exceeded limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The handle does not count addresses in the block. Upstream's text.
    #[error("Tried to decrement block {block} by {by} but it isn't linked to handle {handle}")]
    NotLinked {
        /// The handle.
        handle: HandleId,
        /// The block.
        block: Cidr,
        /// The number to subtract.
        by: usize,
    },
    /// The handle counts fewer addresses in the block than the number to subtract. Upstream's text.
    #[error(
        "Tried to decrement block {block} by {by} but it only has {count} addresses on handle {handle}"
    )]
    TooFew {
        /// The handle.
        handle: HandleId,
        /// The block.
        block: Cidr,
        /// The number to subtract.
        by: usize,
        /// The present count.
        count: i64,
    },
    /// The handle may not have so many addresses of this family.
    #[error(
        "handle {handle} already has {held} allocation(s), cannot allocate more (maxAlloc={limit})"
    )]
    Limit {
        /// The handle.
        handle: HandleId,
        /// The number of addresses of the family that the handle counts.
        held: i64,
        /// The maximum number.
        limit: usize,
    },
}

impl Handle {
    /// Adds `n` addresses of `block`. Store the handle before the block, so that the count is never
    /// too low (IPAM-75).
    pub fn increment(&mut self, block: Cidr, n: usize) {
        let count = self.block.entry(block).or_default();
        *count = count.saturating_add(signed(n));
    }

    /// Checks that `n` more addresses of `version` stay within `limit`; 0 is no limit.
    pub fn check_limit(
        &self,
        id: &HandleId,
        version: IpVersion,
        n: usize,
        limit: usize,
    ) -> Result<(), HandleError> {
        let held = self.total(version);
        if limit != 0 && held.saturating_add(signed(n)) > signed(limit) {
            return Err(HandleError::Limit {
                handle: id.clone(),
                held,
                limit,
            });
        }
        Ok(())
    }

    /// Subtracts `n` addresses of `block`. On error, the handle is unchanged.
    pub fn decrement(&mut self, id: &HandleId, block: Cidr, n: usize) -> Result<(), HandleError> {
        let Some(count) = self.block.get_mut(&block) else {
            return Err(HandleError::NotLinked {
                handle: id.clone(),
                block,
                by: n,
            });
        };
        let remaining = count.saturating_sub(signed(n));
        if remaining < 0 {
            return Err(HandleError::TooFew {
                handle: id.clone(),
                block,
                by: n,
                count: *count,
            });
        }
        *count = remaining;
        if remaining == 0 {
            self.block.remove(&block);
        }
        Ok(())
    }

    /// Returns true if the handle has to be deleted, because no block is left.
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// Returns the number of addresses of one family.
    pub fn total(&self, version: IpVersion) -> i64 {
        let of_family = self
            .block
            .iter()
            .filter(|(block, _)| block.version() == version);
        of_family
            .map(|(_, &count)| count)
            .fold(0, i64::saturating_add)
    }
}

fn in_textual_order<S: Serializer>(
    block: &BTreeMap<Cidr, i64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(
        block
            .iter()
            .map(|(cidr, count)| (cidr.to_string(), count))
            .collect::<BTreeMap<_, _>>(),
    )
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The ID of a handle.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleId(String);

impl HandleId {
    /// Creates an ID from the text before the first carriage return, because an old migration
    /// appended some (IPAM-58).
    pub fn new(id: impl AsRef<str>) -> Self {
        HandleId(Self::cut(id.as_ref()).to_owned())
    }

    /// Creates an ID from the whole text.
    pub(super) fn uncut(id: &str) -> Self {
        HandleId(id.to_owned())
    }

    pub(super) fn cut(id: &str) -> &str {
        id.split_once('\r').map_or(id, |(id, _)| id)
    }

    /// Returns the handle of a container on a network.
    pub fn for_container(network: &str, container_id: &str) -> Self {
        HandleId::new(format!("{network}.{container_id}"))
    }

    /// Returns the handle of a VMI on a network, which outlives the pods of the VMI (IPAM-24). A
    /// long ID contains a hash in place of the names; upstream panics on most such names (IPAM-25).
    pub fn for_vmi(network: &str, namespace: &str, instance: &str) -> Self {
        let network = if network.is_empty() {
            "k8s-pod-network"
        } else {
            network
        };
        let names = format!("{namespace}.{instance}");
        let id = format!("{network}.vmi.{names}");
        let hashed = || format!("{network}.vmi.{}", HEXLOWER.encode(&Sha256::digest(names)));
        HandleId(if id.len() > MAX_ID_LENGTH {
            hashed()
        } else {
            id
        })
    }

    /// Returns true if this is the handle of the container on any network.
    pub fn is_of_container(&self, container_id: &str) -> bool {
        let network = self
            .0
            .strip_suffix(container_id)
            .filter(|_| !container_id.is_empty());
        network.is_some_and(|network| network.ends_with('.'))
    }

    /// Returns true if the ID contains `.vmi.`, as an ID of [`HandleId::for_vmi`] does.
    pub fn may_be_of_vmi(&self) -> bool {
        self.0.contains(".vmi.")
    }

    /// Returns the ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the handle of a Service, which a recreated Service does not get again (KC-502).
pub fn load_balancer_handle(namespace: &str, name: &str, uid: &str) -> HandleId {
    let mut hash = BASE64URL_NOPAD.encode(&Sha256::digest(
        format!("{name}-{namespace}-{uid}").to_lowercase(),
    ));
    hash.retain(|c| !matches!(c, '-' | '_' | '.'));
    HandleId::new(format!("lb-{hash}"))
}

impl fmt::Display for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const ROOT: &str = "/calico/ipam/v2/handle/";
/// The maximum length of a VMI's handle that contains the names.
const MAX_ID_LENGTH: usize = 128;

impl Kind for Handle {
    const KIND: &'static str = "IPAMHandle";
    type Key = HandleId;
    type Select = ();

    fn path(key: &HandleId) -> String {
        format!("{ROOT}{key}")
    }

    fn parse_path(path: &str) -> Option<HandleId> {
        let id = path.strip_prefix(ROOT)?;
        (!id.is_empty()).then(|| HandleId(id.to_owned()))
    }

    fn prefix(_: &()) -> String {
        ROOT.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn handle_counts_increment_and_decrement_per_block() {
        let (id, v4, v6) = (HandleId::new("h"), cidr("10.0.0.0/26"), cidr("fd00::/122"));
        let mut handle = Handle::default();
        handle.increment(v4, 2);
        handle.increment(v6, 1);
        handle.increment(v4, 1);
        assert_eq!(
            (handle.total(IpVersion::V4), handle.total(IpVersion::V6)),
            (3, 1)
        );
        handle.decrement(&id, v4, 3).unwrap();
        assert_eq!(handle.block.keys().collect::<Vec<_>>(), [&v6]);
        handle.decrement(&id, v6, 1).unwrap();
        assert!(handle.is_empty());
    }

    #[test]
    fn decrement_beyond_the_count_is_an_error() {
        let (id, block) = (HandleId::new("h"), cidr("10.0.0.0/26"));
        let mut handle = Handle::default();
        assert_eq!(
            handle.decrement(&id, block, 1).unwrap_err().to_string(),
            "Tried to decrement block 10.0.0.0/26 by 1 but it isn't linked to handle h"
        );
        handle.increment(block, 1);
        assert_eq!(
            handle.decrement(&id, block, 2).unwrap_err().to_string(),
            "Tried to decrement block 10.0.0.0/26 by 2 but it only has 1 addresses on handle h"
        );
        assert_eq!(handle.total(IpVersion::V4), 1);
    }

    #[test]
    fn handle_limit_applies_to_each_family_separately() {
        let id = HandleId::new("h");
        let mut handle = Handle::default();
        handle.increment(cidr("10.0.0.0/26"), 1);
        assert_eq!(handle.check_limit(&id, IpVersion::V6, 1, 1), Ok(()));
        assert_eq!(handle.check_limit(&id, IpVersion::V4, 1, 2), Ok(()));
        assert_eq!(handle.check_limit(&id, IpVersion::V4, 1000, 0), Ok(()));
        assert_eq!(
            handle
                .check_limit(&id, IpVersion::V4, 1, 1)
                .unwrap_err()
                .to_string(),
            "handle h already has 1 allocation(s), cannot allocate more (maxAlloc=1)"
        );
    }

    #[test]
    fn handle_counts_saturate_instead_of_overflowing() {
        let (id, block) = (HandleId::new("h"), cidr("10.0.0.0/26"));
        let mut handle: Handle =
            Handle::decode(br#"{"block":{"10.0.0.0/26":9223372036854775807}}"#).unwrap();
        handle.increment(block, usize::MAX);
        assert_eq!(handle.total(IpVersion::V4), i64::MAX);
        let mut handle: Handle =
            Handle::decode(br#"{"block":{"10.0.0.0/26":-9223372036854775808}}"#).unwrap();
        assert!(handle.decrement(&id, block, usize::MAX).is_err());
        assert_eq!(
            Handle::decode(br#"{"block":null}"#).unwrap(),
            Handle::default()
        );
    }

    #[test]
    fn handle_blocks_are_encoded_in_textual_order() {
        let mut handle = Handle::default();
        for block in [
            "10.0.0.64/26",
            "10.0.0.128/26",
            "203.0.113.0/26",
            "2001:db8::/122",
        ] {
            handle.increment(cidr(block), 1);
        }
        let written = String::from_utf8(handle.encode().unwrap()).unwrap();
        let blocks =
            r#"{"10.0.0.128/26":1,"10.0.0.64/26":1,"2001:db8::/122":1,"203.0.113.0/26":1}"#;
        assert_eq!(written, format!(r#"{{"block":{blocks},"deleted":false}}"#));
    }

    #[test]
    fn handle_id_ends_at_the_first_carriage_return() {
        assert_eq!(HandleId::new("net.c1\r\r\r").as_str(), "net.c1");
        assert_eq!(HandleId::for_container("net", "c1").as_str(), "net.c1");
    }

    #[test]
    fn handle_matches_only_the_complete_container_id() {
        let is_of = |id: &str, container: &str| HandleId::new(id).is_of_container(container);
        assert!(is_of("net.c1", "c1") && is_of("other.net.c1", "c1") && is_of("net.a.b", "a.b"));
        for (id, container) in [
            ("net.c1", "1"),
            ("net.c1", "c"),
            ("net.c1", ""),
            ("net.", ""),
            ("c1", "c1"),
        ] {
            assert!(!is_of(id, container), "{id} {container:?}");
        }
    }

    #[test]
    fn vmi_handle_contains_its_names_up_to_the_length_limit() {
        assert_eq!(
            HandleId::for_vmi("", "default", "vm1").as_str(),
            "k8s-pod-network.vmi.default.vm1"
        );
        assert_eq!(
            HandleId::for_vmi("net1", "default", "vm1").as_str(),
            "net1.vmi.default.vm1"
        );
        let fits = "v".repeat(128 - "net1.vmi.default.".len());
        assert_eq!(
            HandleId::for_vmi("net1", "default", &fits).as_str(),
            format!("net1.vmi.default.{fits}")
        );
        let (long, other) = (format!("{fits}v"), format!("{fits}w"));
        let id = HandleId::for_vmi("net1", "default", &long);
        assert_eq!(id.as_str().len(), "net1.vmi.".len() + 64);
        assert_ne!(id, HandleId::for_vmi("net1", "default", &other));
        assert!(
            id.as_str()
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.')
        );
    }

    #[test]
    fn load_balancer_handle_matches_upstreams_vector() {
        let handle = load_balancer_handle("test-namespace", "test-service", "1234");
        assert_eq!(
            handle.to_string(),
            "lb-CcByVDWerSL9WUOKfbkyPBft2m9Xxf822Zvhn2YSpts"
        );
        assert_eq!(
            load_balancer_handle("Test-Namespace", "test-service", "1234"),
            handle
        );
        assert_ne!(
            load_balancer_handle("test-namespace", "test-service", "1235"),
            handle
        );
    }
}
