//! Calico's kube-controllers: what keeps Calico's objects in step with Kubernetes, and collects what nobody holds any
//! more.
//!
//! Data flows one way. A [`feed`] watches one kind of object and hands small projections of it ([`watched`]) to its
//! listeners, which keep what they need in memory and put keys on a [`runtime::Queue`]. Workers of the [`controllers`]
//! take a key, look at the memory, and write what is not yet as it should be. A level-triggered key may come twice;
//! nothing is written when nothing changed.

pub mod cli;
mod compaction;
mod configuration;
pub mod context;
pub mod controllers;
mod events;
pub mod feed;
pub mod gc;
mod group;
pub mod http;
pub mod leader;
pub mod live;
pub mod logging;
pub mod readiness;
mod roster;
pub mod run;
pub mod runtime;
mod session;
pub mod settings;
mod signals;
mod startup;
pub mod status;
pub mod telemetry;
pub mod watched;
