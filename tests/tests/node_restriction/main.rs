//! `deploy/components/node-restriction` on a real API server: what the tokens of one node cannot do to other nodes, and
//! that the plugins work with these tokens.

mod affinities;
mod blocks;
mod life;
mod pods;
mod scene;
mod tokens;
