//! [`split`]: divides a pool into parts of equal size.

#[cfg(test)]
mod tests;

use crate::api::{IpPool, ObjectMeta};
use crate::net::{Cidr, CidrParseError};

/// The maximum length of the name of an object.
const MAX_NAME: usize = 253;
/// The maximum number of parts. Each ADD reads all pools.
const MAX_PARTS: u32 = 1024;

/// The reason why a pool cannot be split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The range of the pool is invalid.
    #[error("the CIDR of the pool is invalid: {0}")]
    Range(#[from] CidrParseError),
    /// The number of parts is 0, 1 or no power of two.
    // Upstream's text.
    #[error("number to split CIDR into is not a valid power of 2: {parts}")]
    NotAPowerOfTwo {
        /// The number of parts.
        parts: u32,
    },
    /// The pool has fewer addresses than parts.
    // Upstream's text.
    #[error("the CIDR {cidr} is not large enough to be split into {parts} parts")]
    TooManyParts {
        /// The range of the pool.
        cidr: Cidr,
        /// The number of parts.
        parts: u32,
    },
    /// A part would be smaller than a block of the pool.
    #[error(
        "a part, such as {part}, would be smaller than a block of /{block_prefix}: IP pool size is \
         too small for use with Calico IPAM. It must be equal to or greater than the block size."
    )]
    PartBelowBlock {
        /// The first part.
        part: Cidr,
        /// The prefix length of a block.
        block_prefix: u8,
    },
    /// The number of parts is above the maximum.
    #[error("a split makes at most {MAX_PARTS} parts, not {parts}; split the parts again")]
    AboveMaximum {
        /// The number of parts.
        parts: u32,
    },
    /// Another pool has the name of a part.
    #[error(
        "IPPool {name} exists and is no part of this split; delete it, or give the pool to split \
         another name"
    )]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Another pool shares addresses with the pool.
    #[error(
        "IPPool {name} with CIDR {cidr} overlaps with the pool to split; delete one of the two \
         first"
    )]
    Overlap {
        /// The name of the other pool.
        name: String,
        /// The range of the other pool.
        cidr: Cidr,
    },
    /// The pool is being deleted.
    #[error("IPPool {name} is being deleted and cannot be split")]
    Terminating {
        /// The name of the pool.
        name: String,
    },
}

/// Returns the parts of `pool`, which are in service even if the pool is disabled. `pools` are all
/// stored pools. They may contain parts of an earlier split that was interrupted.
pub fn split(pool: &IpPool, parts: u32, pools: &[IpPool]) -> Result<Vec<IpPool>, SplitError> {
    let name = &pool.metadata.name;
    if pool.metadata.deletion_timestamp.is_some() {
        return Err(SplitError::Terminating { name: name.clone() });
    }
    let range = pool.spec.range()?;
    let ranges = divide(&range, parts, pool.spec.block_prefix(range.version()))?;
    let wanted: Vec<IpPool> = ranges
        .iter()
        .enumerate()
        .map(|(index, range)| part_of(pool, index, range))
        .collect();
    for other in pools.iter().filter(|other| other.metadata.name != *name) {
        let part = wanted
            .iter()
            .find(|part| part.metadata.name == other.metadata.name);
        match (part, other.spec.range()) {
            (Some(part), _) if is_same(part, other) => {}
            (Some(_), _) => {
                return Err(SplitError::NameTaken {
                    name: other.metadata.name.clone(),
                });
            }
            (None, Ok(cidr)) if cidr.overlaps(&range) => {
                return Err(SplitError::Overlap {
                    name: other.metadata.name.clone(),
                    cidr,
                });
            }
            (None, _) => {}
        }
    }
    Ok(wanted)
}

/// Returns the ranges of the parts in ascending order.
fn divide(range: &Cidr, parts: u32, block_prefix: u8) -> Result<Vec<Cidr>, SplitError> {
    if parts < 2 || !parts.is_power_of_two() {
        return Err(SplitError::NotAPowerOfTwo { parts });
    }
    let too_many = || SplitError::TooManyParts {
        cidr: *range,
        parts,
    };
    let prefix = u32::from(range.prefix()) + parts.trailing_zeros();
    let prefix = u8::try_from(prefix)
        .ok()
        .filter(|prefix| *prefix <= range.version().bits())
        .ok_or_else(too_many)?;
    let first = Cidr::new(range.network(), prefix).ok_or_else(too_many)?;
    if prefix > block_prefix {
        return Err(SplitError::PartBelowBlock {
            part: first,
            block_prefix,
        });
    }
    if parts > MAX_PARTS {
        return Err(SplitError::AboveMaximum { parts });
    }
    let part = |index: u32| Cidr::new(range.nth(u128::from(index) * first.size())?, prefix);
    (0..parts)
        .map(|index| part(index).ok_or_else(too_many))
        .collect()
}

fn part_of(pool: &IpPool, index: usize, range: &Cidr) -> IpPool {
    let from = &pool.metadata;
    let mut metadata = ObjectMeta {
        name: part_name(&from.name, index),
        labels: from.labels.clone(),
        annotations: from.annotations.clone(),
        ..ObjectMeta::default()
    };
    let finalizers = from.unknown.get("finalizers");
    metadata
        .unknown
        .extend(finalizers.map(|finalizers| ("finalizers".to_owned(), finalizers.clone())));
    let mut spec = pool.spec.clone();
    (spec.cidr, spec.disabled) = (range.to_string(), false);
    let mut part = IpPool::new("", spec);
    part.metadata = metadata;
    part
}

/// Returns `split-<pool>-<index>`, with the pool's name cut such that an object may have this name.
fn part_name(pool: &str, index: usize) -> String {
    let around = "split--".len() + index.to_string().len();
    let cut: String = pool.chars().take(MAX_NAME - around).collect();
    // A name cannot contain a dot beside a hyphen.
    let cut = if cut.len() < pool.len() {
        cut.trim_end_matches(['.', '-'])
    } else {
        pool
    };
    format!("split-{cut}-{index}")
}

fn is_same(part: &IpPool, stored: &IpPool) -> bool {
    let mut spec = stored.spec.clone();
    if let Ok(range) = spec.range() {
        spec.cidr = range.to_string();
    }
    stored.metadata.deletion_timestamp.is_none() && spec == part.spec
}
