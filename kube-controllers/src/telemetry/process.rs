//! Metrics of the process itself, read at each scrape.

use procfs::process::{LimitValue, Process, Stat};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};

/// The `process_*` metrics, with the names that every exporter uses.
#[derive(Clone)]
pub(super) struct ProcessMetrics {
    processor_time: Counter,
    gauges: Vec<(Gauge, Read)>,
    descriptions: Vec<Desc>,
}

/// Reads one value from the kernel's data.
type Read = fn(&Process, &Stat) -> Option<f64>;

const GAUGES: [(&str, &str, Read); 6] = [
    ("process_resident_memory_bytes", "Memory in use.", |_, stat| Some((stat.rss * procfs::page_size()) as f64)),
    ("process_virtual_memory_bytes", "Address space in use.", |_, stat| Some(stat.vsize as f64)),
    ("process_threads", "Threads.", |_, stat| Some(stat.num_threads as f64)),
    ("process_open_fds", "Open files.", |process, _| process.fd_count().ok().map(|count| count as f64)),
    ("process_max_fds", "How many files may be open.", |process, _| {
        match process.limits().ok()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit as f64),
            LimitValue::Unlimited => Some(f64::INFINITY),
        }
    }),
    ("process_start_time_seconds", "When the process was started, in seconds since 1970.", |_, stat| {
        Some(procfs::boot_time_secs().ok()? as f64 + stat.starttime as f64 / procfs::ticks_per_second() as f64)
    }),
];

impl ProcessMetrics {
    pub(super) fn new() -> prometheus::Result<Self> {
        let processor_time = Counter::new("process_cpu_seconds_total", "Processor time spent, user and system.")?;
        let mut gauges = Vec::new();
        for (name, help, read) in GAUGES {
            gauges.push((Gauge::new(name, help)?, read));
        }
        let of_gauges = gauges.iter().flat_map(|(gauge, _)| gauge.desc());
        let descriptions = of_gauges.chain(processor_time.desc()).cloned().collect();
        Ok(ProcessMetrics { processor_time, gauges, descriptions })
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Ok((process, stat)) = Process::myself().and_then(|process| process.stat().map(|stat| (process, stat)))
        else {
            return Vec::new();
        };
        let spent = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
        self.processor_time.inc_by((spent - self.processor_time.get()).max(0.0));
        let mut families = self.processor_time.collect();
        for (gauge, read) in &self.gauges {
            if let Some(value) = read(&process, &stat) {
                gauge.set(value);
                families.extend(gauge.collect());
            }
        }
        families
    }
}
