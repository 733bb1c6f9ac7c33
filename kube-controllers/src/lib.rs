//! Calico's kube-controllers: keeps Calico's objects consistent with Kubernetes, and releases
//! addresses that are no longer in use.
//!
//! Data flows in one direction. Each of the [`watches`] follows one kind of object and passes the
//! objects, of Kubernetes kinds as small projections ([`watched`]), to its event handlers. The
//! handlers fill a cache and add keys to a [`runtime::Queue`]. Workers of the [`controllers`] take
//! a key, read the cache, and write the objects that differ from the desired state. Processing is
//! level-triggered: a key may be processed twice, and nothing is written when nothing has changed.
//! Garbage collection ([`gc`]) has passes over an index instead of keys.
//!
//! The crate `kube-controllers-program` has the program, which runs this crate's process
//! ([`run::main`]) and, beside the controllers, the migration of the crate `migration`.

pub mod api_reads;
pub mod cli;
mod compaction;
mod configuration;
pub mod context;
pub mod controllers;
pub mod datastore_lock;
mod events;
pub mod gc;
pub mod http;
pub mod in_progress;
pub mod leader;
pub mod logging;
pub mod rollout;
pub mod run;
pub mod runtime;
pub mod same_cluster;
pub mod settings;
mod startup;
pub mod status;
pub mod telemetry;
pub mod watched;
pub mod watches;
