//! `deploy/components/node-restriction` on a real API server.

mod affinities;
mod blocks;
mod life;
mod pods;
mod scene;
mod tokens;
