use std::fmt::Display;
use std::time::Duration;

use libcalico::failure::Failure;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Component, Status};

/// First time limit of a response. The limit doubles up to [`LONGEST_TIMEOUT`] while a check fails.
const TIMEOUT: Duration = Duration::from_secs(4);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(16);
/// Pause after a pass in which both checks succeeded. After a failure, the pause is
/// [`FAILURE_CHECK_INTERVAL`].
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
const FAILURE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Keeps `CalicoDatastore` and `KubeAPIServer` of `status` up to date until `stop`, and removes
/// them then. `datastore` initializes the datastore if necessary and checks that it responds.
/// `api_server` requests `/healthz`; its error is the text after `Error reaching apiserver: `.
pub async fn watch_health<E: Display, F: Display>(
    status: Status,
    datastore: impl AsyncFn() -> Result<(), E>,
    api_server: impl AsyncFn() -> Result<(), F>,
    stop: CancellationToken,
) {
    status.require([Component::CalicoDatastore, Component::KubeApiServer]);
    let mut limit = TIMEOUT;
    let passes = async {
        loop {
            // The checks run concurrently, so that one without a response does not delay the other.
            let (stored, served) =
                tokio::join!(probe(limit, datastore()), probe(limit, api_server()));
            let ready = stored.is_ok() && served.is_ok();
            record(
                &status,
                Component::CalicoDatastore,
                "Error verifying datastore",
                stored,
            );
            record(
                &status,
                Component::KubeApiServer,
                "Error reaching apiserver",
                served,
            );
            limit = if ready {
                TIMEOUT
            } else {
                (limit * 2).min(LONGEST_TIMEOUT)
            };
            sleep(if ready {
                CHECK_INTERVAL
            } else {
                FAILURE_CHECK_INTERVAL
            })
            .await;
        }
    };
    stop.run_until_cancelled(passes).await;
    status.remove(Component::CalicoDatastore);
    status.remove(Component::KubeApiServer);
}

async fn probe<E: Display>(
    limit: Duration,
    check: impl Future<Output = Result<(), E>>,
) -> Result<(), Failure> {
    let answered = timeout(limit, check).await;
    let answered =
        answered.map_err(|_| Failure::new(format_args!("no answer within {limit:?}")))?;
    answered.map_err(Failure::new)
}

fn record(status: &Status, component: Component, what: &str, result: Result<(), Failure>) {
    match result {
        Ok(()) => status.ready(component),
        Err(reason) => _ = status.not_ready(component, format!("{what}: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use tokio::time::Instant;

    use super::*;

    fn status() -> (tempfile::TempDir, Status) {
        let directory = tempfile::tempdir().expect("a directory");
        let status = Status::new(directory.path().join("status.json"));
        (directory, status)
    }

    fn reasons(status: &Status) -> Vec<String> {
        status
            .readiness()
            .into_values()
            .map(|condition| condition.reason)
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn health_failures_are_reported_and_rechecked_more_often() {
        let (_directory, status) = status();
        let (begin, asked) = (Instant::now(), RefCell::new(Vec::new()));
        let datastore = async || {
            asked.borrow_mut().push(begin.elapsed().as_secs());
            if begin.elapsed().as_secs() < 5 {
                Err("locked")
            } else {
                Ok(())
            }
        };
        let api_server = async || Ok::<_, Infallible>(());
        let watch = watch_health(
            status.clone(),
            datastore,
            api_server,
            CancellationToken::new(),
        );
        tokio::select! {
            () = watch => unreachable!("it was not stopped"),
            () = async {
                sleep(Duration::from_secs(1)).await;
                assert_eq!(reasons(&status), ["Error verifying datastore: locked", ""]);
                sleep(Duration::from_secs(30)).await;
                assert!(status.is_ready());
            } => {}
        }
        assert_eq!(*asked.borrow(), [0, 2, 4, 6, 16, 26]);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_server_gets_a_longer_timeout_and_does_not_hide_the_other_check() {
        let (_directory, status) = status();
        let (begin, asked) = (Instant::now(), RefCell::new(Vec::new()));
        let api_server = async || {
            asked.borrow_mut().push(begin.elapsed().as_secs());
            std::future::pending::<Result<(), Infallible>>().await
        };
        let datastore = async || Ok::<_, Infallible>(());
        let watch = watch_health(
            status.clone(),
            datastore,
            api_server,
            CancellationToken::new(),
        );
        assert!(timeout(Duration::from_secs(60), watch).await.is_err());
        assert_eq!(
            *asked.borrow(),
            [0, 6, 16, 34, 52],
            "4, 8, 16, 16 s, and 2 s in between"
        );
        assert_eq!(
            reasons(&status),
            ["", "Error reaching apiserver: no answer within 16s"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn ended_health_watch_no_longer_blocks_readiness() {
        let (_directory, status) = status();
        status.ready(Component::Startup);
        let stop = CancellationToken::new();
        let never = async || std::future::pending::<Result<(), Infallible>>().await;
        let watch = watch_health(status.clone(), never, never, stop.clone());
        tokio::join!(watch, async {
            sleep(Duration::from_secs(1)).await;
            assert!(!status.is_ready());
            stop.cancel();
        });
        assert!(status.is_ready());
    }
}
