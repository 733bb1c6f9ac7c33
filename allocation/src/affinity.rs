//! Releases, repairs and finishes affinities of blocks.

mod finish;
mod labels;
mod release;
pub(crate) mod repair;

pub use self::finish::{FinishedAffinity, finish_affinity};
pub use self::labels::{add_labels, ensure_labels, may_lack_labels};
pub(crate) use self::release::release_if_deselected;
pub use self::release::{
    ReleasedAffinities, release_empty_block, release_host_affinities, release_pool_affinities,
    remove_host,
};
