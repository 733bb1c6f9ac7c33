//! Another program, such as a second implementation of load balancers, writes the status of a
//! Service too.

use super::*;

const THEIRS: &str = "192.0.2.1";

impl Serving {
    /// Writes the status as another program does.
    fn overwrite_status(&self) {
        let status = json!({"loadBalancer": {"ingress": [{"ip": THEIRS}]}});
        self.server.lock().unwrap().service["status"] = status;
    }
}

#[tokio::test]
async fn status_that_another_program_overwrites_is_written_a_few_times_and_named_once() {
    let serving = Serving::served(wants("10.0.0.5")).await;
    let mut next = NextReconcile::AwaitChange;
    for _ in 0..20 {
        serving.overwrite_status();
        next = serving.look().await;
    }
    assert!(
        matches!(next, NextReconcile::After(left) if left > CACHE_LAG),
        "{next:?}"
    );
    assert!((3..=5).contains(&serving.written().len()), "few writes");
    assert_eq!(
        (serving.held().await, serving.shown()),
        (texts(&["10.0.0.5"]), texts(&[THEIRS]))
    );
    let events: Vec<Value> = serving.server.lock().unwrap().events.clone();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["reason"], "StatusOverwritten");
    let text = events[0]["message"].as_str().unwrap();
    assert!(
        text.contains("[192.0.2.1]") && text.contains("[10.0.0.5]"),
        "{text}"
    );
}

/// The status may still show the former address, and the other program may write it again.
#[tokio::test]
async fn new_request_is_served_although_the_former_status_was_overwritten() {
    let serving = Serving::served(wants("10.0.0.5")).await;
    for _ in 0..10 {
        serving.overwrite_status();
        serving.look().await;
    }
    serving.written();
    serving.annotate(wants("10.0.0.7"));
    serving.look().await;
    assert_eq!(
        (serving.held().await, serving.shown()),
        (texts(&["10.0.0.7"]), texts(&["10.0.0.7"]))
    );
}
