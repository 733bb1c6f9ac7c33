//! The conditions of reports: those of every release from reports, and those of `--require-lock`
//! (INST-207).

use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::failure::Failure;
use libcalico::ipam::report::{LockRule, NamedReport, refuse_other_clusters};
use libcalico::store::{Entry, Revision};

use super::ReleaseArgs;
use crate::cli::app::App;
use crate::cli::error::{CliError, no_identity};
use crate::cli::report_file;
use allocation::reads::find;

/// The permission to release from reports.
pub(super) struct Permit {
    /// The revision of ClusterInformation before the release.
    revision: Revision,
}

/// Checks the reports against the cluster.
pub(super) async fn permit(
    args: &ReleaseArgs,
    reports: &[NamedReport],
    app: &mut App<'_>,
) -> Result<Permit, CliError> {
    let Entry {
        value: information,
        revision,
        ..
    } = cluster_information(app).await?;
    let version = report_file::version(args.report_version.as_deref(), &information.spec);
    // A report of another cluster is refused even if the version is unknown.
    if !args.require_lock || version.is_err() {
        refuse_other_clusters(&information.spec, reports)?;
    }
    if !args.require_lock {
        return Ok(Permit { revision });
    }
    let rule = LockRule {
        version: version?,
        force: args.force,
    };
    for warning in rule.check(&information.spec, revision.resource_version(), reports)? {
        app.notice(warning);
    }
    Ok(Permit { revision })
}

impl Permit {
    /// Returns an error if ClusterInformation changed since [`permit`]: another process may have
    /// unlocked the datastore meanwhile.
    pub(super) async fn verify(&self, app: &App<'_>) -> Result<(), CliError> {
        let now = cluster_information(app).await?;
        if now.revision == self.revision {
            Ok(())
        } else {
            Err(Failure::new(
                "ClusterInformation changed while addresses were released, so that the datastore \
                 may have been unlocked",
            )
            .way_out("run `calico-ipam check`")
            .into())
        }
    }
}

async fn cluster_information(app: &App<'_>) -> Result<Entry<ClusterInformation>, CliError> {
    let found = find::<ClusterInformation>(app.store, &ObjectKey::global("default")).await?;
    let named = found.filter(|entry| !entry.value.spec.cluster_guid.is_empty());
    Ok(named.ok_or_else(|| no_identity(&app.datastore))?)
}
