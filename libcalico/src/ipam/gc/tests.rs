//! Tests of garbage collection as a whole: single scenarios, random histories, and memory use.

mod annotations;
mod churn;
mod cluster;
mod conflicts;
mod former_sizes;
mod going;
mod history;
mod room;
mod scenarios;
mod sizes;
