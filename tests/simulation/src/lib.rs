//! Runs the shipped operations of many nodes in one process, in orders that a seed determines.

pub mod actors;
pub mod api_server;
pub mod choices;
pub mod cluster;
pub mod collection;
pub mod collection_world;
pub mod datastore;
pub mod drawn_cluster;
pub mod invariants;
pub mod kubernetes_objects;
pub mod network;
pub mod node_time;
pub mod plants;
pub mod pods;
pub mod schedule;
pub mod shrink;
pub mod simulation;
pub mod tasks;
pub mod upstream;
pub mod watch_feed;

#[cfg(test)]
mod tests;
