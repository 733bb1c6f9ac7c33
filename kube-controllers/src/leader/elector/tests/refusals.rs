use std::time::Duration;

use tokio::time::advance;

use super::super::*;

/// Advances the clock by `seconds` and records a refusal. Returns true if the refusals have lasted
/// longer than a Lease and a write.
async fn after(refusals: &mut RefusalLog, seconds: u64) -> bool {
    advance(Duration::from_secs(seconds)).await;
    refusals.record(&Timing::default())
}

#[tokio::test(start_paused = true)]
async fn refusals_become_lasting_after_a_lease_and_a_write_timeout() {
    let mut refusals = RefusalLog::default();
    assert!(refusals.series.is_none());
    assert!(!after(&mut refusals, 0).await);
    for _ in 0..12 {
        assert!(!after(&mut refusals, 2).await);
    }
    assert!(after(&mut refusals, 2).await);
    refusals.clear();
    assert!(refusals.series.is_none());
    assert!(!after(&mut refusals, 2).await, "anew");
}

#[tokio::test(start_paused = true)]
async fn long_silence_between_refusals_restarts_the_count() {
    let mut refusals = RefusalLog::default();
    assert!(!after(&mut refusals, 0).await);
    assert!(!after(&mut refusals, 60).await);
    assert!(!after(&mut refusals, 9).await);
    assert!(!after(&mut refusals, 9).await);
    assert!(after(&mut refusals, 9).await);
}
