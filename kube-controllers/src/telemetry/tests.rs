use std::collections::BTreeSet;
use std::time::Duration;

use libcalico::kubernetes::ApiVerb;
use procfs::process::Process;

use super::*;

fn families(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn scrape_of_a_new_process_has_the_process_metrics() {
    let text = Metrics::new().text().expect("encodes");
    let expected = [
        "calico_migration_duration_seconds",
        "kube_controllers_build_info",
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_threads",
        "process_virtual_memory_bytes",
    ];
    assert_eq!(
        families(&text),
        expected.map(str::to_owned).into(),
        "{text}"
    );
    assert!(
        text.contains("\ncalico_migration_duration_seconds_bucket{le=\"16384\"} 0\n"),
        "{text}"
    );
    assert!(
        text.contains("\ncalico_migration_duration_seconds_bucket{le=\"1\"} 0\n"),
        "{text}"
    );
}

#[test]
fn process_metrics_match_proc_self() {
    let text = Metrics::new().text().expect("encodes");
    let value = |name: &str| -> f64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.expect("a sample").parse().expect("a number")
    };
    let status = Process::myself()
        .and_then(|process| process.status())
        .expect("/proc/self/status");
    let resident = status.vmrss.expect("VmRSS") as f64 * 1024.0;
    let shown = value("process_resident_memory_bytes");
    assert!((resident - shown).abs() < 16e6, "{resident} {shown}");
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_secs_f64();
    assert!((now - value("process_start_time_seconds")).abs() < 3600.0);
    assert!(
        value("process_open_fds") >= 3.0 && value("process_max_fds") >= value("process_open_fds")
    );
}

#[test]
fn controller_metrics_are_removed_with_their_controllers() {
    let metrics = Metrics::new();
    let counter = || {
        prometheus::IntCounter::new("kube_controllers_of_a_test_total", "Of a test.")
            .expect("a valid name")
    };
    let shown = || {
        metrics
            .text()
            .expect("encodes")
            .contains("\nkube_controllers_of_a_test_total 0\n")
    };
    metrics.register(counter()).expect("the first");
    assert!(shown());
    metrics
        .register(counter())
        .expect_err("one of that name is there");
    metrics.worker("policy").panics.inc();
    metrics.remove_controllers();
    assert!(!shown());
    metrics
        .register(counter())
        .expect("the first of another life");
    assert!(shown());
    assert_eq!(
        metrics.worker("policy").panics.get(),
        1,
        "what belongs to the process stays"
    );
}

#[test]
fn metrics_text_is_sorted_by_name() {
    let metrics = everything();
    metrics
        .register(prometheus::IntGauge::new("aaa", "First.").expect("a valid name"))
        .expect("the first");
    let text = metrics.text().expect("encodes");
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .collect();
    assert!(names.is_sorted() && names[0] == "aaa gauge", "{names:?}");
}

#[test]
fn no_process_metric_name_occurs_in_the_help_of_another_metric() {
    let metrics = everything();
    let families = metrics.gather();
    assert!(
        families
            .iter()
            .any(|family| family.name().starts_with("process_"))
    );
    for one in &families {
        for other in &families {
            assert!(
                !other.help().contains(one.name()),
                "{} is in the help of {}",
                one.name(),
                other.name()
            );
        }
    }
}

/// Returns all metrics of this module, each with a sample.
fn everything() -> Metrics {
    let metrics = Metrics::new();
    metrics.worker("policy");
    metrics.in_progress("policy");
    metrics.reconciles("policy");
    metrics
        .request_observer()
        .finished(ApiVerb::Get, "pods", Some(200), Duration::from_millis(1));
    metrics.watch("Pod");
    metrics.set_leader("calico-kube-controllers", true);
    metrics
}
