//! The tables and sentences of `usage`.

use comfy_table::{Cell, CellAlignment, Row};
use libcalico::ipam::{
    FragmentedBlock, FragmentedBy, FullestNode, NodeUsage, PodsFit, PoolService, PoolUsage,
};

use super::shown::ShownUsage;
use crate::cli::app::App;
use crate::cli::documents::{new_table, print_table, table_cell};
use crate::cli::error::CliError;
use crate::cli::show::Quantity;

const POOLS: [&str; 13] = [
    "POOL",
    "CIDR",
    "FOR",
    "IPS TOTAL",
    "IN USE",
    "COOLING",
    "RESERVED",
    "BLOCKS",
    "EMPTY",
    "SPARSE",
    "UNCLAIMED",
    "FREE",
    "FULLEST NODE",
];
const NODES: [&str; 8] = [
    "NODE",
    "FAMILY",
    "BLOCKS",
    "IN USE",
    "BORROWED",
    "LENT",
    "FREE IN BLOCKS",
    "PODS FIT",
];
const NAMESPACES: [&str; 3] = ["NAMESPACE", "IPV4", "IPV6"];
const FRAGMENTED: [&str; 6] = [
    "FRAGMENTED BLOCK",
    "POOL",
    "OWNER",
    "IN USE",
    "FREE",
    "REASON",
];

pub(super) fn print(shown: &ShownUsage, app: &mut App<'_>) -> Result<(), CliError> {
    if let Some(pools) = &shown.pools {
        print_rows(POOLS, pools.iter().map(pool_row), app)?;
    }
    if let Some(nodes) = &shown.nodes {
        print_rows(NODES, nodes.iter().map(node_row), app)?;
    }
    if let Some(namespaces) = &shown.namespaces {
        let row = |namespace: &str, ipv4: u64, ipv6: u64| {
            Row::from(vec![
                table_cell(namespace),
                number(ipv4.into()),
                number(ipv6.into()),
            ])
        };
        let rows = namespaces
            .iter()
            .map(|found| row(&found.namespace, found.used.ipv4, found.used.ipv6));
        print_rows(NAMESPACES, rows, app)?;
    }
    if let Some(fragmented) = shown
        .fragmented
        .as_ref()
        .filter(|fragmented| !fragmented.blocks.is_empty())
    {
        print_rows(
            FRAGMENTED,
            fragmented.blocks.iter().map(fragmented_row),
            app,
        )?;
    }
    print_sentences(shown, app)
}

fn print_sentences(shown: &ShownUsage, app: &mut App<'_>) -> Result<(), CliError> {
    if let Some(addresses) = shown
        .outside_pools
        .map(|outside| outside.sum())
        .filter(|addresses| *addresses > 0)
    {
        app.print_line(format_args!("in use in blocks of no pool: {addresses}"))?;
    }
    if let Some(addresses) = shown
        .without_node
        .map(|without| without.sum())
        .filter(|addresses| *addresses > 0)
    {
        app.print_line(format_args!("in use without a node: {addresses}"))?;
    }
    if let Some(borrowed) = shown
        .borrowed
        .as_ref()
        .filter(|borrowed| !borrowed.rows.is_empty())
    {
        let count = borrowed.rows.len();
        app.print_line(format_args!(
            "in use in blocks of other owners: {count}; `calico-ipam show --show-borrowed` lists \
             them"
        ))?;
    }
    if let Some(fragmented) = shown
        .fragmented
        .as_ref()
        .filter(|fragmented| !fragmented.blocks.is_empty())
    {
        app.print_line(format_args!(
            "free in fragmented blocks: {}",
            fragmented.free
        ))?;
    }
    for fit in shown.fits.iter().flatten() {
        let PodsFit {
            version,
            pods,
            on_request,
        } = fit;
        app.print_line(format_args!(
            "more pods with IPv{version}: at most {}",
            Quantity(*pods)
        ))?;
        if *on_request > 0 {
            let on_request = Quantity(*on_request);
            app.print_line(format_args!(
                "more pods with IPv{version} that name their pool: at most {on_request}"
            ))?;
        }
    }
    Ok(())
}

fn print_rows<const N: usize>(
    header: [&str; N],
    rows: impl Iterator<Item = Row>,
    app: &mut App<'_>,
) -> Result<(), CliError> {
    let mut table = new_table(header);
    for row in rows {
        table.add_row(row);
    }
    print_table(app.out, &table)
}

fn pool_row(pool: &PoolUsage) -> Row {
    let serves = match pool.serves {
        PoolService::Pods => "pods",
        PoolService::OnRequest => "pods that name it",
        PoolService::OtherUses => "other uses",
        PoolService::OutOfService => "nothing",
    };
    let counts = [
        pool.capacity,
        pool.used.into(),
        pool.cooling.into(),
        pool.reserved,
        pool.blocks.into(),
        pool.empty_blocks.into(),
        pool.sparse_blocks.into(),
        pool.unclaimed_blocks,
        pool.free,
    ];
    let fullest = pool.fullest_node.as_ref();
    let fullest =
        fullest.map(|FullestNode { node, addresses }| format!("{} ({node})", Quantity(*addresses)));
    Row::from(
        [
            table_cell(&pool.name),
            Cell::new(pool.cidr),
            Cell::new(serves),
        ]
        .into_iter()
        .chain(counts.map(number))
        .chain([table_cell(fullest.as_deref().unwrap_or("(none)"))])
        .collect::<Vec<_>>(),
    )
}

fn node_row(node: &NodeUsage) -> Row {
    let NodeUsage {
        blocks,
        used,
        borrowed,
        lent,
        free,
        ..
    } = *node;
    let fits = node
        .fits
        .map_or_else(|| Cell::new("(no such node)"), number);
    let counts = [blocks, used, borrowed, lent, free].map(|count| number(count.into()));
    Row::from(
        [
            table_cell(&node.node),
            Cell::new(format_args!("IPv{}", node.version)),
        ]
        .into_iter()
        .chain(counts)
        .chain([fits])
        .collect::<Vec<_>>(),
    )
}

fn fragmented_row(block: &FragmentedBlock) -> Row {
    let reason = |by: &FragmentedBy| match by {
        FragmentedBy::FewAddresses => "few addresses",
        FragmentedBy::NoOwner => "no owner",
        FragmentedBy::FormerSize => "former size",
    };
    let reasons: Vec<&str> = block.reasons.iter().map(reason).collect();
    Row::from(vec![
        Cell::new(block.cidr),
        table_cell(block.pool.as_deref().unwrap_or("(no pool)")),
        table_cell(block.owner.as_deref().unwrap_or("(no owner)")),
        number(block.used.into()),
        number(block.free.into()),
        Cell::new(reasons.join(", ")),
    ])
}

fn number(count: u128) -> Cell {
    Cell::new(Quantity(count)).set_alignment(CellAlignment::Right)
}
