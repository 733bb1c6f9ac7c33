//! Runs the shipped operations of many nodes in one process, in orders that a seed determines.

pub mod upstream;
