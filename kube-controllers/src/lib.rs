//! Calico's kube-controllers: keeps Calico's objects consistent with Kubernetes, and releases addresses that are no
//! longer in use.
//!
//! Data flows in one direction. A [`feed`] watches one kind of object and passes small projections of the objects
//! ([`watched`]) to its listeners. The listeners cache what they need and add keys to a [`runtime::Queue`]. Workers of
//! the [`controllers`] take a key, read the cache, and write the objects that differ from the desired state. Processing
//! is level-triggered: a key may be processed twice, and nothing is written when nothing has changed.

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
