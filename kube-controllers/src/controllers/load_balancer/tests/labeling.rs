use std::cell::Cell;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::super::*;
use crate::leader::LeadershipTerm;

#[tokio::test(start_paused = true)]
async fn labeling_restarts_when_the_replica_leads_again() {
    let (sender, term) = watch::channel(LeadershipTerm::No);
    let (begun, ended) = (Cell::new(0), Cell::new(0));
    let work = || async {
        begun.set(begun.get() + 1);
        sleep(Duration::from_secs(10)).await;
        ended.set(ended.get() + 1);
        Ok(true)
    };
    let leading = async {
        for (term, expected) in [
            (LeadershipTerm::No, 0),
            (LeadershipTerm::Always, 1),
            (LeadershipTerm::No, 1),
            (LeadershipTerm::Always, 2),
        ] {
            sender.send_replace(term);
            sleep(Duration::from_secs(5)).await;
            assert_eq!((begun.get(), ended.get()), (expected, 0));
        }
    };
    tokio::join!(retry_until_done(Leadership::new(term), work), leading);
    assert_eq!(
        (begun.get(), ended.get()),
        (2, 1),
        "what was cut off did not go on"
    );
}

#[tokio::test(start_paused = true)]
async fn failed_labeling_is_retried_with_growing_pauses() {
    let (begin, times) = (Instant::now(), Cell::new(0));
    let work = || async {
        times.set(times.get() + 1);
        if times.get() < 4 {
            Err(StoreError::Other("away".into()))
        } else {
            Ok(true)
        }
    };
    retry_until_done(Leadership::always(), work).await;
    assert_eq!(
        (times.get(), begin.elapsed()),
        (4, FIRST_PAUSE * (1 + 2 + 4))
    );
}
