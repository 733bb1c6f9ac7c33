//! Lists, page by page (DS-65).

use hyper::Method;
use libcalico::kubernetes::{List, escaped};
use serde_json::Value;

use super::client::{ApiClient, ApiRequest};
use super::failure::Failure;

/// Objects per page, as upstream asks.
const PAGE: usize = 500;
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// All objects of a list. A list that changed too much between two pages is read again in one piece.
pub(super) async fn all(client: &ApiClient, list: &List, may_lag: bool) -> Result<Vec<Value>, Failure> {
    let (mut objects, mut next) = (Vec::new(), None::<String>);
    loop {
        let mut request = page(list, next.as_deref(), true);
        if may_lag && next.is_none() {
            request.target.push_str("&resourceVersion=0");
        }
        let answer = client.send(&request).await;
        let mut answer = match answer {
            Err(Failure::Refused(refusal)) if refusal.status.code == 410 && next.is_some() => {
                objects.clear();
                client.send(&page(list, None, false)).await?
            }
            answer => answer?,
        };
        if let Value::Array(items) = answer["items"].take() {
            objects.extend(items);
        }
        match answer["metadata"]["continue"].as_str() {
            Some(token) if !token.is_empty() => next = Some(token.to_owned()),
            _ => return Ok(objects),
        }
    }
}

fn page(list: &List, token: Option<&str>, limited: bool) -> ApiRequest {
    let mut query = Vec::new();
    if limited {
        query.push(format!("limit={PAGE}"));
    }
    if let Some(selector) = &list.label_selector {
        query.push(format!("labelSelector={}", escaped(selector)));
    }
    if let Some(selector) = &list.field_selector {
        query.push(format!("fieldSelector={}", escaped(selector)));
    }
    if let Some(token) = token {
        query.push(format!("continue={}", escaped(token)));
    }
    let mut target = list.url_path();
    if !query.is_empty() {
        target = format!("{target}?{}", query.join("&"));
    }
    ApiRequest { accept: list.metadata_only.then_some(METADATA_ONLY), method: Method::GET, target, body: None }
}

#[cfg(test)]
mod tests {
    use libcalico::kubernetes::PODS;

    use super::*;

    #[test]
    fn the_request_for_a_page() {
        let list = List {
            resource: PODS,
            namespace: Some("default".into()),
            label_selector: Some("a in (b,c),d=é".into()),
            field_selector: None,
            metadata_only: false,
        };
        assert_eq!(
            page(&list, Some("x/y="), true).target,
            "/api/v1/namespaces/default/pods?limit=500&labelSelector=a%20in%20%28b%2Cc%29%2Cd%3D%C3%A9&continue=x%2Fy%3D"
        );
        let of_node = List { label_selector: None, field_selector: Some("spec.nodeName=n1".into()), ..list.clone() };
        let target = "/api/v1/namespaces/default/pods?limit=500&fieldSelector=spec.nodeName%3Dn1";
        assert_eq!(page(&of_node, None, true).target, target);
        let list = List { label_selector: None, ..list };
        assert_eq!(page(&list, None, false).target, "/api/v1/namespaces/default/pods");
    }
}
