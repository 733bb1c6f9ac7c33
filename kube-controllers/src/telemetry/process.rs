//! [`ProcessMetrics`]: the `process_*` metrics, with the names that every exporter uses.

use node_process::metrics;
use procfs::process::{LimitValue, Process};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};

metrics! {
    struct ProcessFamilies {
        /// Processor time spent, user and system.
        processor_time: Counter = "process_cpu_seconds_total",
        /// Memory in use.
        resident: Gauge = "process_resident_memory_bytes",
        /// Address space in use.
        address_space: Gauge = "process_virtual_memory_bytes",
        /// Threads.
        threads: Gauge = "process_threads",
        /// Open files.
        open_files: Gauge = "process_open_fds",
        /// Maximum number of open files.
        max_files: Gauge = "process_max_fds",
        /// Time at which the process was started, in seconds since 1970.
        started: Gauge = "process_start_time_seconds",
    }
}

/// The metrics of this process, read from the kernel at each scrape. Values that are unreadable are
/// left out.
#[derive(Clone)]
pub(super) struct ProcessMetrics(ProcessFamilies);

impl ProcessMetrics {
    pub(super) fn new() -> Self {
        ProcessMetrics(ProcessFamilies::new())
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let read = Process::myself().and_then(|process| process.stat().map(|stat| (process, stat)));
        let (Ok((process, stat)), shown) = (read, &self.0) else {
            return Vec::new();
        };
        let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
        let used = seconds(stat.utime + stat.stime);
        shown
            .processor_time
            .inc_by((used - shown.processor_time.get()).max(0.0));
        let resident = (stat.rss * procfs::page_size()) as f64;
        let boot = procfs::boot_time_secs().ok();
        let gauges = [
            (&shown.resident, Some(resident)),
            (&shown.address_space, Some(stat.vsize as f64)),
            (&shown.threads, Some(stat.num_threads as f64)),
            (
                &shown.open_files,
                process.fd_count().ok().map(|count| count as f64),
            ),
            (&shown.max_files, max_open_files(&process)),
            (
                &shown.started,
                boot.map(|boot| boot as f64 + seconds(stat.starttime)),
            ),
        ];
        let mut families = shown.processor_time.collect();
        for (gauge, value) in gauges {
            if let Some(value) = value {
                gauge.set(value);
                families.extend(gauge.collect());
            }
        }
        families
    }
}

fn max_open_files(process: &Process) -> Option<f64> {
    match process.limits().ok()?.max_open_files.soft_limit {
        LimitValue::Value(limit) => Some(limit as f64),
        LimitValue::Unlimited => Some(f64::INFINITY),
    }
}
