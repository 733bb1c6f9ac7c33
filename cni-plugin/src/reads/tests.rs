//! Tests of the time that calls wait for a busy API server, on a clock that the test advances.

use std::time::Duration;

use netconf::Code;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::del;
use crate::testing::{ApiServer, Clock, Reply, context};

fn busy(_: &str) -> Option<Reply> {
    Some(Reply {
        after: Duration::ZERO,
        status: 429,
        body: json!({ "kind": "Status", "reason": "TooManyRequests" }),
    })
}

#[tokio::test(start_paused = true)]
async fn add_on_a_busy_api_server_fails_after_110_seconds() {
    let (clock, server, files) = (
        Clock::stop(),
        ApiServer::start(busy).await,
        tempfile::tempdir().unwrap(),
    );
    let begun = Instant::now();
    let cx = context("ADD", &server, files.path());
    let error = clock
        .run_until(ensure_cluster_is_ready(&cx))
        .await
        .unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 110, "{:?}", server.requests());
    assert!(
        error.code == Code::TRY_AGAIN && error.msg.contains("429"),
        "{error:?}"
    );
}

/// The test `del_killed_on_a_busy_server_has_removed_the_interface_and_is_replayed` shows that the
/// deferred DEL is recorded before the wait.
#[tokio::test(start_paused = true)]
async fn del_on_a_busy_api_server_succeeds_after_45_seconds_and_is_deferred() {
    let (clock, server, files) = (
        Clock::stop(),
        ApiServer::start(busy).await,
        tempfile::tempdir().unwrap(),
    );
    let begun = Instant::now();
    let cx = context("DEL", &server, files.path());
    clock.run_until(del::del(&cx)).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 45, "{:?}", server.requests());
    let [(_, pending_del)] = &cx.journal.entries_of("net1", "c1", "eth0").unwrap()[..] else {
        panic!("one deferred DEL")
    };
    assert!(pending_del.reason.contains("429"), "{}", pending_del.reason);
}
