//! The rights of each account in the hands of a thief: every verb of the roles in `deploy/rbac` is
//! used against objects of others.

mod agent;
mod controllers;
mod documented;
mod plugins;
mod thief;
