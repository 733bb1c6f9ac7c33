//! `show`: prints the use of pools and blocks (IPAM-158), or the allocation of one address.

mod address;

use std::net::IpAddr;

use clap::Args;
use comfy_table::{Cell, CellAlignment, Row};
use libcalico::api::{IpPool, IpReservation, ObjectSelect};
use libcalico::ipam::{Block, BlockUse, PoolUse, Reservations, exact_number, utilization};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store};
use serde::Serialize;

use super::app::{App, CommandOutcome};
use super::documents;
use super::error::CliError;

/// Show the use of pools, or the owner of an address
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam show
  calico-ipam show --show-blocks
  calico-ipam show --pool default-ipv4-ippool -o json
  calico-ipam show --ip 10.65.0.1")]
pub(super) struct ShowArgs {
    /// Show the blocks of each pool, with owner and use
    #[arg(long)]
    show_blocks: bool,
    /// Show only this pool, by name or CIDR. May be given several times
    #[arg(long, value_name = "NAME|CIDR", conflicts_with = "ip")]
    pool: Vec<String>,
    /// Show the owner of this address, and the time of its allocation
    #[arg(long, value_name = "ADDRESS", conflicts_with = "show_blocks")]
    ip: Option<IpAddr>,
}

pub(super) async fn run(args: &ShowArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    match args.ip {
        Some(ip) => address::show(ip, app).await?,
        None => show_pools(&args.pool, args.show_blocks, app).await?,
    }
    Ok(CommandOutcome::Success)
}

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

/// A number of addresses. Numbers beyond 64 bits are serialized as text, because JSON readers would round them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantity(pub(super) u128);

async fn show_pools(wanted: &[String], with_blocks: bool, app: &mut App<'_>) -> Result<(), CliError> {
    let shown = read_pools(wanted, with_blocks, app).await?;
    if documents::print_document(app.format, app.out, &shown)? {
        return Ok(());
    }
    let header = ["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE", "NAME OR OWNER", "USE"];
    let mut table = documents::new_table(header);
    for pool in &shown.pools {
        let name = if pool.disabled { format!("{} (disabled)", pool.name) } else { pool.name.clone() };
        table.add_row(row("IP Pool", pool.cidr, pool.counts, &name));
        for block in pool.blocks.iter().flatten() {
            table.add_row(block_row(block));
        }
    }
    for block in shown.blocks_outside_pools.iter().flatten() {
        table.add_row(block_row(block));
    }
    documents::print_table(app.out, &table)
}

async fn read_pools(wanted: &[String], with_blocks: bool, app: &mut App<'_>) -> Result<ShownPools, CliError> {
    let mut batch = ReadBatch::new();
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let blocks = batch.list::<Block>(&None);
    let reservations = batch.list::<IpReservation>(&ObjectSelect::default());
    let answers = app.store.read(&batch).await?;
    let pools = select(answers.list(&pools), wanted)?;
    let blocks: Vec<Block> = answers.list(&blocks).into_iter().map(|entry| entry.value).collect();
    let reservations: Vec<IpReservation> = answers.list(&reservations).into_iter().map(|entry| entry.value).collect();
    let (reservations, malformed) = Reservations::of(&reservations);
    for entry in malformed {
        app.notice(format_args!("note: {entry}"));
    }
    let ranges = pools.iter().filter_map(|pool| Some((pool.key.name.as_str(), pool.value.spec.range().ok()?)));
    let uses = utilization(ranges, &blocks, &reservations);
    let shown = uses.pools.into_iter().map(|pool_use| {
        let disabled = pools.iter().any(|pool| pool.key.name == pool_use.name && pool.value.spec.disabled);
        ShownPool::new(pool_use, disabled, with_blocks)
    });
    let all = with_blocks && wanted.is_empty();
    Ok(ShownPools {
        pools: shown.collect(),
        blocks_outside_pools: all.then(|| uses.orphans.into_iter().map(ShownBlock::new).collect()),
    })
}

/// Returns the pools that `wanted` selects by name or CIDR; all pools if `wanted` is empty.
fn select(pools: Vec<Entry<IpPool>>, wanted: &[String]) -> Result<Vec<Entry<IpPool>>, CliError> {
    if wanted.is_empty() {
        return Ok(pools);
    }
    let is_selected = |pool: &Entry<IpPool>, text: &str| {
        pool.key.name == text || text.parse::<Cidr>().is_ok_and(|cidr| pool.value.spec.range() == Ok(cidr))
    };
    match wanted.iter().find(|text| !pools.iter().any(|pool| is_selected(pool, text))) {
        Some(pool) => Err(CliError::NoSuchPool(pool.clone())),
        None => Ok(pools.into_iter().filter(|pool| wanted.iter().any(|text| is_selected(pool, text))).collect()),
    }
}

fn block_row(block: &ShownBlock) -> Row {
    row("Block", block.cidr, block.counts, block.affinity.as_deref().unwrap_or("(no owner)"))
}

/// Returns a row with the columns of `calicoctl ipam show` and two more (INST-124).
fn row(grouping: &str, cidr: Cidr, counts: Counts, name: &str) -> Row {
    let Counts { capacity, in_use, reserved, free } = counts;
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

fn percent(part: u128, whole: u128) -> u64 {
    (share(part, whole) * 100.0).round() as u64
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
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl ShownPool {
    fn new(pool_use: PoolUse, disabled: bool, with_blocks: bool) -> Self {
        let counts = Counts::new(pool_use.capacity, pool_use.in_use, pool_use.reserved, pool_use.available);
        let blocks = with_blocks.then(|| pool_use.blocks.into_iter().map(ShownBlock::new).collect());
        ShownPool { name: pool_use.name, cidr: pool_use.cidr, disabled, counts, blocks }
    }
}

impl ShownBlock {
    fn new(block_use: BlockUse) -> Self {
        let counts = Counts::new(block_use.capacity, block_use.in_use, block_use.reserved, block_use.available);
        ShownBlock { cidr: block_use.cidr, affinity: block_use.owner, counts }
    }
}

impl Counts {
    fn new(capacity: u128, in_use: u128, reserved: u128, free: u128) -> Self {
        let [capacity, in_use, reserved, free] = [capacity, in_use, reserved, free].map(Quantity);
        Counts { capacity, in_use, reserved, free }
    }
}

impl Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        exact_number(&self.0, serializer)
    }
}

impl std::fmt::Display for Quantity {
    /// Writes a number of a million or more with five significant digits, as upstream does.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 < 1_000_000 { write!(f, "{}", self.0) } else { write!(f, "{:.4e}", self.0 as f64) }
    }
}

#[cfg(test)]
mod tests {
    use libcalico::api::{IpPool, ObjectKey};
    use libcalico::ipam::Block;
    use libcalico::store::{Kind, Store};
    use serde_json::json;

    use super::{Quantity, bar, percent};
    use crate::cli::testing::Shell;
    use node_process::process::block_on;

    #[test]
    fn show_prints_pools_and_blocks_as_tables_and_json() {
        let shell = Shell::with_pool();
        for handle in ["a", "b", "c", "d"] {
            shell.allocate(handle);
        }
        let table = shell.ok(&["show", "--show-blocks"]);
        let lines: Vec<Vec<&str>> = table
            .lines()
            .filter(|line| line.starts_with("| "))
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        assert_eq!(lines[0][1..7], ["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE"]);
        let pool =
            ["IP Pool", "10.0.0.0/24", "256", "4 (2%)", "0 (0%)", "252 (98%)", "default-ipv4-ippool", "[#---------]"];
        assert_eq!(lines[1][1..9], pool);
        assert_eq!(
            (lines[2][1], lines[2][4], lines[2][7], lines[2][8]),
            ("Block", "4 (50%)", "host:node1", "[#####-----]")
        );
        assert!(!shell.ok(&["show"]).contains("Block"));

        let shown = shell.json(&["show", "--show-blocks"]);
        let pool = &shown["pools"][0];
        assert_eq!((&pool["capacity"], &pool["inUse"], &pool["free"]), (&json!(256), &json!(4), &json!(252)));
        assert_eq!(pool["blocks"][0]["affinity"], "host:node1");
        assert_eq!(pool["blocks"][0]["capacity"], 8);
        assert_eq!(shown["blocksOutsidePools"], json!([]));
        assert!(shell.ok(&["show", "-o", "yaml"]).starts_with("pools:\n- name: default-ipv4-ippool\n"));
    }

    #[test]
    fn show_selects_a_pool_by_name_or_range() {
        let shell = Shell::with_pool();
        shell.ok(&["init", "--node", "node1", "--pool", "fd00::/64"]);
        assert_eq!(shell.json(&["show"])["pools"].as_array().unwrap().len(), 2);
        for pool in ["default-ipv6-ippool", "fd00::/64"] {
            let shown = shell.json(&["show", "--pool", pool]);
            assert_eq!(shown["pools"][0]["capacity"], "18446744073709551616");
            assert_eq!(shown["pools"].as_array().unwrap().len(), 1);
        }
        assert!(shell.error(&["show", "--pool", "nope"]).contains("no pool is called `nope`"));
    }

    #[test]
    fn show_reports_an_invalid_reservation() {
        let shell = Shell::with_pool();
        shell.put(
            "/calico/resources/v3/projectcalico.org/ipreservations/r",
            r#"{"metadata":{"name":"r"},"spec":{"reservedCIDRs":["ten","10.0.0.1"]}}"#,
        );
        let ran = shell.run(&["show"]);
        assert!(ran.notices.contains("IPReservation r: ignoring the entry `ten`, which is neither"), "{}", ran.notices);
        assert!(ran.out.contains("1 (0%)"), "{}", ran.out);
    }

    #[test]
    fn show_of_an_address_in_use_names_owner_block_and_endpoint() {
        let shell = Shell::with_pool();
        let ip = shell.allocate("net.c1");
        shell.endpoint("web", &ip);
        let text = shell.ok(&["show", &format!("--ip={ip}")]);
        for expected in [
            format!("IP {ip} is in use\nHandle ID: net.c1\nSince: 2").as_str(),
            "Active Owner Attributes:\n  namespace: default\n  node: node1\n  pod: net.c1\n  timestamp: ",
            "/29 of host:node1\nPool: default-ipv4-ippool\nEndpoint: default/web on node node1\n",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        let shown = shell.json(&["show", "--ip", &ip]);
        assert_eq!((&shown["state"], &shown["handle"]), (&json!("inUse"), &json!("net.c1")));
        assert_eq!(shown["endpoints"], json!(["default/web on node node1"]));
    }

    #[test]
    fn show_finds_a_block_of_a_former_size_or_reports_an_unreadable_block() {
        let shell = Shell::with_pool();
        let ip = shell.allocate("net.c1");
        let key = ObjectKey::global("default-ipv4-ippool");
        let mut pool = block_on(shell.store.get::<IpPool>(&key)).unwrap();
        pool.value.spec.block_size = Some(32);
        block_on(shell.store.update(&key, &pool.value, &pool.revision)).unwrap();
        let shown = shell.json(&["show", "--ip", &ip]);
        assert_eq!((&shown["state"], &shown["handle"]), (&json!("inUse"), &json!("net.c1")));
        assert!(shown["block"].as_str().is_some_and(|block| block.ends_with("/29")), "{shown}");

        let (block, _) = shell.blocks().remove(0);
        shell.remove(&Block::path(&block));
        shell.put(&Block::path(&block), "{");
        let error = shell.error(&["show", "--ip", &ip]);
        assert!(error.contains(&Block::path(&block)), "{error}");
    }

    #[test]
    fn show_of_an_unassigned_address_names_its_state() {
        let shell = Shell::with_pool();
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPReservation", "metadata": {"name": "r"},
            "spec": {"reservedCIDRs": ["10.0.0.128/31"]},
        }));
        let state = |ip: &str| shell.json(&["show", "--ip", ip])["state"].clone();
        assert_eq!(state("10.0.0.200"), "free");
        assert_eq!(state("10.0.0.129"), "reserved");
        assert_eq!(state("10.9.0.1"), "notInPool");
        assert_eq!(shell.ok(&["show", "--ip", "10.9.0.1"]), "10.9.0.1 is not assigned: it is in no pool\n");
    }

    #[test]
    fn show_of_a_cooling_address_names_its_release_time() {
        let shell = Shell::with_pool();
        shell.apply(&json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPAMConfiguration", "metadata": {"name": "default"},
            "spec": {"strictAffinity": false, "ipCooldownSeconds": 600},
        }));
        let ip = shell.allocate("a");
        shell.ok(&["release", &ip]);
        let text = shell.ok(&["show", "--ip", &ip]);
        assert!(text.contains(&format!("{ip} is not assigned: it was released at 2")), "{text}");
        assert!(text.contains("cools down for 600 seconds"), "{text}");
        assert_eq!(shell.json(&["show", "--ip", &ip])["state"], "resting");
    }

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
        assert_eq!(Quantity(1 << 80).to_string(), "1.2089e24");
        assert_eq!(percent(5, 64), 8);
        assert_eq!(serde_json::to_string(&[Quantity(64), Quantity(1 << 64)]).unwrap(), "[64,\"18446744073709551616\"]");
    }
}
