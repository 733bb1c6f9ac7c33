//! Answers of another program, such as a proxy, in place of the API server.

use libcalico::api::{IpPool, ObjectKey};
use libcalico::kubernetes::ApiGroup;
use libcalico::store::{Store, StoreError};

use super::*;
use crate::kubernetes::Kubernetes;

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
        let failure = server
            .client(LONG)
            .send(&write)
            .await
            .unwrap_err()
            .into_store_error("Pod(p)", "k", true);
        assert!(
            failure.is_foreign_answer() && failure.has_unknown_outcome(),
            "{method} {reply:?}: {failure}"
        );
    }
}

#[tokio::test]
async fn answer_of_another_program_is_described_and_not_repeated() {
    for (method, reply, shown) in [
        (
            Method::PUT,
            Reply::Page(200),
            "(200 OK, text/html, `<html> Log in </html>`)",
        ),
        (
            Method::GET,
            Reply::Page(200),
            "(200 OK, text/html, `<html> Log in </html>`)",
        ),
        (Method::PUT, Reply::Page(302), "<html> Log in </html> (302)"),
        (Method::GET, Reply::Page(451), "<html> Log in </html> (451)"),
        (Method::PUT, Reply::Page(409), "<html> Log in </html> (409)"),
    ] {
        let server = Server::start(&["h2"], &[reply]).await;
        let (client, is_write) = (server.client(LONG), method == Method::PUT);
        let failure = client
            .send(&ApiRequest::with_json(method, "/a", &json!({})))
            .await
            .unwrap_err();
        let error = client.to_store_error(failure, "Pod(a)", is_write).await;
        let is_sent = matches!(reply, Reply::Page(200));
        assert_eq!(
            (error.is_foreign_answer(), error.has_unknown_outcome()),
            (true, is_write && is_sent),
            "{error:?}"
        );
        let text = error.to_string();
        for part in [
            shown,
            "Pod(a)",
            &format!("https://localhost:{}", server.port),
            "transparent proxies",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(server.requests().len(), 1);
    }
}

/// The API server answers a request for a kind that it does not serve without a `Status`, as a
/// proxy may do.
#[tokio::test]
async fn write_of_a_kind_that_discovery_lacks_names_the_kind_and_no_other_program() {
    let unknown = Reply::Text(404, "404 page not found\n");
    let others = Reply::Text(
        200,
        r#"{"kind":"APIGroupList","groups":[{"name":"apps","versions":[]}]}"#,
    );
    let own = Reply::Text(
        200,
        r#"{"kind":"APIGroupList","groups":[{"name":"projectcalico.org","versions":[
            {"groupVersion":"projectcalico.org/v3"}]}]}"#,
    );
    let tiers = Reply::Text(
        200,
        r#"{"kind":"APIResourceList","groupVersion":"projectcalico.org/v3","resources":[{"name":"tiers"}]}"#,
    );
    let pools = Reply::Text(
        200,
        r#"{"kind":"APIResourceList","groupVersion":"projectcalico.org/v3","resources":[{"name":"ippools"}]}"#,
    );
    for (replies, lacks_kind) in [
        (&[unknown, others][..], true),
        (&[unknown, own, tiers], true),
        (&[unknown, own, pools], false),
        (&[unknown, unknown], false),
    ] {
        let server = Server::start(&["h2"], replies).await;
        let store = Kubernetes::uncached(&KubernetesConfig {
            group: Some(ApiGroup::V3),
            ..server.config(LONG)
        });
        let pool = IpPool::new("p", Default::default());
        let error = store
            .create::<IpPool>(&ObjectKey::global("p"), &pool)
            .await
            .unwrap_err();
        assert_eq!(server.requests().len(), replies.len());
        assert_eq!(
            (error.is_foreign_answer(), error.has_unknown_outcome()),
            (!lacks_kind, false),
            "{error}"
        );
        if lacks_kind {
            let expected = "IPPool(p): the API server does not serve the kind IPPool of \
                            projectcalico.org/v3; install";
            assert!(
                matches!(
                    &error, StoreError::NotInstalled { reason } if reason.starts_with(expected),
                ),
                "{error}"
            );
        }
    }
}
