//! [`LockRule`]: calicoctl's conditions for a release from reports (INST-207). The texts are
//! upstream's.

use super::IpamReport;
use crate::api::ClusterInformationSpec;
use crate::failure::Failure;

/// A report with the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedReport {
    /// The file.
    pub file: String,
    /// The report.
    pub report: IpamReport,
}

/// The conditions under which the lock of the datastore protects a release.
#[derive(Debug, Clone, Copy)]
pub struct LockRule<'a> {
    /// The version that the reports must have.
    pub version: &'a str,
    /// True if another version and an unlocked datastore only cause warnings.
    pub force: bool,
}

/// Refuses reports of another cluster.
///
/// # Errors
/// Names the first such report.
pub fn refuse_other_clusters(
    information: &ClusterInformationSpec,
    reports: &[NamedReport],
) -> Result<(), Failure> {
    reports
        .iter()
        .try_for_each(|report| refuse_other_cluster(information, report))
}

fn refuse_other_cluster(
    information: &ClusterInformationSpec,
    named: &NamedReport,
) -> Result<(), Failure> {
    if named.report.cluster_guid == information.cluster_guid {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "cluster does not match the provided report ({}): mismatched cluster GUID. Refusing to \
         release",
        named.file
    )))
}

impl LockRule<'_> {
    /// Checks the conditions in the order of calicoctl: cluster and version of each report, then
    /// the revision, then the lock. `revision` is the present revision of ClusterInformation.
    /// Returns warnings about the conditions that are overridden.
    ///
    /// # Errors
    /// Returns the first condition that is not met and not overridden.
    pub fn check(
        &self,
        information: &ClusterInformationSpec,
        revision: &str,
        reports: &[NamedReport],
    ) -> Result<Vec<&'static str>, Failure> {
        let mut warnings = Vec::new();
        for named in reports {
            refuse_other_cluster(information, named)?;
            if named.report.version != self.version {
                if !self.force {
                    return Err(other_version(named));
                }
                warnings.push(
                    "WARNING: Report was produced using a different version of calicoctl. \
                     Ignoring due to --force option",
                );
            }
        }
        if !reports
            .iter()
            .any(|named| named.report.cluster_information_revision == revision)
        {
            return Err(Failure::new(
                "the provided reports are all stale - at least one should be up-to-date. Please \
                 generate a new report while the data store is locked and try again",
            ));
        }
        if information.datastore_ready != Some(false) {
            if !self.force {
                return Err(Failure::new(
                    "data store is not locked. Either lock the data store, or re-run with --force",
                ));
            }
            warnings.push("WARNING: Data store is not locked. Ignoring due to --force option");
        }
        Ok(warnings)
    }
}

fn other_version(named: &NamedReport) -> Failure {
    Failure::new(format_args!(
        "the provided report ({}) was produced using a different version ({}) of calicoctl. \
         Refusing to release",
        named.file, named.report.version
    ))
}
