//! Releases the affinities of blocks: of a pool that no longer selects the node, of a host, of a whole pool. Adds
//! labels to old affinities, and completes or deletes unfinished ones.

mod deselected;
mod finish;
mod labels;
mod release;
pub(crate) mod repair;

pub(crate) use self::deselected::release_if_deselected;
pub use self::finish::{FinishedAffinity, finish_affinity};
pub use self::labels::{add_labels, ensure_labels};
pub use self::release::{
    ReleasedAffinities, release_empty_affinities, release_empty_block, release_host_affinities,
    release_pool_affinities, remove_host,
};
