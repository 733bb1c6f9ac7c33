//! [`split`]: divides a pool into parts of equal size.

#[cfg(test)]
mod tests;

use crate::api::{IpPool, ObjectMeta};
use crate::failure::{Failure, OrFail};
use crate::net::Cidr;

/// The maximum length of the name of an object.
const MAX_NAME: usize = 253;
/// The maximum number of parts. Each ADD reads all pools.
const MAX_PARTS: u32 = 1024;

/// Returns the parts of `pool`, which are in service even if the pool is disabled. `pools` are all
/// stored pools. They may contain parts of an earlier split that was interrupted.
pub fn split(pool: &IpPool, parts: u32, pools: &[IpPool]) -> Result<Vec<IpPool>, Failure> {
    let name = &pool.metadata.name;
    if pool.metadata.deletion_timestamp.is_some() {
        return Err(Failure::new(format_args!(
            "IPPool {name} is being deleted and cannot be split"
        )));
    }
    let range = pool.spec.range();
    let range = range.or_fail("the CIDR of the pool is invalid")?;
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
            (Some(_), _) => return Err(name_taken(&other.metadata.name)),
            (None, Ok(cidr)) if cidr.overlaps(&range) => {
                return Err(Failure::new(format_args!(
                    "IPPool {} with CIDR {cidr} overlaps with the pool to split",
                    other.metadata.name
                ))
                .way_out("delete one of the two first"));
            }
            (None, _) => {}
        }
    }
    Ok(wanted)
}

fn name_taken(name: &str) -> Failure {
    Failure::new(format_args!(
        "IPPool {name} exists and is no part of this split"
    ))
    .way_out("delete it, or give the pool to split another name")
}

/// Returns the ranges of the parts in ascending order.
fn divide(range: &Cidr, parts: u32, block_prefix: u8) -> Result<Vec<Cidr>, Failure> {
    if parts < 2 || !parts.is_power_of_two() {
        // Upstream's text.
        return Err(Failure::new(format_args!(
            "number to split CIDR into is not a valid power of 2: {parts}"
        )));
    }
    let too_many = || {
        // Upstream's text.
        Failure::new(format_args!(
            "the CIDR {range} is not large enough to be split into {parts} parts"
        ))
    };
    let prefix = u32::from(range.prefix()) + parts.trailing_zeros();
    let prefix = u8::try_from(prefix)
        .ok()
        .filter(|prefix| *prefix <= range.version().bits())
        .ok_or_else(too_many)?;
    let first = Cidr::new(range.network(), prefix).ok_or_else(too_many)?;
    if prefix > block_prefix {
        return Err(Failure::new(format_args!(
            "a part, such as {first}, would be smaller than a block of /{block_prefix}: IP pool \
             size is too small for use with Calico IPAM. It must be equal to or greater than the \
             block size."
        )));
    }
    if parts > MAX_PARTS {
        return Err(Failure::new(format_args!(
            "a split makes at most {MAX_PARTS} parts, not {parts}"
        ))
        .way_out("split the parts again"));
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
