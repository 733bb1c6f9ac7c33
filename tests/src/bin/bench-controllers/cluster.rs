//! The generated cluster: the address and node of each pod, and the leaked addresses.

use std::net::Ipv4Addr;

/// The size of a cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    /// Number of all blocks. `None` for the smallest number.
    pub(crate) blocks: Option<usize>,
    /// Number of addresses whose pod no longer exists.
    pub(crate) leaked: usize,
    /// Number of blocks with leaked addresses.
    pub(crate) leaking_blocks: usize,
    /// Capacity, in addresses, of each block with leaked addresses.
    pub(crate) leaking_size: usize,
}

/// A block and the owners of its allocated addresses.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) first: u32,
    pub(crate) node: usize,
    pub(crate) holders: Vec<Holder>,
    /// Capacity in addresses. All addresses are allocated, except in the last block, which may have
    /// free ones.
    pub(crate) size: usize,
}

/// The owner of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Pod(usize),
    Leaked(usize),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) node: usize,
    pub(crate) address: Ipv4Addr,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) size: Size,
    pub(crate) blocks: Vec<Block>,
    /// Places, indexed by pod.
    pub(crate) places: Vec<Place>,
}

const USUAL: usize = 64;

impl Cluster {
    pub(crate) fn generate(size: Size) -> Cluster {
        let mut sizes = vec![size.leaking_size; size.leaking_blocks];
        let rest = size.pods + size.leaked - size.leaking_blocks * size.leaking_size;
        match size.blocks.map(|blocks| blocks - size.leaking_blocks) {
            None => sizes.extend(vec![USUAL; rest.div_ceil(USUAL)]),
            Some(blocks) => {
                // With two block sizes all blocks can be full. Each block begins at a multiple of
                // its size.
                let large = rest.div_ceil(blocks).next_power_of_two();
                let larger = (rest - blocks * large / 2) / (large / 2);
                sizes.extend((0..blocks).map(|n| if n < larger { large } else { large / 2 }));
            }
        }
        let (mut first, mut pod, mut leaked) = (u32::from(Ipv4Addr::new(10, 0, 0, 0)), 0, 0);
        let mut cluster = Cluster {
            size,
            blocks: Vec::new(),
            places: Vec::new(),
        };
        for (n, block) in sizes.into_iter().enumerate() {
            let node = n % size.nodes;
            let leaks = match n < size.leaking_blocks {
                true => {
                    size.leaked * (n + 1) / size.leaking_blocks
                        - size.leaked * n / size.leaking_blocks
                }
                false => 0,
            };
            let mut holders: Vec<Holder> = (0..leaks).map(|n| Holder::Leaked(leaked + n)).collect();
            leaked += leaks;
            while holders.len() < block && pod < size.pods {
                cluster.places.push(Place {
                    node,
                    address: (first + holders.len() as u32).into(),
                });
                holders.push(Holder::Pod(pod));
                pod += 1;
            }
            cluster.blocks.push(Block {
                first,
                node,
                holders,
                size: block,
            });
            first += block as u32;
        }
        assert_eq!((pod, leaked), (size.pods, size.leaked), "{size:?}");
        cluster
    }
}

impl Block {
    /// Returns the CIDR, such as `10.0.0.0/26`.
    pub(crate) fn cidr(&self) -> String {
        format!(
            "{}/{}",
            Ipv4Addr::from(self.first),
            32 - self.size.trailing_zeros()
        )
    }

    pub(crate) fn name(&self) -> String {
        self.cidr().replace(['.', '/'], "-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_blocks_of_the_served_cluster_are_full() {
        let size = Size {
            nodes: 5_000,
            pods: 150_000,
            blocks: Some(40_000),
            leaked: 10_000,
            leaking_blocks: 400,
            leaking_size: 32,
        };
        let cluster = Cluster::generate(size);
        assert_eq!(cluster.blocks.len(), 40_000);
        for block in &cluster.blocks {
            assert_eq!(block.holders.len(), block.size, "{block:?}");
            assert_eq!(block.first as usize % block.size, 0, "{block:?}");
        }
        let leaking = cluster
            .blocks
            .iter()
            .filter(|block| matches!(block.holders[0], Holder::Leaked(_)))
            .count();
        assert_eq!(leaking, 400);
    }
}
