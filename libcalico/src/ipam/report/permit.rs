//! [`LockRule`]: calicoctl's conditions for a release from reports (INST-207). The texts are
//! upstream's.

use super::IpamReport;
use crate::api::ClusterInformationSpec;

/// A report with the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedReport {
    /// The file.
    pub file: String,
    /// The report.
    pub report: IpamReport,
}

/// The reason why reports permit no release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseRefusal {
    /// The report is of another cluster.
    #[error(
        "cluster does not match the provided report ({file}): mismatched cluster GUID. Refusing to \
         release"
    )]
    OtherCluster {
        /// The file.
        file: String,
    },
    /// The report is of another version.
    #[error(
        "the provided report ({file}) was produced using a different version ({version}) of \
         calicoctl. Refusing to release"
    )]
    OtherVersion {
        /// The file.
        file: String,
        /// The version in the report.
        version: String,
    },
    /// ClusterInformation changed after every report.
    #[error(
        "the provided reports are all stale - at least one should be up-to-date. Please generate a \
         new report while the data store is locked and try again"
    )]
    Stale,
    /// The datastore is not locked.
    #[error("data store is not locked. Either lock the data store, or re-run with --force")]
    NotLocked,
}

/// A condition that was not met, and that `--force` overrides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseWarning {
    /// See [`ReleaseRefusal::OtherVersion`].
    #[error(
        "WARNING: Report was produced using a different version of calicoctl. Ignoring due to \
         --force option"
    )]
    OtherVersion,
    /// See [`ReleaseRefusal::NotLocked`].
    #[error("WARNING: Data store is not locked. Ignoring due to --force option")]
    NotLocked,
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
/// Returns [`ReleaseRefusal::OtherCluster`] for the first such report.
pub fn refuse_other_clusters(
    information: &ClusterInformationSpec,
    reports: &[NamedReport],
) -> Result<(), ReleaseRefusal> {
    reports
        .iter()
        .try_for_each(|report| refuse_other_cluster(information, report))
}

fn refuse_other_cluster(
    information: &ClusterInformationSpec,
    named: &NamedReport,
) -> Result<(), ReleaseRefusal> {
    if named.report.cluster_guid == information.cluster_guid {
        return Ok(());
    }
    Err(ReleaseRefusal::OtherCluster {
        file: named.file.clone(),
    })
}

impl LockRule<'_> {
    /// Checks the conditions in the order of calicoctl: cluster and version of each report, then
    /// the revision, then the lock. `revision` is the present revision of ClusterInformation.
    ///
    /// # Errors
    /// Returns the first condition that is not met and not overridden.
    pub fn check(
        &self,
        information: &ClusterInformationSpec,
        revision: &str,
        reports: &[NamedReport],
    ) -> Result<Vec<ReleaseWarning>, ReleaseRefusal> {
        let mut warnings = Vec::new();
        for named in reports {
            refuse_other_cluster(information, named)?;
            if named.report.version != self.version {
                let (file, version) = (named.file.clone(), named.report.version.clone());
                self.warn(
                    ReleaseRefusal::OtherVersion { file, version },
                    ReleaseWarning::OtherVersion,
                    &mut warnings,
                )?;
            }
        }
        if !reports
            .iter()
            .any(|named| named.report.cluster_information_revision == revision)
        {
            return Err(ReleaseRefusal::Stale);
        }
        if information.datastore_ready != Some(false) {
            self.warn(
                ReleaseRefusal::NotLocked,
                ReleaseWarning::NotLocked,
                &mut warnings,
            )?;
        }
        Ok(warnings)
    }

    fn warn(
        &self,
        refusal: ReleaseRefusal,
        warning: ReleaseWarning,
        warnings: &mut Vec<ReleaseWarning>,
    ) -> Result<(), ReleaseRefusal> {
        if !self.force {
            return Err(refusal);
        }
        warnings.push(warning);
        Ok(())
    }
}
