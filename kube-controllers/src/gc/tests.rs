use super::*;
use crate::logging::captured::Captured;
use crate::settings::{LogSeverity, Mode};
use crate::telemetry::Metrics;

#[tokio::test(start_paused = true)]
async fn missing_kinds_are_logged_each_minute() {
    let metrics = Metrics::new();
    let (log, _logging) = Captured::on_this_thread(LogSeverity::Info);
    let passes = PassMetrics::new(&metrics).unwrap();
    let cache = ClusterCache::new(Mode::Etcd, Index::new(GcSettings::default()), &mut Watches::default());
    let waited = tokio::time::timeout(LOG_INTERVAL * 2 + QUIET_PERIOD, wait_until_listed(&cache, &passes)).await;
    assert!(waited.is_err());
    let text = log.text();
    assert_eq!(text.matches("IPAMBlock, Pod, Node of Kubernetes, ").count(), 2, "{text}");
    assert!(!text.contains("VirtualMachine"), "nobody waits for those: {text}");
    let text = metrics.text().unwrap();
    assert!(text.contains("kube_controllers_gc_awaited{kind=\"Pod\"} 1\n"), "{text}");
    assert!(!text.contains("kind=\"Service\""), "{text}");
}
