//! The rights of each account in the hands of a thief: with a stolen token, every verb of the roles in `deploy/rbac` is
//! used against objects of others, on a real API server. SECURITY.md says what the thief reaches.

mod agent;
mod controllers;
mod documented;
mod plugins;
mod thief;
