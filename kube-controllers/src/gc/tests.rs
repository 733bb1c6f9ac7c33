use std::sync::{Arc, Mutex};

use super::*;
use crate::context::Mode;
use crate::telemetry::Metrics;

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn kinds_that_do_not_come_are_named_each_minute() {
    let (log, metrics) = (Log::default(), Metrics::new());
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let passes = PassMetrics::new(&metrics).unwrap();
    let known = Known::new(Mode::Etcd, Index::new(Settings::default()), &mut Feeds::default());
    let waited = tokio::time::timeout(REMINDER * 2 + SILENCE, until_complete(&known, &passes)).await;
    assert!(waited.is_err());
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.matches("IPAMBlock, Pod, Node of Kubernetes, ").count(), 2, "{text}");
    assert!(!text.contains("VirtualMachine"), "nobody waits for those: {text}");
    let text = metrics.text().unwrap();
    assert!(text.contains("kube_controllers_gc_awaited{kind=\"Pod\"} 1\n"), "{text}");
    assert!(!text.contains("kind=\"Service\""), "{text}");
}
