//! Prints the use of pools and blocks.

use comfy_table::{Cell, CellAlignment, Row};
use libcalico::api::{IpPool, IpPoolSpec, IpReservation, ObjectSelect};
use libcalico::failure::Failure;
use libcalico::ipam::{Block, BlockUse, PoolUse, Reservations, exact_number, utilization};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store};
use serde::Serialize;

use crate::cli::app::App;
use crate::cli::documents;
use crate::cli::error::CliError;

const BAR: usize = 10;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownPools {
    pools: Vec<ShownPool>,
    /// `None` unless the blocks of all pools are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks_outside_pools: Option<Vec<ShownBlock>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownPool {
    name: String,
    cidr: Cidr,
    disabled: bool,
    #[serde(flatten)]
    counts: Counts,
    /// The number of blocks of another size than the pool's; `None` if there is no such block.
    #[serde(skip_serializing_if = "Option::is_none")]
    former_size_blocks: Option<usize>,
    #[serde(skip)]
    all_blocks: usize,
    #[serde(skip)]
    block_prefix: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<Vec<ShownBlock>>,
}

#[derive(Serialize)]
struct ShownBlock {
    cidr: Cidr,
    /// The owner, such as `host:NODE`; `null` without an owner.
    affinity: Option<String>,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    capacity: Quantity,
    in_use: Quantity,
    reserved: Quantity,
    free: Quantity,
}

/// A number of addresses. Numbers beyond 64 bits are serialized as text, because JSON readers would
/// round them.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Quantity(pub(in crate::cli) u128);

pub(super) async fn show(
    wanted: &[String],
    with_blocks: bool,
    app: &mut App<'_>,
) -> Result<(), CliError> {
    let shown = read_pools(wanted, with_blocks, app).await?;
    if documents::print_document(app.format, app.out, &shown)? {
        return Ok(());
    }
    let header = [
        "GROUPING",
        "CIDR",
        "IPS TOTAL",
        "IPS IN USE",
        "IPS RESERVED",
        "IPS FREE",
        "NAME OR OWNER",
        "USE",
    ];
    let mut table = documents::new_table(header);
    for pool in &shown.pools {
        let name = if pool.disabled {
            format!("{} (disabled)", pool.name)
        } else {
            pool.name.clone()
        };
        table.add_row(row("IP Pool", pool.cidr, pool.counts, &name));
        for block in pool.blocks.iter().flatten() {
            table.add_row(block_row(block));
        }
    }
    for block in shown.blocks_outside_pools.iter().flatten() {
        table.add_row(block_row(block));
    }
    documents::print_table(app.out, &table)?;
    for ShownPool {
        name,
        former_size_blocks,
        all_blocks,
        block_prefix,
        ..
    } in &shown.pools
    {
        if let Some(former) = former_size_blocks {
            app.print_line(format_args!(
                "pool {name}: {former} of {all_blocks} blocks have another size than \
                 /{block_prefix}"
            ))?;
        }
    }
    Ok(())
}

async fn read_pools(
    wanted: &[String],
    with_blocks: bool,
    app: &mut App<'_>,
) -> Result<ShownPools, CliError> {
    let mut batch = ReadBatch::new();
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let blocks = batch.list::<Block>(&None);
    let reservations = batch.list::<IpReservation>(&ObjectSelect::default());
    let progress = app.progress("reading pools and blocks");
    let answers = app.store.read(&batch).await?;
    drop(progress);
    let pools = select(answers.list(&pools), wanted)?;
    let blocks: Vec<Block> = answers
        .list(&blocks)
        .into_iter()
        .map(|entry| entry.value)
        .collect();
    let reservations: Vec<IpReservation> = answers
        .list(&reservations)
        .into_iter()
        .map(|entry| entry.value)
        .collect();
    let (reservations, malformed) = Reservations::of(&reservations);
    for entry in malformed {
        app.notice(format_args!("note: {entry}"));
    }
    let ranges = pools
        .iter()
        .filter_map(|pool| Some((pool, pool.value.spec.range().ok()?)));
    let ranges: Vec<(&Entry<IpPool>, Cidr)> = ranges.collect();
    let by_name = ranges
        .iter()
        .map(|(pool, range)| (pool.key.name.as_str(), *range));
    let uses = utilization(by_name, &blocks, &reservations);
    let with_specs = uses.pools.into_iter().zip(&ranges);
    let shown = with_specs
        .map(|(pool_use, (pool, _))| ShownPool::new(pool_use, &pool.value.spec, with_blocks));
    let all = with_blocks && wanted.is_empty();
    Ok(ShownPools {
        pools: shown.collect(),
        blocks_outside_pools: all.then(|| uses.orphans.into_iter().map(ShownBlock::new).collect()),
    })
}

/// Returns the pools that `wanted` selects by name or CIDR; all pools if `wanted` is empty.
fn select(pools: Vec<Entry<IpPool>>, wanted: &[String]) -> Result<Vec<Entry<IpPool>>, Failure> {
    if wanted.is_empty() {
        return Ok(pools);
    }
    let is_selected = |pool: &Entry<IpPool>, text: &str| {
        pool.key.name == text
            || text
                .parse::<Cidr>()
                .is_ok_and(|cidr| pool.value.spec.range() == Ok(cidr))
    };
    match wanted
        .iter()
        .find(|text| !pools.iter().any(|pool| is_selected(pool, text)))
    {
        Some(pool) => Err(Failure::new(format_args!(
            "no pool is called `{pool}` or has that CIDR"
        ))
        .way_out("`calico-ipam get ippools` lists them")),
        None => Ok(pools
            .into_iter()
            .filter(|pool| wanted.iter().any(|text| is_selected(pool, text)))
            .collect()),
    }
}

fn block_row(block: &ShownBlock) -> Row {
    row(
        "Block",
        block.cidr,
        block.counts,
        block.affinity.as_deref().unwrap_or("(no owner)"),
    )
}

/// Returns a row with the columns of `calicoctl ipam show` and two more (INST-124).
fn row(grouping: &str, cidr: Cidr, counts: Counts, name: &str) -> Row {
    let Counts {
        capacity,
        in_use,
        reserved,
        free,
    } = counts;
    let number = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let part = |count: Quantity| number(format!("{count} ({}%)", percent(count.0, capacity.0)));
    Row::from(vec![
        Cell::new(grouping),
        Cell::new(cidr),
        number(capacity.to_string()),
        part(in_use),
        part(reserved),
        part(free),
        documents::table_cell(name),
        Cell::new(bar(in_use.0, capacity.0)),
    ])
}

/// Halves are rounded to the even number, as upstream does.
fn percent(part: u128, whole: u128) -> u64 {
    (share(part, whole) * 100.0).round_ties_even() as u64
}

/// Returns a bar that is empty only if no address is in use, and full only if all are.
fn bar(part: u128, whole: u128) -> String {
    let filled = (share(part, whole) * BAR as f64).round() as usize;
    let filled = match part {
        0 => 0,
        _ if part >= whole => BAR,
        _ => filled.clamp(1, BAR - 1),
    };
    format!("[{}{}]", "#".repeat(filled), "-".repeat(BAR - filled))
}

fn share(part: u128, whole: u128) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

impl ShownPool {
    fn new(pool_use: PoolUse, spec: &IpPoolSpec, with_blocks: bool) -> Self {
        let block_prefix = spec.block_prefix(pool_use.cidr.version());
        let former = pool_use
            .blocks
            .iter()
            .filter(|block| block.cidr.prefix() != block_prefix)
            .count();
        let all_blocks = pool_use.blocks.len();
        let counts = Counts::new(
            pool_use.capacity,
            pool_use.in_use,
            pool_use.reserved,
            pool_use.available,
        );
        let blocks =
            with_blocks.then(|| pool_use.blocks.into_iter().map(ShownBlock::new).collect());
        ShownPool {
            name: pool_use.name,
            cidr: pool_use.cidr,
            disabled: spec.disabled,
            counts,
            former_size_blocks: (former > 0).then_some(former),
            all_blocks,
            block_prefix,
            blocks,
        }
    }
}

impl ShownBlock {
    fn new(block_use: BlockUse) -> Self {
        let counts = Counts::new(
            block_use.capacity,
            block_use.in_use,
            block_use.reserved,
            block_use.available,
        );
        ShownBlock {
            cidr: block_use.cidr,
            affinity: block_use.owner,
            counts,
        }
    }
}

impl Counts {
    fn new(capacity: u128, in_use: u128, reserved: u128, free: u128) -> Self {
        let [capacity, in_use, reserved, free] = [capacity, in_use, reserved, free].map(Quantity);
        Counts {
            capacity,
            in_use,
            reserved,
            free,
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        exact_number(&self.0, serializer)
    }
}

impl std::fmt::Display for Quantity {
    /// Writes a number of a million or more with five significant digits, such as `1.2089e+24`, as
    /// upstream does.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 < 1_000_000 {
            return write!(f, "{}", self.0);
        }
        let text = format!("{:.4e}", self.0 as f64);
        let (digits, exponent) = text.split_once('e').unwrap_or((text.as_str(), "0"));
        write!(
            f,
            "{}e+{exponent:0>2}",
            digits.trim_end_matches('0').trim_end_matches('.')
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Quantity, bar, percent};

    #[test]
    fn bars_distinguish_empty_used_and_full_pools() {
        assert_eq!(bar(0, 64), format!("[{}]", "-".repeat(10)));
        assert_eq!(bar(1, 65536), format!("[#{}]", "-".repeat(9)));
        assert_eq!(bar(32, 64), format!("[{}{}]", "#".repeat(5), "-".repeat(5)));
        assert_eq!(bar(65535, 65536), format!("[{}-]", "#".repeat(9)));
        assert_eq!(bar(64, 64), format!("[{}]", "#".repeat(10)));
    }

    #[test]
    fn quantities_are_rounded_in_tables_and_exact_in_json() {
        assert_eq!(Quantity(65536).to_string(), "65536");
        assert_eq!(Quantity(1 << 80).to_string(), "1.2089e+24");
        assert_eq!(Quantity(1 << 20).to_string(), "1.0486e+06");
        assert_eq!(Quantity(1_200_000).to_string(), "1.2e+06");
        assert_eq!(
            serde_json::to_string(&[Quantity(64), Quantity(1 << 64)]).unwrap(),
            "[64,\"18446744073709551616\"]"
        );
    }

    #[test]
    fn shares_are_rounded_with_halves_to_even() {
        assert_eq!(
            [percent(5, 64), percent(5, 8), percent(3, 8), percent(0, 0)],
            [8, 62, 38, 0]
        );
    }
}
