//! Requests and their responses.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::objects::{Objects, Refused, Selection, collection};
use super::path::{Target, parameter};
use super::watching::watch;

pub(super) enum Content {
    Whole(Option<Bytes>),
    Lines(mpsc::Receiver<Bytes>),
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Lines(lines) => lines
                .poll_recv(context)
                .map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }
}

/// API groups that the server does not serve.
const ABSENT: [&str; 3] = [
    "kubevirt.io",
    "projectcalico.org/v3",
    "policy.networking.k8s.io",
];

/// Plurals and kinds, for the `kind` of a list.
const KINDS: [(&str, &str); 20] = [
    ("blockaffinities", "BlockAffinity"),
    ("clusterinformations", "ClusterInformation"),
    ("globalnetworkpolicies", "GlobalNetworkPolicy"),
    ("hostendpoints", "HostEndpoint"),
    ("ipamblocks", "IPAMBlock"),
    ("ipamconfigs", "IPAMConfig"),
    ("ipamhandles", "IPAMHandle"),
    ("ippools", "IPPool"),
    ("ipreservations", "IPReservation"),
    (
        "kubecontrollersconfigurations",
        "KubeControllersConfiguration",
    ),
    ("leases", "Lease"),
    ("namespaces", "Namespace"),
    ("networkpolicies", "NetworkPolicy"),
    ("nodes", "Node"),
    ("pods", "Pod"),
    ("serviceaccounts", "ServiceAccount"),
    ("services", "Service"),
    ("stagedglobalnetworkpolicies", "StagedGlobalNetworkPolicy"),
    ("stagednetworkpolicies", "StagedNetworkPolicy"),
    ("tiers", "Tier"),
];

pub(super) async fn answer(
    objects: Arc<Objects>,
    request: Request<Incoming>,
) -> Result<Response<Content>, Infallible> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let body: Value = serde_json::from_slice(&whole(body).await).unwrap_or_default();
    let Some(target) = Target::parse(&path) else {
        return Ok(beside(&path));
    };
    if ABSENT.iter().any(|absent| target.group.starts_with(absent)) {
        return Ok(status(StatusCode::NOT_FOUND, "NotFound"));
    }
    let group = target.group.clone();
    let done = match (parts.method, target.key()) {
        (Method::GET, Some(key)) => objects
            .get(&collection(&group, target.plural), &key)
            .ok_or(Refused::NotFound),
        (Method::GET, None) if parameter(&query, "watch").is_some() => {
            return Ok(watched(objects, &target, &query));
        }
        (Method::GET, None) => return Ok(listed(&objects, &target, &query)),
        (Method::POST, _) if target.plural.ends_with("accessreviews") => {
            let mut review = body;
            review["status"]["allowed"] = true.into();
            Ok(review.to_string().into())
        }
        (Method::POST, _) => objects.create(&group, target.plural, placed(body, &target)),
        (Method::PUT, Some(_)) => objects.replace(&group, target.plural, placed(body, &target)),
        (Method::PATCH, Some(key)) => {
            let found = objects.get(&collection(&group, target.plural), &key);
            let mut object = found
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or(json!({}));
            merge(&mut object, &body);
            object["metadata"]["name"] = target.name.into();
            let object = placed(object, &target);
            objects
                .replace(&group, target.plural, object.clone())
                .or_else(|_| objects.create(&group, target.plural, object))
        }
        (Method::DELETE, Some(key)) => {
            objects.delete(&group, target.plural, &key, &body["preconditions"])
        }
        _ => return Ok(status(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed")),
    };
    Ok(match done {
        Ok(text) => json_answer(StatusCode::OK, Bytes::copy_from_slice(text.as_bytes())),
        Err(Refused::NotFound) => missing(&target),
        Err(Refused::AlreadyExists) => status(StatusCode::CONFLICT, "AlreadyExists"),
        Err(Refused::Conflict) => status(StatusCode::CONFLICT, "Conflict"),
    })
}

fn beside(path: &str) -> Response<Content> {
    match path {
        "/healthz" | "/readyz" | "/livez" => json_answer(StatusCode::OK, "ok".into()),
        "/version" => json_answer(
            StatusCode::OK,
            json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
                .to_string()
                .into(),
        ),
        "/apis" => {
            let names = [
                "crd.projectcalico.org",
                "coordination.k8s.io",
                "networking.k8s.io",
            ];
            let group = |name| {
                json!({
                    "name": name,
                    "versions": [{"groupVersion": format!("{name}/v1"), "version": "v1"}],
                })
            };
            let groups = json!(names.map(group));
            json_answer(
                StatusCode::OK,
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
                    .to_string()
                    .into(),
            )
        }
        _ => status(StatusCode::NOT_FOUND, "NotFound"),
    }
}

fn listed(objects: &Objects, target: &Target<'_>, query: &str) -> Response<Content> {
    let limit = parameter(query, "limit")
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(usize::MAX);
    // All pages return the revision of the first page, so that a watch from there delivers the
    // changes made meanwhile.
    let token = parameter(query, "continue");
    let (revision, after) = match token.as_deref().and_then(|token| token.split_once(':')) {
        Some((revision, after)) => (revision.parse::<u64>().ok(), Some(after)),
        None => (None, None),
    };
    let selector = parameter(query, "fieldSelector").unwrap_or_default();
    let select = Selection {
        namespace: target.namespace,
        name: selector.strip_prefix("metadata.name="),
        node: selector.strip_prefix("spec.nodeName="),
    };
    let page = objects.list(
        &collection(&target.group, target.plural),
        &select,
        after,
        limit,
    );
    let revision = revision.unwrap_or(page.revision);
    let token = page
        .after
        .map(|after| format!("{revision}:{after}"))
        .unwrap_or_default();
    let metadata = json!({"resourceVersion": revision.to_string(), "continue": token});
    let kind = KINDS
        .iter()
        .find(|(plural, _)| *plural == target.plural)
        .map_or("", |(_, kind)| kind);
    let mut body = format!(
        "{{\"apiVersion\":\"{}\",\"kind\":\"{kind}List\",\"metadata\":{metadata},\"items\":[",
        target.group
    );
    for (n, text) in page.texts.iter().enumerate() {
        if n > 0 {
            body.push(',');
        }
        body.push_str(text);
    }
    body.push_str("]}");
    json_answer(StatusCode::OK, body.into())
}

fn watched(objects: Arc<Objects>, target: &Target<'_>, query: &str) -> Response<Content> {
    let number = |name: &str| parameter(query, name).and_then(|text| text.parse::<u64>().ok());
    let revision = number("resourceVersion").unwrap_or_default();
    let lifetime = Duration::from_secs(number("timeoutSeconds").unwrap_or(600));
    let (sender, lines) = mpsc::channel(64);
    tokio::spawn(watch(
        objects,
        collection(&target.group, target.plural),
        revision,
        lifetime,
        sender,
    ));
    Response::new(Content::Lines(lines))
}

/// Returns the object with the namespace of its URL, and with a UID.
fn placed(mut object: Value, target: &Target<'_>) -> Value {
    if let Some(namespace) = target.namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    if object["metadata"]["uid"].is_null() {
        object["metadata"]["uid"] = crate::texts::uid(8, object.to_string().len()).into();
    }
    object
}

/// Applies a JSON merge patch (RFC 7386).
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        match value {
            Value::Null => _ = into.as_object_mut().and_then(|object| object.remove(name)),
            value => merge(&mut into[name], value),
        }
    }
}

fn json_answer(code: StatusCode, body: Bytes) -> Response<Content> {
    let mut response = Response::new(Content::Whole(Some(body)));
    *response.status_mut() = code;
    response.headers_mut().insert(
        "content-type",
        hyper::header::HeaderValue::from_static("application/json"),
    );
    response
}

fn status(code: StatusCode, reason: &str) -> Response<Content> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": reason,
    });
    json_answer(code, body.to_string().into())
}

fn missing(target: &Target<'_>) -> Response<Content> {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
            "reason": "NotFound",
        "message": "not found", "details": {"name": target.name, "kind": target.plural}});
    json_answer(StatusCode::NOT_FOUND, body.to_string().into())
}

async fn whole(mut body: Incoming) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) =
        std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
    {
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
    }
    bytes
}
