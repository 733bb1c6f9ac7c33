//! Lists objects page by page.

use std::time::Duration;

use libcalico::kubernetes::{ContinueTokens, List, escaped};
use serde_json::Value;
use tokio::sync::Mutex;

use super::client::ApiClient;
use super::error::RequestError;
use super::media_type::METADATA_LIST;
use super::request::{ApiRequest, Cache};
use super::streaming::ListReader;

/// Permission to read from the server's cache, however old. The time limit is long, because the
/// cache returns a large list as a whole.
const ANY_CACHED_VERSION: Cache = Cache {
    version: 0,
    time_limit: Duration::from_secs(5),
};
/// Number of objects per page, as in upstream.
const PAGE_SIZE: usize = 500;

/// Returns all objects of a list. With `may_lag`, the server's cache may serve the list. If the
/// list's snapshot expires between two pages, the whole list is read in one request (DS-65).
pub(super) async fn list_all(
    client: &ApiClient,
    list: &List,
    may_lag: bool,
) -> Result<Vec<Value>, RequestError> {
    walk_pages(list, may_lag, |request| async move {
        client.send(&request).await
    })
    .await
}

/// Passes each object of a list to `on_object` as JSON when the object arrives. Some objects may be
/// passed twice.
pub(super) async fn for_each_object(
    client: &ApiClient,
    list: &List,
    on_object: &mut (dyn FnMut(&[u8]) -> serde_json::Result<()> + Send),
) -> Result<(), RequestError> {
    let on_object = Mutex::new(ListReader::new(on_object));
    let send_page = |request: ApiRequest| {
        let on_object = &on_object;
        async move {
            client
                .send_streaming(&request, Some(&mut *on_object.lock().await))
                .await
        }
    };
    if walk_pages(list, false, send_page).await?.is_empty() {
        return Ok(());
    }
    // The reader did not recognize the remaining items, so `on_object` has not received them.
    Err(RequestError::Unreadable(
        "the items of the list are not in the expected place".into(),
    ))
}

async fn walk_pages<F: Future<Output = Result<Value, RequestError>>>(
    list: &List,
    may_lag: bool,
    mut send_page: impl FnMut(ApiRequest) -> F,
) -> Result<Vec<Value>, RequestError> {
    let (mut objects, mut next, mut tokens) =
        (Vec::new(), None::<String>, ContinueTokens::default());
    loop {
        let cache = (may_lag && next.is_none()).then_some(ANY_CACHED_VERSION);
        let answer = send_page(page_request(list, next.as_deref(), true).with_cache(cache)).await;
        let mut answer = match answer {
            Err(RequestError::Refused(refusal)) if refusal.status.code == 410 && next.is_some() => {
                objects.clear();
                tokens = ContinueTokens::default();
                send_page(page_request(list, None, false)).await?
            }
            answer => answer?,
        };
        objects.extend(take_items(list, &mut answer)?);
        let token = answer["metadata"]["continue"].as_str().map(str::to_owned);
        let repeated = |error| {
            RequestError::Unreadable(format!("cannot list {}: {error}", list.resource.plural))
        };
        next = tokens.record(token).map_err(repeated)?;
        if next.is_none() {
            return Ok(objects);
        }
    }
}

/// Takes the objects out of a page. A response that is not a list of the kind must not count as an
/// empty list.
fn take_items(list: &List, answer: &mut Value) -> Result<Vec<Value>, RequestError> {
    let (kind, plural) = (
        answer["kind"].as_str().unwrap_or_default().to_owned(),
        list.resource.plural,
    );
    match answer.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if list.resource.is_list(&kind) => Ok(items),
        // Go may encode an empty list as `null`.
        Some(Value::Null) if list.resource.is_list(&kind) => Ok(Vec::new()),
        _ => Err(RequestError::Unreadable(format!(
            "the answer is not a list of {plural} but a {kind:?}"
        ))),
    }
}

fn page_request(list: &List, token: Option<&str>, limited: bool) -> ApiRequest {
    let parameters = [
        ("limit", limited.then(|| PAGE_SIZE.to_string())),
        ("labelSelector", list.label_selector.as_deref().map(escaped)),
        ("fieldSelector", list.field_selector.as_deref().map(escaped)),
        ("continue", token.map(escaped)),
    ];
    let query: Vec<_> = parameters
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", value?)))
        .collect();
    let mut target = list.url_path();
    if !query.is_empty() {
        target = format!("{target}?{}", query.join("&"));
    }
    ApiRequest {
        accept: list.metadata_only.then_some(METADATA_LIST),
        ..ApiRequest::get(target)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use hyper::StatusCode;
    use libcalico::kubernetes::PODS;
    use serde_json::json;

    use super::*;
    use crate::kubernetes::error::ApiStatusError;

    fn pods() -> List {
        List {
            resource: PODS,
            namespace: None,
            label_selector: None,
            field_selector: None,
            metadata_only: false,
        }
    }

    fn page(objects: &[u32], token: &str) -> Result<Value, RequestError> {
        Ok(json!({"kind": "PodList", "metadata": {"continue": token}, "items": objects}))
    }

    fn refused(code: u16) -> Result<Value, RequestError> {
        let code = StatusCode::from_u16(code).unwrap();
        Err(RequestError::Refused(Box::new(ApiStatusError::parse(
            code, b"{}", None,
        ))))
    }

    async fn walk_result(
        answers: impl Into<VecDeque<Result<Value, RequestError>>>,
    ) -> (Result<Vec<Value>, RequestError>, Vec<String>) {
        let (mut answers, mut queries) = (answers.into(), Vec::new());
        let send_page = |request: ApiRequest| {
            queries.push(request.url().replace("/api/v1/pods", ""));
            std::future::ready(answers.pop_front().unwrap())
        };
        let walk_result = walk_pages(&pods(), true, send_page).await;
        (walk_result, queries)
    }

    #[tokio::test]
    async fn pages_are_requested_in_order_and_only_the_first_from_a_cache() {
        let (objects, queries) =
            walk_result([page(&[1, 2], "x"), page(&[3], "y"), page(&[4], "")]).await;
        assert_eq!(objects.unwrap(), [1, 2, 3, 4].map(Value::from));
        assert_eq!(
            queries,
            [
                "?limit=500&resourceVersion=0",
                "?limit=500&continue=x",
                "?limit=500&continue=y"
            ]
        );
    }

    #[tokio::test]
    async fn list_whose_page_names_an_earlier_page_as_the_next_one_is_unreadable() {
        for tokens in [&["x", "x"][..], &["x", "y", "x"]] {
            let answers: Vec<_> = tokens.iter().map(|token| page(&[1], token)).collect();
            let (objects, queries) = walk_result(answers).await;
            assert!(
                matches!(objects, Err(RequestError::Unreadable(_))),
                "{objects:?}"
            );
            assert_eq!(queries.len(), tokens.len());
        }
    }

    /// A list of two snapshots would be inconsistent.
    #[tokio::test]
    async fn expired_list_position_restarts_as_a_single_unpaged_list() {
        let (objects, queries) =
            walk_result([page(&[1, 2], "x"), refused(410), page(&[2, 3, 4], "")]).await;
        assert_eq!(objects.unwrap(), [2, 3, 4].map(Value::from));
        assert_eq!(queries[1..], ["?limit=500&continue=x", ""]);
    }

    #[tokio::test]
    async fn failed_page_fails_the_list() {
        for answers in [
            vec![refused(410)],
            vec![page(&[1], "x"), refused(500)],
            vec![page(&[1], "x"), refused(410), refused(410)],
        ] {
            let requests = answers.len();
            let (objects, queries) = walk_result(answers).await;
            assert!(objects.is_err() && queries.len() == requests, "{queries:?}");
        }
    }

    /// A broken proxy may send such responses. Shows SEC-63.
    #[tokio::test]
    async fn response_other_than_a_list_of_the_kind_fails_the_list() {
        for answer in [
            json!({}),
            json!({"kind": "PodList", "metadata": {}}),
            json!({"kind": "PodList", "metadata": {}, "items": {}}),
            json!({"kind": "NodeList", "metadata": {}, "items": []}),
            json!({"metadata": {}, "items": []}),
            json!({"kind": "Status", "status": "Success"}),
        ] {
            let text = answer.to_string();
            let (objects, _) = walk_result([Ok(answer)]).await;
            assert!(
                matches!(objects, Err(RequestError::Unreadable(_))),
                "{text}"
            );
        }
        for kind in ["PodList", "PartialObjectMetadataList"] {
            let (objects, _) =
                walk_result([Ok(json!({"kind": kind, "metadata": {}, "items": null}))]).await;
            assert_eq!(objects.unwrap(), Vec::<Value>::new());
        }
    }

    #[test]
    fn page_request_encodes_selectors_and_continue_token() {
        let list = List {
            resource: PODS,
            namespace: Some("default".into()),
            label_selector: Some("a in (b,c),d=é".into()),
            field_selector: None,
            metadata_only: false,
        };
        assert_eq!(
            page_request(&list, Some("x/y="), true).target,
            "/api/v1/namespaces/default/pods?limit=500&labelSelector=a%20in%20%28b%2Cc%29%2Cd%3D%C3%A9&continue=x%2Fy%3D"
        );
        let of_node = List {
            label_selector: None,
            field_selector: Some("spec.nodeName=n1".into()),
            ..list.clone()
        };
        let target = "/api/v1/namespaces/default/pods?limit=500&fieldSelector=spec.nodeName%3Dn1";
        assert_eq!(page_request(&of_node, None, true).target, target);
        let list = List {
            label_selector: None,
            ..list
        };
        assert_eq!(
            page_request(&list, None, false).target,
            "/api/v1/namespaces/default/pods"
        );
    }
}
