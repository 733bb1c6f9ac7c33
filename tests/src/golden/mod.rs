//! Recordings of upstream (tests/golden/README.md) and their replay against our binaries.
//!
//! [`recording`] reads a file, [`marks`] gives its marks values, [`compare`] finds what differs, [`wanted`] holds the
//! differences that we want, [`cluster`] makes the Kubernetes objects around a recording, [`replay`] runs the steps, [`continued`] makes the
//! states in between again.

pub mod cluster;
pub mod compare;
pub mod continued;
pub mod marks;
pub mod recording;
pub mod replay;
pub mod wanted;

#[cfg(test)]
mod tests;
