//! [`IpamReport`]: the report of `calico-ipam check`, in the format of
//! `calicoctl ipam check -o FILE` (INST-206).
//!
//! Read `build` for the making of a report, then `intersect` and `permit` for the release from
//! reports.

mod build;
mod intersect;
mod permit;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::build::{ReportedCluster, build};
pub use self::intersect::{ReportedLeak, ReportedProblems, intersect};
pub use self::permit::{LockRule, NamedReport, refuse_other_clusters};
use super::{Finding, HandleId};
use crate::kubernetes::ObjectRevision;
use crate::store::Revision;

/// A report. The order of the fields is the one of calicoctl.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpamReport {
    /// The version of the calicoctl that is to read the report. calicoctl refuses reports of
    /// another version.
    pub version: String,
    /// ClusterInformation's `clusterGUID`.
    #[serde(rename = "clusterGUID")]
    pub cluster_guid: String,
    /// True if ClusterInformation had `datastoreReady: false`.
    #[serde(default)]
    pub datastore_locked: bool,
    /// The revision of ClusterInformation, which locking and unlocking change.
    #[serde(default)]
    pub cluster_information_revision: String,
    /// ClusterInformation's `clusterType`.
    #[serde(default)]
    pub cluster_type: String,
    /// The allocations of each allocated address. Overlapping blocks may have two of one address.
    pub allocations: BTreeMap<String, Vec<ReportedAllocation>>,
    /// The handles that no block names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaked_handles: Vec<LeakedHandle>,
    /// The findings that the other fields cannot carry: inconsistent blocks, missing handles and
    /// wrong counts. calicoctl neither writes nor reads this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
}

/// An allocation in a report. Empty texts are missing in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedAllocation {
    /// The address.
    pub ip: String,
    /// The handle.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub handle: String,
    /// The sequence number, 0 if the block stores none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_number: Option<u64>,
    /// The attribute `pod`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// The attribute `namespace`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The attribute `node`, or else the host to which the block has an affinity.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The attribute `type`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub owner_type: String,
    /// The attribute `timestamp`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub creation_timestamp: String,
    /// True if the address is in use, or may be.
    pub in_use: bool,
    /// True if the node differs from the host to which the block has an affinity.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub borrowed: bool,
    /// True if the address is released but not yet free.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cooling_down: bool,
    /// The objects that use the address; `None` is written as `null`, as Go writes it.
    pub owners: Option<Vec<String>>,
}

/// A handle that no block names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct LeakedHandle {
    /// The handle.
    #[serde(rename = "ID")]
    pub id: String,
    /// The uid of the object on an API server; `None` on other datastores.
    #[serde(rename = "UID", default)]
    pub uid: Option<String>,
    /// The resourceVersion, or the revision of the key.
    pub revision: String,
}

impl LeakedHandle {
    /// Returns the report's form of a handle at a revision of the store.
    pub fn new(id: &str, revision: &str) -> Self {
        let ObjectRevision {
            resource_version,
            uid,
            ..
        } = ObjectRevision::parse(&Revision(revision.to_owned()));
        LeakedHandle {
            id: id.to_owned(),
            uid,
            revision: resource_version,
        }
    }
}

impl IpamReport {
    /// Parses a report of `calico-ipam` or of calicoctl.
    ///
    /// # Errors
    /// Returns the error of the JSON decoder.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// Returns the text of the file, byte for byte as calicoctl writes it.
    ///
    /// # Errors
    /// Returns the error of the JSON encoder.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        let text = serde_json::to_string_pretty(self)?;
        let mut escaped = String::with_capacity(text.len());
        for letter in text.chars() {
            match letter {
                // Go escapes these. In JSON, they appear only within texts.
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                    escaped.push_str(&format!("\\u{:04x}", u32::from(letter)))
                }
                letter => escaped.push(letter),
            }
        }
        Ok(escaped)
    }
}

/// Returns true for findings that only the field [`IpamReport::findings`] can carry.
pub fn is_carried_as_finding(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::CorruptBlock { .. } | Finding::HandleCount { .. } | Finding::MissingHandle(_)
    )
}

/// Returns true if a handle in a report is `handle`; both may be cut.
fn is_handle(reported: &str, handle: Option<&str>) -> bool {
    match handle {
        None => reported.is_empty(),
        Some(handle) => !reported.is_empty() && HandleId::new(reported) == HandleId::new(handle),
    }
}
