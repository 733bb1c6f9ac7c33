//! Reads that the API server's cache may serve.

use super::*;

fn cached(milliseconds: u64) -> ApiRequest {
    let time_limit = Duration::from_millis(milliseconds);
    ApiRequest::get("/a").with_cache(Some(Cache {
        version: 7,
        time_limit,
    }))
}

/// The two pauses after the busy responses are together longer than the time limit of the cache.
#[tokio::test]
async fn pauses_of_a_busy_server_do_not_count_toward_the_cache_timeout() {
    let server = Server::start(
        &["h2"],
        &[Reply::Ok, Reply::Busy(1), Reply::Busy(1), Reply::Ok],
    )
    .await;
    let client = server.client(LONG);
    client.send(&ApiRequest::get("/a")).await.unwrap();
    client.send(&cached(1500)).await.unwrap();
    assert_eq!(
        server.requests()[1..],
        vec!["GET /a?resourceVersion=7 Bearer first"; 3]
    );
}

#[tokio::test]
async fn read_that_the_cache_cannot_serve_is_repeated_uncached() {
    for reply in [400, 410, 500, 502, 503, 504]
        .map(Reply::Status)
        .into_iter()
        .chain([Reply::Cut, Reply::Never])
    {
        for alpn in ["h2", "http/1.1"] {
            let server = Server::start(&[alpn], &[Reply::Ok, reply]).await;
            let (client, read) = (server.client(LONG), cached(10_000));
            client.send(&ApiRequest::get("/first")).await.unwrap();
            let passing = async {
                if matches!(reply, Reply::Never) {
                    server.advance_after(2, 10).await;
                }
            };
            let (answer, ()) = tokio::join!(client.send(&read), passing);
            assert!(answer.is_ok(), "{reply:?}: {answer:?}");
            let expected = [
                "GET /a?resourceVersion=7 Bearer first",
                "GET /a Bearer first",
            ];
            assert_eq!(server.requests()[1..], expected, "{alpn} {reply:?}");
        }
    }
}

#[tokio::test]
async fn failed_cached_read_returns_the_error_of_the_uncached_read() {
    let server = Server::start(&["h2"], &[Reply::Status(504), Reply::Status(410)]).await;
    let failure = server.client(LONG).send(&cached(10_000)).await.unwrap_err();
    assert!(
        matches!(&failure, RequestError::Refused(refusal) if refusal.status.code == 410),
        "{failure}"
    );
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn definite_error_of_a_cached_read_is_not_retried_uncached() {
    for (code, requests) in [(401, 2), (403, 1), (404, 1), (409, 1), (422, 1)] {
        let server = Server::start(&["h2"], &[Reply::Status(code); 2]).await;
        let failure = server.client(LONG).send(&cached(10_000)).await.unwrap_err();
        assert!(
            matches!(&failure, RequestError::Refused(refusal) if refusal.status.code == code),
            "{failure}"
        );
        // With a 401, the token is read again for the second request.
        assert_eq!(
            server.requests(),
            vec!["GET /a?resourceVersion=7 Bearer first"; requests],
            "{code}"
        );
    }
}
