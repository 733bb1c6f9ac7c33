//! A single TokenRequest, and [`TokenError`]: the reasons for a missing token.

use std::time::Duration;

use datastore::kubernetes::{self, ObjectRequest};
use libcalico::failure::{Failure, OrFail};
use libcalico::kubernetes::{Location, SERVICE_ACCOUNTS};
use netconf::conf::Secret;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::timeout;

use super::{Claims, DEADLINE, DEFAULT_LIFETIME};
use crate::service_account::ServiceAccount;

/// The parameters of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// The service account, in the namespace of the pod.
    pub name: String,
    /// The lifetime to request.
    pub lifetime: Duration,
    /// The Node to which the token is to be bound; `None` to bind it to no Node.
    pub node: Option<String>,
}

/// A token from the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedToken {
    /// The token.
    pub token: Secret,
    /// The expiry, in seconds since 1970.
    pub expires: i64,
    /// The lifetime, from the API server's clock only: this node's clock may be wrong.
    pub lifetime: Duration,
}

impl TokenRequest {
    /// Returns a request for a token of this service account, with the default lifetime and bound
    /// to no Node.
    pub fn for_account(name: impl Into<String>) -> Self {
        TokenRequest {
            name: name.into(),
            lifetime: DEFAULT_LIFETIME,
            node: None,
        }
    }

    /// Sends the request to the API server of `pod`.
    pub async fn send(&self, pod: &ServiceAccount) -> Result<IssuedToken, TokenError> {
        let client = kubernetes::client(&pod.access(DEADLINE)?).await;
        let client = client.map_err(Failure::from)?;
        let account = Location::namespaced(SERVICE_ACCOUNTS, &pod.namespace, &self.name);
        let request = ObjectRequest::create_in(&account, "token", &self.body());
        let unreachable = |reason| TokenError::Unreachable {
            server: pod.server.clone(),
            reason,
        };
        match timeout(DEADLINE, request.send::<Value>(&client)).await {
            Ok(Ok(answer)) => read(&answer).map_err(|failure| invalid_answer(pod, failure).into()),
            Ok(Err(error)) => Err(match error.status() {
                Some(status) => self.rejection(pod, status.code, status.message.clone()),
                None => unreachable(datastore::describe_error_chain(&error)),
            }),
            Err(_) => Err(unreachable(format!("no answer within {DEADLINE:?}"))),
        }
    }

    /// Returns the body. An empty list of audiences stands for the API server's own audience.
    fn body(&self) -> Value {
        let mut spec = json!({ "audiences": [], "expirationSeconds": self.lifetime.as_secs() });
        if let Some(node) = &self.node {
            spec["boundObjectRef"] = json!({ "apiVersion": "v1", "kind": "Node", "name": node });
        }
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec,
        })
    }

    fn rejection(&self, pod: &ServiceAccount, code: u16, message: String) -> TokenError {
        let account = format!("{}/{}", pod.namespace, self.name);
        let server = pod.server.clone();
        match code {
            401 => unauthorized(&server, &message).into(),
            // For the refusal of an admission policy, this text would name a wrong remedy.
            403 if !message.contains("ValidatingAdmissionPolicy") => {
                self.forbidden(&pod.namespace, &message).into()
            }
            404 if message.starts_with("nodes ") => {
                missing_node(self.node.as_deref().unwrap_or_default()).into()
            }
            // Another program in place of the API server does not name the object.
            404 if ["serviceaccounts ", "namespaces "]
                .iter()
                .any(|begin| message.starts_with(begin)) =>
            {
                missing_account(&account).into()
            }
            _ => TokenError::Failed {
                server,
                account,
                message,
                code,
            },
        }
    }

    /// Returns the failure if the pod's account lacks the permission to create tokens for the
    /// plugins' account.
    fn forbidden(&self, namespace: &str, message: &str) -> Failure {
        let name = &self.name;
        Failure::new(format_args!(
            "this pod's service account may not create tokens for {namespace}/{name}"
        ))
        .way_out(format!(
            "grant it verb create on resource serviceaccounts/token with resourceNames [{name}] in \
             a ClusterRole, or in a Role of namespace {namespace}; the API server's message: \
             {message}"
        ))
    }
}

/// Returns the failure if the API server rejects the pod's own token.
fn unauthorized(server: &str, message: &str) -> Failure {
    Failure::new(format_args!(
        "the API server {server} rejects the token of this pod ({message})"
    ))
    .way_out(
        "wait for kubelet to renew the token, or delete the pod if the signing keys or its service \
         account were replaced",
    )
}

fn missing_account(account: &str) -> Failure {
    Failure::new(format_args!("service account {account} does not exist")).way_out(
        "apply deploy/rbac/calico-cni-plugin.yaml, or name another account in \
         CALICO_CNI_SERVICE_ACCOUNT",
    )
}

fn missing_node(node: &str) -> Failure {
    Failure::new(format_args!(
        "Node {node} does not exist, to which CNI_TOKEN_BOUND_TO_NODE binds the plugins' token"
    ))
    .way_out("wait for kubelet to create the Node, or correct KUBERNETES_NODE_NAME")
}

/// Returns the failure if the response is no token with a valid expiry and lifetime.
fn invalid_answer(pod: &ServiceAccount, cause: impl std::fmt::Display) -> Failure {
    let server = &pod.server;
    Failure::new(format_args!(
        "the API server {server} sent an invalid answer to a token request"
    ))
    .because(cause)
}

/// Reads the response. `expirationTimestamp` is the effective expiry. The token's own `exp` may be
/// later (`--service-account-extend-token-expiration`).
fn read(answer: &Value) -> Result<IssuedToken, Failure> {
    let status = &answer["status"];
    let token = status["token"].as_str().filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| Failure::new("status.token is missing"))?;
    let end = status["expirationTimestamp"].as_str();
    let end = end.ok_or_else(|| Failure::new("status.expirationTimestamp is missing"))?;
    let expires = OffsetDateTime::parse(end, &Rfc3339);
    let expires = expires.or_fail(format_args!("invalid expirationTimestamp {end}"))?;
    let expires = expires.unix_timestamp();
    let granted = answer["spec"]["expirationSeconds"].as_i64();
    let issued = Claims::decode(token).ok().filter(|claims| claims.iat > 0);
    let lifetime = issued.map_or(granted, |claims| Some(expires - claims.iat));
    let lifetime = lifetime
        .and_then(|seconds| u64::try_from(seconds).ok())
        .ok_or_else(|| Failure::new("its lifetime is missing or negative"))?;
    Ok(IssuedToken {
        token: Secret::new(token.into()),
        expires,
        lifetime: Duration::from_secs(lifetime),
    })
}

/// Reasons for a missing token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The request cannot be sent, or the API server rejects it for a reason that an operator must
    /// remove.
    #[error("{0}")]
    Failure(Failure),
    /// Another error of the API server.
    #[error("the API server {server} issued no token for {account}: {message} ({code})")]
    Failed {
        /// The URL of the API server.
        server: String,
        /// The plugins' service account, as `<namespace>/<name>`.
        account: String,
        /// The API server's message.
        message: String,
        /// The HTTP status.
        code: u16,
    },
    /// The API server did not respond.
    #[error(
        "the API server {server} is unreachable: {reason}; if the ConfigMap \
         kubernetes-services-endpoint has a former address, delete it and restart this pod"
    )]
    Unreachable {
        /// The URL of the API server.
        server: String,
        /// The cause.
        reason: String,
    },
}

impl From<Failure> for TokenError {
    fn from(failure: Failure) -> Self {
        TokenError::Failure(failure)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use data_encoding::BASE64URL_NOPAD;

    use super::*;

    fn request() -> TokenRequest {
        TokenRequest::for_account(crate::token::DEFAULT_ACCOUNT)
    }

    fn pod() -> ServiceAccount {
        ServiceAccount {
            namespace: "kube-system".into(),
            server: "https://10.96.0.1:443".into(),
            token_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            insecure: false,
            kubeconfig: None,
        }
    }

    fn answer(claims: &str) -> Value {
        let token = format!("e30.{}.c2ln", BASE64URL_NOPAD.encode(claims.as_bytes()));
        json!({
            "spec": { "expirationSeconds": 3600 },
            "status": { "token": token, "expirationTimestamp": "2023-11-14T22:23:20Z" },
        })
    }

    #[test]
    fn token_request_matches_upstreams() {
        let body = request().body();
        assert_eq!(
            body["spec"],
            json!({ "audiences": [], "expirationSeconds": 86400 })
        );
    }

    #[test]
    fn token_request_with_a_node_is_bound_to_it() {
        let bound = TokenRequest {
            node: Some("n1".into()),
            ..request()
        };
        let body = bound.body();
        assert_eq!(
            body["spec"]["boundObjectRef"],
            json!({ "apiVersion": "v1", "kind": "Node", "name": "n1" })
        );
        let missing = bound
            .rejection(&pod(), 404, r#"nodes "n1" not found"#.into())
            .to_string();
        assert!(missing.starts_with("Node n1 does not exist"), "{missing}");
        let denied =
            "… is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no";
        let denied = bound.rejection(&pod(), 403, denied.into()).to_string();
        assert!(denied.ends_with("denied request: no (403)"), "{denied}");
    }

    /// `kubectl apply` leaves the ConfigMap of a component that is removed.
    #[test]
    fn unreachable_api_server_is_reported_with_the_config_map_of_a_former_address() {
        let server = "https://localhost:7445".to_owned();
        let text = TokenError::Unreachable {
            server,
            reason: "refused".into(),
        }
        .to_string();
        assert!(
            text.starts_with("the API server https://localhost:7445 is unreachable: refused; "),
            "{text}"
        );
        assert!(
            text.contains(
                "kubernetes-services-endpoint has a former address, delete it and restart"
            ),
            "{text}"
        );
    }

    #[test]
    fn token_expiry_comes_from_the_response_and_not_from_the_claims() {
        // The token's own `exp` is a year later.
        let issued = read(&answer(r#"{"iat":1700000000,"exp":1731536000}"#)).unwrap();
        assert_eq!(
            (issued.expires, issued.lifetime),
            (1_700_000_600, Duration::from_secs(600))
        );
        assert_eq!(
            read(&answer(r#"{"exp":1}"#)).unwrap().lifetime,
            Duration::from_secs(3600)
        );
    }

    #[test]
    fn token_response_without_token_or_expiry_is_rejected() {
        for (path, value, reason) in [
            ("/status/token", json!(""), "status.token"),
            (
                "/status/expirationTimestamp",
                json!(null),
                "status.expirationTimestamp",
            ),
            ("/status/expirationTimestamp", json!("soon"), "soon: "),
            (
                "/status/expirationTimestamp",
                json!("1970-01-01T00:00:00Z"),
                "lifetime is missing",
            ),
        ] {
            let mut answer = answer(r#"{"iat":1700000000,"exp":1731536000}"#);
            *answer.pointer_mut(path).unwrap() = value;
            let error = read(&answer).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn rejected_token_request_names_the_remedy() {
        for (code, message, words) in [
            (
                403,
                "said",
                "verb create on resource serviceaccounts/token with resourceNames \
                 [calico-cni-plugin]",
            ),
            (401, "said", "rejects the token of this pod"),
            (
                404,
                r#"serviceaccounts "calico-cni-plugin" not found"#,
                "kube-system/calico-cni-plugin does not exist",
            ),
            (
                404,
                "404 page not found",
                "issued no token for kube-system/calico-cni-plugin: 404 page not found (404)",
            ),
            (
                500,
                "said",
                "issued no token for kube-system/calico-cni-plugin: said (500)",
            ),
        ] {
            let error = request()
                .rejection(&pod(), code, message.into())
                .to_string();
            assert!(error.contains(words), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn issued_token_debug_output_omits_the_token() {
        let issued = IssuedToken {
            token: Secret::new("SECRET".into()),
            expires: 0,
            lifetime: Duration::ZERO,
        };
        assert!(!format!("{issued:?}").contains("SECRET"));
    }
}
