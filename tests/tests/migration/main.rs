//! Moves between datastores and from calicoctl.

mod calicoctl_config;
mod migrate_import;
mod migration_to_v3;
