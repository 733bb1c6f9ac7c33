//! [`Outside`]: looks for owners that are not of Calico's kinds.
//!
//! Only Calico's annotation has the references. Kubernetes' garbage collector sees them through an
//! aggregated API server of v3 alone, so the collector may never have looked for the owners. The
//! collector deletes a copy whose owners are missing.
//!
//! A tenant writes the references of its policies, and may name a kind whose server is unreachable.
//! The looks happen while v1 is locked. So no failure ends the migration, and a pass looks for no
//! other object of a version of a group after a failure.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use libcalico::kubernetes::escaped;
use serde_json::Value;
use tokio::time::timeout;

use super::super::requests::{Problem, Requests};

/// Longest time for a response, with all attempts.
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// The versions of groups that references have named in a pass, without those that the API server
/// does not serve.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// The list of kinds by the version, or the reason why no object of the version is readable.
    versions: RefCell<HashMap<String, Result<Rc<Value>, String>>>,
}

impl Outside {
    /// Returns the reason why the owner of an object in `namespace` may be missing; `None` if the
    /// owner exists.
    pub(super) async fn doubt(
        &self,
        requests: &Requests,
        namespace: Option<&str>,
        owner: &Value,
    ) -> Option<String> {
        match self.find(requests, namespace, owner).await {
            Ok(Some(found))
                if owner["uid"].is_string() && found["metadata"]["uid"] == owner["uid"] =>
            {
                None
            }
            Ok(_) => Some("it does not exist, or it is in another namespace".into()),
            Err(cause) => Some(format!("cannot read it: {cause}")),
        }
    }

    /// Returns the object that has the kind and the name of an owner. An object of the whole
    /// cluster has no owner in a namespace.
    async fn find(
        &self,
        requests: &Requests,
        namespace: Option<&str>,
        owner: &Value,
    ) -> Result<Option<Value>, String> {
        let (version, name) = (text(owner, "apiVersion"), escaped(text(owner, "name")));
        let words: Vec<String> = version.split('/').map(escaped).collect();
        let root = match words.as_slice() {
            [version] => format!("/api/{version}"),
            [group, version] => format!("/apis/{group}/{version}"),
            _ => return Ok(None),
        };
        // Without a name, the path would be that of all objects.
        if name.is_empty() {
            return Ok(None);
        }
        let Some(kinds) = self.kinds(requests, version, &root).await? else {
            return Ok(None);
        };
        // `deployments/status` has the kind of `deployments`.
        let is_kind =
            |kind: &&Value| kind["kind"] == owner["kind"] && !text(kind, "name").contains('/');
        let Some(kind) = kinds["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .find(is_kind)
        else {
            return Ok(None);
        };
        let plural = text(kind, "name");
        let path = match (kind["namespaced"] == true, namespace) {
            (false, _) => format!("{root}/{plural}/{name}"),
            (true, Some(namespace)) => {
                format!("{root}/namespaces/{}/{plural}/{name}", escaped(namespace))
            }
            (true, None) => return Ok(None),
        };
        self.look(requests, version, &path).await
    }

    /// Returns the list of kinds of a version, whose path is `root`.
    async fn kinds(
        &self,
        requests: &Requests,
        version: &str,
        root: &str,
    ) -> Result<Option<Rc<Value>>, String> {
        let known = self.versions.borrow().get(version).cloned();
        if let Some(known) = known {
            return known.map(Some);
        }
        let Some(kinds) = self.look(requests, version, root).await?.map(Rc::new) else {
            return Ok(None);
        };
        self.versions
            .borrow_mut()
            .insert(version.to_owned(), Ok(kinds.clone()));
        Ok(Some(kinds))
    }

    /// Returns the response to a GET of a path of a version.
    async fn look(
        &self,
        requests: &Requests,
        version: &str,
        path: &str,
    ) -> Result<Option<Value>, String> {
        let cause = match timeout(LONGEST_LOOK, requests.discover(path)).await {
            Ok(Ok(found)) => return Ok(found),
            // A refusal takes no time, and may concern one object only.
            Ok(Err(problem @ Problem::Refused { .. })) => return Err(problem.to_string()),
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => format!("no response within {} s", LONGEST_LOOK.as_secs()),
        };
        self.versions
            .borrow_mut()
            .insert(version.to_owned(), Err(cause.clone()));
        Err(cause)
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hyper::{Request, Response};
    use kube::client::Body;
    use kube_controllers::leader::Leadership;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn owner_on_a_silent_server_is_looked_for_once() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            counter.fetch_add(1, Ordering::Relaxed);
            pending::<Result<Response<Body>, Infallible>>()
        });
        let requests = Requests::new(kube::Client::new(service, "default"), Leadership::always());
        let outside = Outside::default();
        for name in ["a", "b", "c"] {
            let owner = json!({
                "apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "name": name,
                "uid": "u",
            });
            let doubt = outside.doubt(&requests, Some("ns"), &owner).await;
            assert_eq!(
                doubt.as_deref(),
                Some("cannot read it: no response within 10 s")
            );
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
