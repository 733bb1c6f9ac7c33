//! The figures as the Markdown of the README.

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use crate::pods::{Crowd, Details, OneAfterAnother, Series};
use crate::sample::{Sample, ms};
use crate::stores::Costs;

/// What the issue allows an ADD beyond floor and datastore.
const ALLOWANCE: Duration = Duration::from_millis(2);

/// Upstream's ADD and DEL of one IPv4 pod on a local etcd of this kind of machine, milliseconds (issue 3).
const UPSTREAM: [f64; 2] = [146.0, 129.0];

/// Rows of figures, group by group.
#[derive(Default)]
pub(crate) struct Table {
    text: String,
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Table {
    fn line(&mut self, line: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn heading(&mut self, columns: &[&str]) {
        if !self.text.is_empty() {
            self.line("");
        }
        self.line(&format!("| {} |", columns.join(" | ")));
        self.line(&format!("|---{}|", "|---:".repeat(columns.len() - 1)));
    }

    fn times(&mut self, name: &str, sample: &Sample, more: &str) {
        self.line(&format!("| {name} | {} | {} | {more} |", ms(sample.p50()), ms(sample.min())));
    }

    /// The kernel's share.
    pub(crate) fn floor(&mut self, series: &OneAfterAnother) {
        self.heading(&["alone", "p50 ms", "min ms", "CPU ms"]);
        let cpu = |series: &Series| ms(series.cpu.p50());
        self.times("floor: netlink messages of an IPv4 ADD", &series.floor.wall, &cpu(&series.floor));
        let with_sysctls = &series.floor_with_sysctls;
        self.times("floor and kernel settings", &with_sysctls.wall, &cpu(with_sysctls));
    }

    /// The datastores' share.
    pub(crate) fn stores(&mut self, [local, etcd]: &[Costs; 2]) {
        for (name, sample) in [
            ("one SQLite read", &local.read),
            ("one SQLite commit", &local.write),
            ("SQLite: open and read", &local.first_read),
            ("one etcd read", &etcd.read),
            ("one etcd write", &etcd.write),
            ("etcd: connect and read", &etcd.first_read),
        ] {
            self.times(name, sample, "");
        }
    }

    /// ADD and DEL against the floor, the budget and upstream.
    pub(crate) fn operations(&mut self, series: &OneAfterAnother, costs: &[Costs; 2], details: &[Details; 2]) {
        let floor = series.floor.wall.p50();
        self.heading(&[
            "one IPv4 pod",
            "p50 ms",
            "min ms",
            "CPU ms",
            "peak RSS MiB",
            "requests",
            "÷ floor",
            "budget ms",
            "upstream ÷ ours",
        ]);
        // The writes of an ADD are the same on both datastores.
        let writes = details.iter().find_map(|detail| detail.commits).unwrap_or_default();
        for ((operations, costs), detail) in series.operations.iter().zip(costs).zip(details) {
            let reads = detail.timings.requests[0].saturating_sub(writes);
            let waits = times(costs.write.p50(), writes)
                + times(costs.read.p50(), if detail.name == "etcd" { reads } else { 0 });
            let budget = ms(floor + waits + ALLOWANCE);
            for (index, (verb, series)) in [("ADD", &operations.0), ("DEL", &operations.1)].into_iter().enumerate() {
                let wall = series.wall.p50();
                let upstream = UPSTREAM[index] / (wall.as_secs_f64() * 1e3);
                self.line(&format!(
                    "| {verb} on {} | {} | {} | {} | {:.1} | {} | {:.1} | {} | {} |",
                    detail.name,
                    ms(wall),
                    ms(series.wall.min()),
                    ms(series.cpu.p50()),
                    detail.peak_rss[index] as f64 / 1024.0,
                    detail.timings.requests[index],
                    wall.as_secs_f64() / floor.as_secs_f64(),
                    if index == 0 { budget.as_str() } else { "" },
                    if detail.name == "etcd" { format!("{upstream:.0}") } else { String::new() },
                ));
            }
        }
    }

    /// Many at once.
    pub(crate) fn crowds(&mut self, crowds: &[Crowd]) {
        self.heading(&["100 ADDs at once", "per second", "p50 ms", "p99 ms"]);
        for crowd in crowds {
            let per_second = crate::PODS as f64 / crowd.all.as_secs_f64();
            let (p50, p99) = (ms(crowd.each.p50()), ms(crowd.each.percentile(99)));
            self.line(&format!("| {} | {per_second:.0} | {p50} | {p99} |", crowd.name));
        }
        self.line("| upstream on etcd | 9.6 | | |");
    }

    /// The binary itself.
    pub(crate) fn program(&mut self, start: &Sample, size: u64) {
        self.heading(&["the program", ""]);
        self.line(&format!("| one binary for both names | {:.1} MiB |", size as f64 / 1024.0 / 1024.0));
        self.line(&format!("| `calico -v`, p50 | {} ms |", ms(start.p50())));
    }

    /// Where the time of an ADD goes.
    pub(crate) fn stages(&mut self, details: &[Details; 2]) {
        let names: Vec<&str> = details[0].timings.stages.iter().map(|(name, _)| name.as_str()).collect();
        let columns: Vec<&str> =
            ["stages of an ADD, µs (p50)"].into_iter().chain(names).chain(["system calls"]).collect();
        self.heading(&columns);
        for detail in details {
            let stages: Vec<String> = columns[1..columns.len() - 1]
                .iter()
                .map(|name| {
                    detail
                        .timings
                        .stages
                        .iter()
                        .find(|(found, _)| found == name)
                        .map_or(String::new(), |(_, us)| us.to_string())
                })
                .collect();
            self.line(&format!("| {} | {} | {} |", detail.name, stages.join(" | "), detail.system_calls));
        }
    }
}

fn times(duration: Duration, count: u64) -> Duration {
    duration * u32::try_from(count).unwrap_or(u32::MAX)
}
