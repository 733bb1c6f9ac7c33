//! Answers of another program, such as a proxy, in place of the API server.

use super::*;

/// A proxy may respond to a write without forwarding it.
#[tokio::test]
async fn write_response_without_the_written_object_has_an_unknown_outcome() {
    for (method, reply) in [
        (Method::POST, Reply::Nothing),
        (Method::PUT, Reply::Nothing),
        (Method::PATCH, Reply::Nothing),
        (Method::PUT, Reply::Written("b")),
        (Method::PATCH, Reply::Written("b")),
        (Method::PUT, Reply::Written("things")),
        (Method::DELETE, Reply::Nothing),
        (Method::POST, Reply::Ok),
    ] {
        let server = Server::start(&["h2"], &[reply]).await;
        let write = ApiRequest::with_json(method.clone(), "/things/a/status?dry=no", &json!({}));
        let failure = server.client(LONG).send(&write).await.unwrap_err().into_store_error("Pod(p)", "k", true);
        assert!(failure.is_foreign_answer() && failure.has_unknown_outcome(), "{method} {reply:?}: {failure}");
    }
}

#[tokio::test]
async fn answer_of_another_program_is_described_and_not_repeated() {
    for (method, reply, shown) in [
        (Method::PUT, Reply::Page(200), "(200 OK, text/html, `<html> Log in </html>`)"),
        (Method::GET, Reply::Page(200), "(200 OK, text/html, `<html> Log in </html>`)"),
        (Method::PUT, Reply::Page(302), "<html> Log in </html> (302)"),
        (Method::GET, Reply::Page(451), "<html> Log in </html> (451)"),
        (Method::PUT, Reply::Page(409), "<html> Log in </html> (409)"),
    ] {
        let server = Server::start(&["h2"], &[reply]).await;
        let (client, is_write) = (server.client(LONG), method == Method::PUT);
        let failure = client.send(&ApiRequest::with_json(method, "/a", &json!({}))).await.unwrap_err();
        let error = client.to_store_error(failure, "Pod(a)", is_write).await;
        let is_sent = matches!(reply, Reply::Page(200));
        assert_eq!((error.is_foreign_answer(), error.has_unknown_outcome()), (true, is_write && is_sent), "{error:?}");
        let text = error.to_string();
        for part in [shown, "Pod(a)", &format!("https://localhost:{}", server.port), "transparent proxies"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(server.requests().len(), 1);
    }
}
