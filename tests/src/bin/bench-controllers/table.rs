//! The tables, with the goals beside the measurements.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::filling;
use crate::migration::Migrated;
use crate::outcome::{Reclaimed, Running};

pub(crate) fn medium(
    cluster: &Cluster,
    running: &Running,
    reclaimed: Option<&Reclaimed>,
    grace: Duration,
) -> String {
    let mut rows = header(cluster, "in a real API server");
    let peak = reclaimed.map_or(running.peak, |reclaimed| reclaimed.peak);
    rows += &row("memory, peak", &mib(peak), "≤ 64 MiB");
    rows += &row("memory, settled", &mib(running.settled), "");
    rows += &common(running);
    rows + &garbage(cluster, running, reclaimed, grace, "≤ 2 s")
}

pub(crate) fn large(
    cluster: &Cluster,
    running: &Running,
    reclaimed: Option<&Reclaimed>,
    grace: Duration,
) -> String {
    let mut rows = header(cluster, "as lists and watches of our own server");
    let peak = reclaimed.map_or(running.peak, |reclaimed| reclaimed.peak);
    rows += &row("memory, peak", &mib(peak), "≤ 256 MiB");
    rows += &row("memory, settled", &mib(running.settled), "≤ 100 MiB");
    rows += &common(running);
    rows + &garbage(cluster, running, reclaimed, grace, "")
}

pub(crate) fn growth(rows: &[(usize, Running)]) -> String {
    let mut text = "| pods | changes per second | processor time of one change | memory, settled \
                    |\n|---:|---:|---:|---:|\n"
        .to_owned();
    for (pods, running) in rows {
        text += &format!(
            "| {pods} | {:.0} | {:.3} ms | {} |\n",
            running.rate,
            running.milliseconds_per_change(),
            mib(running.settled)
        );
    }
    text
}

pub(crate) fn migration(objects: usize, migrated: &Migrated) -> String {
    let mut rows = format!(
        "| {objects} objects from v1 to v3, in a real API server | measured | goal \
         |\n|---|---:|---:|\n"
    );
    for (process, peak) in [
        ("makes a dry run", migrated.dry_run_peak),
        ("copies", migrated.peak),
        ("continues until `Complete`", migrated.successor_peak),
    ] {
        rows += &row(
            &format!("memory, peak of the process that {process}"),
            &mib(peak),
            "≤ 64 MiB",
        );
    }
    rows += &row("no pod could start or end", &seconds(migrated.locked), "");
    rows += &row(
        "processor time of the process that copied",
        &format!("{:.1} s", migrated.cpu),
        "",
    );
    for (verb, count) in &migrated.requests {
        rows += &row(
            &format!("requests under the lock: {verb}"),
            &count.to_string(),
            "",
        );
    }
    rows
}

fn header(cluster: &Cluster, place: &str) -> String {
    let addresses: usize = cluster.blocks.iter().map(|block| block.holders.len()).sum();
    format!(
        "| {} nodes, {} pods, {} blocks, {addresses} addresses, {place} | measured | goal \
         |\n|---|---:|---:|\n",
        cluster.size.nodes,
        cluster.size.pods,
        cluster.blocks.len(),
    )
}

fn common(running: &Running) -> String {
    row("first lists, until synced", &seconds(running.sync), "")
        + &row(
            "first lists, processor time",
            &format!("{:.1} s", running.sync_cpu),
            "≤ 30 s",
        )
        + &row(
            &format!(
                "processor with {:.0} changes of pods per second",
                running.rate
            ),
            &format!("{:.2} %", 100.0 * running.steady_cpu),
            "≤ 1 %",
        )
}

fn garbage(
    cluster: &Cluster,
    running: &Running,
    reclaimed: Option<&Reclaimed>,
    grace: Duration,
    goal: &str,
) -> String {
    let (leaked, blocks) = (filling::leaked(cluster), cluster.size.leaking_blocks);
    let what = format!("{leaked} leaked addresses in {blocks} blocks");
    let Some(reclaimed) = reclaimed else {
        return row(&what, "not taken back", "");
    };
    // Garbage collection starts when all lists are complete.
    let late = |time: Duration| seconds(time.saturating_sub(running.sync + grace));
    row(
        &format!("{what}: free again, after the end of the grace period"),
        &late(reclaimed.freed),
        goal,
    ) + &row("… their handles gone", &late(reclaimed.done), "")
        + &row(
            "… writes of blocks",
            &reclaimed.blocks_written.to_string(),
            &format!("≤ {blocks}"),
        )
        + &row(
            "… deletions of handles",
            &reclaimed.handles_deleted.to_string(),
            &format!("≤ {leaked}"),
        )
        + &row(
            "… processor time, with the changes meanwhile",
            &format!("{:.1} s", reclaimed.cpu),
            "",
        )
}

fn row(what: &str, measured: &str, goal: &str) -> String {
    format!("| {what} | {measured} | {goal} |\n")
}

fn mib(mib: f64) -> String {
    format!("{mib:.0} MiB")
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
