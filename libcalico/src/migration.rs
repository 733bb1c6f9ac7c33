//! The migration of Calico's objects from `crd.projectcalico.org/v1` to `projectcalico.org/v3`, as
//! far as it needs no I/O: the kinds, the judgement of objects that exist in v3, and the status of
//! the object that controls it.
//!
//! [`calicoctl_file`] belongs to another migration, from etcd to an API server.
//!
//! [`to_v3`] converts an object. Names of annotations are upstream's, except [`DRY_RUN`],
//! [`PLUGINS`], [`V1_LOCKED_BY`], [`SOURCE_REVISION`], [`COPIED_GENERATION`] and [`IMPORTING`].

pub mod calicoctl_file;
mod judge;
mod kinds;
mod owners;
mod plugin_group;
mod status;

pub use crate::kubernetes::{Moved, MovedKind, Source, Unmovable, to_v3};
pub use judge::{Found, copied_revision, is_copy, judge, marked_copy, replacement};
pub use kinds::{
    DATASTORE_MIGRATIONS, GROUP, MIGRATION_NAME, MIGRATION_TYPE, cluster_information,
    definition_name, moved_kinds,
};
pub use owners::OwnerMap;
pub use plugin_group::{PluginGroup, plugin_group};
pub use status::{KindProgress, MigrationStatus, Phase, Progress, condition, conflict_conditions};

/// The finalizer of the controlling object (MIG-52).
pub const FINALIZER: &str = "migration.projectcalico.org/v1-crd-cleanup";
/// The annotation of the controlling object with the APIService that the migration removed, as
/// JSON.
pub const SAVED_API_SERVICE: &str = "migration.projectcalico.org/saved-apiservice";
/// The annotation of an object in v3 with the uid of the migration that created it. A
/// ClusterInformation gets it as v3 opens.
pub const MIGRATED_BY: &str = "migration.projectcalico.org/migrated-by";
/// The annotation of a ClusterInformation of v3 that existed before, with the uid of the migration
/// that opened v3.
pub const LOCKED_BY: &str = "migration.projectcalico.org/locked-by";

/// The annotation of the controlling object that requests a dry run: one for each text.
pub const DRY_RUN: &str = "migration.projectcalico.org/dry-run";
/// The annotation of the controlling object by which a person states the behavior of the plugins:
/// see [`FOLLOW`].
pub const PLUGINS: &str = "migration.projectcalico.org/plugins";
/// The value of [`PLUGINS`]: the nodes have plugins that follow a migration.
pub const FOLLOW: &str = "follow";
/// The annotation of the ClusterInformation of v1 with the uid of the migration that locked it.
pub const V1_LOCKED_BY: &str = "migration.projectcalico.org/v1-locked-by";
/// The annotation of the ClusterInformation of a datastore with an incomplete import. The value is
/// the GUID of the imported cluster for `calico-ipam migrate import`, and a digest of the export
/// for `calico-ipam import`.
pub const IMPORTING: &str = "migration.projectcalico.org/importing";
/// The annotation of a copy in v3 with the resourceVersion of its source.
pub const SOURCE_REVISION: &str = "migration.projectcalico.org/source-revision";
/// The annotation of a copy in v3 that was replaced, with the greatest generation that the
/// replacement can have. A copy with a greater one has been edited. A copy without the annotation
/// was created, with generation 1.
pub const COPIED_GENERATION: &str = "migration.projectcalico.org/copied-generation";
