//! Migrations of Calico's objects, as far as they need no I/O.

pub mod calicoctl_file;

/// The annotation of the ClusterInformation of v1 with the uid of the migration that locked it.
pub const V1_LOCKED_BY: &str = "migration.projectcalico.org/v1-locked-by";
