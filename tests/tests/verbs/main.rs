//! Verbs of the plugins on etcd and the embedded datastore.

mod add_failures;
mod add_verb;
mod bad_input;
mod check_owners;
mod check_verb;
mod cooldown;
mod del_verb;
mod exhaustion;
mod fixture;
mod former_block_sizes;
mod mixed_history;
mod old_handles;
mod status_gc;
mod usage;
