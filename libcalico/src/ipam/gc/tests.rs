//! What the parts do together: single cases, whole histories, and how much memory it takes.

mod annotations;
mod churn;
mod cluster;
mod conflicts;
mod going;
mod history;
mod scenarios;
mod sizes;
