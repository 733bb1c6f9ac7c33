//! Recordings of upstream (tests/golden/README.md) and their replay against our binaries.
//!
//! [`recording`] reads a file, [`marks`] replaces and binds marks, [`compare`] finds differences,
//! and [`wanted`] lists the intended ones. [`cluster`] creates the Kubernetes objects of a
//! recording, [`replay`] runs the steps, and [`continued`] recreates the states between steps.
//! [`calicoctl`] reads the recordings of `calicoctl ipam`.

pub mod calicoctl;
pub mod cluster;
pub mod compare;
pub mod continued;
pub mod marks;
pub mod recording;
pub mod replay;
pub mod wanted;

#[cfg(test)]
mod tests;
