//! What the parts do together: single cases, whole histories, and how much memory it takes.

mod churn;
mod cluster;
mod going;
mod history;
mod scenarios;
mod sizes;
