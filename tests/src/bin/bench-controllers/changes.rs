//! Pod changes at a constant rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Changes in progress. They stop on drop.
pub(crate) struct Changes {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Changes {
    /// Calls `change` with the number of the change, `rate` times per second, spread over `threads`
    /// threads.
    pub(crate) fn start(
        rate: u32,
        threads: u32,
        change: impl Fn(u64) + Send + Clone + 'static,
    ) -> Changes {
        let (stop, made) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let run = |thread: u32| {
            let (stop, made, change) = (stop.clone(), made.clone(), change.clone());
            thread::spawn(move || {
                let begin = Instant::now();
                for round in 0_u32.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    change(u64::from(round) * u64::from(threads) + u64::from(thread));
                    made.fetch_add(1, Ordering::Relaxed);
                    let due = begin + Duration::from_secs(1) * (round + 1) * threads / rate;
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                }
            })
        };
        let threads = (0..threads).map(run).collect();
        Changes {
            stop,
            made,
            threads,
        }
    }

    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
