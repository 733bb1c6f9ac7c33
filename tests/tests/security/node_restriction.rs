//! `deploy/components/node-restriction` on a real API server, and the seal of
//! `deploy/components/migrate-to-v3`.

mod affinities;
mod blocks;
mod plugins;
mod pods;
mod restricted_cluster;
mod seal;
mod tokens;
