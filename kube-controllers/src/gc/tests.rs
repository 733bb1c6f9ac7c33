use super::*;
use crate::logging::captured::Captured;
use crate::settings::{LogSeverity, Mode};
use crate::telemetry::Metrics;

#[tokio::test(start_paused = true)]
async fn missing_kinds_are_logged_each_minute() {
    let metrics = Metrics::new();
    let (log, _logging) = Captured::on_this_thread(LogSeverity::Info);
    let passes = PassMetrics::new(&metrics).unwrap();
    let cache = ClusterCache::new(
        Mode::Etcd,
        Index::new(GcSettings::default()),
        &mut Watches::default(),
    );
    let waited = tokio::time::timeout(
        LOG_INTERVAL * 2 + QUIET_PERIOD,
        wait_until_listed(&cache, &passes),
    )
    .await;
    assert!(waited.is_err());
    let text = log.text();
    assert_eq!(
        text.matches("IPAMBlock, Pod, Node of Kubernetes, ").count(),
        2,
        "{text}"
    );
    assert!(
        !text.contains("VirtualMachine"),
        "nobody waits for those: {text}"
    );
    let text = metrics.text().unwrap();
    assert!(
        text.contains("kube_controllers_gc_awaited{kind=\"Pod\"} 1\n"),
        "{text}"
    );
    assert!(!text.contains("kind=\"Service\""), "{text}");
}

#[test]
fn pass_of_the_leader_counts_as_one_reconcile() {
    let metrics = Metrics::new();
    let passes = PassMetrics::new(&metrics).unwrap();
    let shows = |result: &str, count: u64| {
        let text = metrics.text().unwrap();
        let line = format!(
            "controller_runtime_reconcile_total{{controller=\"gc\",result=\"{result}\"}} {count}\n"
        );
        assert!(text.contains(&line), "{line}{text}");
    };
    // A failure in a pass of a standby is not one of the leader's next pass.
    passes.count_failure("leaks");
    passes.record_reconcile(QUIET_PERIOD, false);
    passes.record_reconcile(QUIET_PERIOD, true);
    shows("success", 1);
    shows("error", 0);
    passes.count_failure("leaks");
    passes.count_failure("blocks");
    passes.record_reconcile(QUIET_PERIOD, true);
    passes.record_reconcile(QUIET_PERIOD, true);
    shows("success", 2);
    shows("error", 1);
}
