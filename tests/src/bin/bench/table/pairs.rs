//! The table of the embedded datastore and etcd.

use super::{Table, mib};
use crate::budget;
use crate::pairs::Measured;
use crate::pods::{OneAfterAnother, Series};
use crate::sample::ms;
use crate::stores::Costs;

impl Table {
    pub(crate) fn pairs(&mut self, measured: &Measured) {
        self.heading(&["alone", "p50 ms", "min ms", "CPU ms"]);
        self.floor(&measured.series);
        self.stores(&measured.costs);
        self.operations(measured);
    }

    pub(super) fn floor<const N: usize>(&mut self, series: &OneAfterAnother<N>) {
        let mut line =
            |name, series: &Series| self.times(name, &series.wall, &ms(series.cpu.p50()));
        line("floor: netlink messages of an IPv4 ADD", &series.floor);
        line("floor and kernel settings", &series.floor_with_sysctls);
    }

    fn stores(&mut self, [local, etcd]: &[Costs; 2]) {
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

    fn operations(
        &mut self,
        Measured {
            costs,
            series,
            details,
            ..
        }: &Measured,
    ) {
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
        ]);
        // An ADD makes the same writes on both datastores.
        let writes = details
            .iter()
            .find_map(|detail| detail.commits)
            .unwrap_or_default();
        for ((operations, costs), detail) in series.operations.iter().zip(costs).zip(details) {
            let remote = detail.name == "etcd";
            let reads = if remote {
                detail.timings.requests[0].saturating_sub(writes)
            } else {
                0
            };
            let budget = ms(budget::on_pairs(floor, costs, reads, writes));
            for (index, (verb, series)) in [("ADD", &operations.0), ("DEL", &operations.1)]
                .into_iter()
                .enumerate()
            {
                let wall = series.wall.p50();
                self.row([
                    format!("{verb} on {}", detail.name),
                    ms(wall),
                    ms(series.wall.min()),
                    ms(series.cpu.p50()),
                    mib(detail.peak_rss[index]),
                    detail.timings.requests[index].to_string(),
                    format!("{:.1}", wall.as_secs_f64() / floor.as_secs_f64()),
                    if index == 0 {
                        budget.clone()
                    } else {
                        String::new()
                    },
                ]);
            }
        }
    }
}
