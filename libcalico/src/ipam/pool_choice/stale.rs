//! Selects the blocks that a node gives up once they are empty.
//!
//! The allocator creates blocks of one size in a pool. A block of another size is of a former one:
//! the pool was deleted while the block was in use, and was created again.

use super::{Labels, PoolChoice};
use crate::ipam::pool::Pool;
use crate::net::Cidr;
use crate::selector::Selector;

/// Returns the blocks in `owned` that the node should give up if they are empty. These are the
/// blocks whose pools no longer select the node, if the request does not use them (IPAM-99), and
/// the blocks of a former size in the chosen pools, which upstream keeps (IPAM-106).
pub fn stale_blocks(owned: &[Cidr], choice: &PoolChoice, labels: &Labels) -> Vec<Cidr> {
    let is_stale =
        |block: &&Cidr| choice.is_deselected(block, labels) || choice.has_former_size(block);
    owned.iter().filter(is_stale).copied().collect()
}

impl PoolChoice {
    /// Returns true if the block is in a chosen pool, and no pool in service has blocks of this
    /// size there. Pools that overlap may have different sizes.
    pub fn has_former_size(&self, block: &Cidr) -> bool {
        let has_present_size =
            |pool: &Pool| pool.cidr.covers(block) && pool.block_prefix == block.prefix();
        contain(&self.chosen, block) && !self.enabled.iter().any(has_present_size)
    }

    /// Returns true if the request does not use the block's pool, and the pool's selector does not
    /// match the labels.
    fn is_deselected(&self, block: &Cidr, labels: &Labels) -> bool {
        if contain(&self.selected, block) {
            return false;
        }
        let pool = self
            .enabled
            .iter()
            .find(|pool| pool.cidr.contains(block.network()));
        pool.is_some_and(|pool| {
            Selector::parse(&pool.node_selector).is_ok_and(|parsed| !parsed.matches(labels))
        })
    }
}

fn contain(pools: &[Pool], block: &Cidr) -> bool {
    pools.iter().any(|pool| pool.cidr.contains(block.network()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{IpPool, IpPoolSpec};
    use crate::ipam::enabled_pool;

    fn pool(range: &str, block_size: u8) -> Pool {
        let cidr: Cidr = range.parse().unwrap();
        let spec = IpPoolSpec {
            cidr: range.into(),
            block_size: Some(block_size),
            ..IpPoolSpec::default()
        };
        enabled_pool(&IpPool::new(range, spec), cidr.version()).unwrap()
    }

    /// Returns the stale ones of `owned` for a request that uses the pools `chosen`, while
    /// `enabled` are in service.
    fn stale(chosen: &[Pool], enabled: &[Pool], owned: &[&str]) -> Vec<String> {
        let owned: Vec<Cidr> = owned.iter().map(|text| text.parse().unwrap()).collect();
        let choice = PoolChoice {
            chosen: chosen.to_vec(),
            selected: chosen.to_vec(),
            enabled: enabled.to_vec(),
            ..PoolChoice::default()
        };
        stale_blocks(&owned, &choice, &Labels::new())
            .iter()
            .map(Cidr::to_string)
            .collect()
    }

    #[test]
    fn block_of_another_size_than_its_chosen_pool_is_stale() {
        let pools = [pool("10.1.0.0/16", 28), pool("10.2.0.0/16", 26)];
        let owned = [
            "10.1.0.0/26",
            "10.1.1.0/28",
            "10.1.2.0/32",
            "10.2.0.0/26",
            "10.2.1.0/28",
            "10.3.0.0/24",
        ];
        assert_eq!(
            stale(&pools, &pools, &owned),
            ["10.1.0.0/26", "10.1.2.0/32", "10.2.1.0/28"]
        );
        let pools6 = [pool("fd00::/64", 120)];
        assert_eq!(
            stale(&pools6, &pools6, &["fd00::/120", "fd00::100/122"]),
            ["fd00::100/122"]
        );
    }

    #[test]
    fn block_of_a_former_size_outside_the_chosen_pools_is_not_stale() {
        let enabled = [pool("10.1.0.0/16", 28), pool("10.2.0.0/16", 28)];
        let owned = ["10.1.0.0/26", "10.2.0.0/26"];
        assert_eq!(
            stale(&enabled[..1], &enabled, &owned),
            ["10.1.0.0/26"],
            "a pool that the request does not use"
        );
        assert_eq!(
            stale(&enabled[..1], &enabled[..1], &owned),
            ["10.1.0.0/26"],
            "a pool that is not in service"
        );
    }

    /// Upstream refuses pools that overlap. kubectl creates them.
    #[test]
    fn block_with_the_size_of_one_of_two_pools_is_not_stale() {
        let pools = [pool("10.1.0.0/17", 28), pool("10.1.0.0/16", 26)];
        let owned = [
            "10.1.0.0/26",
            "10.1.0.64/27",
            "10.1.1.0/28",
            "10.1.128.0/26",
            "10.1.129.0/28",
        ];
        assert_eq!(
            stale(&pools, &pools, &owned),
            ["10.1.0.64/27", "10.1.129.0/28"]
        );
    }
}
