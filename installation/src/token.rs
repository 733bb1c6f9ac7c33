//! Requests tokens for the plugins' service account from the API server (INST-42), and checks if a
//! token is valid.
//!
//! Requests for a token do not use the kubeconfig that receives the token (INST-48). The requested
//! tokens are not bound to the pod, so they outlive it. With `CNI_TOKEN_BOUND_TO_NODE` they are
//! bound to the Node, and end with it.
//!
//! New signing keys, or a service account that was deleted and recreated, can invalidate tokens
//! before they expire, and only the API server can detect that. The signature of a token is not
//! verified here.

mod request;

use std::time::Duration;

pub use self::request::{IssuedToken, TokenError, TokenRequest};
use data_encoding::BASE64URL_NOPAD;
use datastore::kubernetes::{self, ObjectRequest};
use serde::Deserialize;
use tokio::time::timeout;

use crate::service_account::ServiceAccount;

/// The default for `CALICO_CNI_SERVICE_ACCOUNT`.
pub const DEFAULT_ACCOUNT: &str = "calico-cni-plugin";

/// The default lifetime to request. The API server may grant another lifetime.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(86_400);

/// The shortest lifetime that an API server accepts.
pub const MIN_LIFETIME: Duration = Duration::from_secs(600);

/// Time limit for a response, including the connection.
const DEADLINE: Duration = Duration::from_secs(10);

/// A path that every authenticated user may read by default.
const CHECK_PATH: &str = "/version";

/// The result of testing a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenCheck {
    /// The API server accepts the token.
    Valid,
    /// The API server rejects the token.
    Rejected,
    /// The API server sent no usable response, for this reason.
    Unanswered(String),
}

/// Tests a token at the API server of `pod`.
pub async fn check_token(pod: &ServiceAccount, token: &str) -> TokenCheck {
    let request_with_token = async {
        let access = pod.access_with(token.to_owned(), DEADLINE);
        let client = kubernetes::client(&access)
            .await
            .map_err(|error| TokenCheck::Unanswered(error.to_string()))?;
        let Err(error) = ObjectRequest::path(CHECK_PATH).send_text(&client).await else {
            return Ok(());
        };
        match error.status() {
            Some(status) if status.code == 401 => Err(TokenCheck::Rejected),
            // A client error other than 401 shows that the token was accepted.
            Some(status) if status.code < 500 => Ok(()),
            Some(status) => Err(TokenCheck::Unanswered(format!(
                "{} ({})",
                status.message, status.code
            ))),
            None => Err(TokenCheck::Unanswered(datastore::describe_error_chain(
                &error,
            ))),
        }
    };
    match timeout(DEADLINE, request_with_token).await {
        Ok(Ok(())) => TokenCheck::Valid,
        Ok(Err(check)) => check,
        Err(_) => {
            TokenCheck::Unanswered(format!("the API server did not answer within {DEADLINE:?}"))
        }
    }
}

/// The claims about the validity and the owner of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Claims {
    /// The expiry, in seconds since 1970.
    pub exp: i64,
    /// The time of issue, in seconds since 1970; 0 if missing.
    #[serde(default)]
    pub iat: i64,
    /// `system:serviceaccount:<namespace>:<name>`; empty if missing.
    #[serde(default)]
    pub sub: String,
    /// The claims that Kubernetes adds under the key `kubernetes.io`.
    #[serde(default, rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
}

/// The claims about the object to which a token is bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct KubernetesClaims {
    /// The Node to which the token is bound; `None` if it is bound to no Node.
    #[serde(default)]
    pub node: Option<BoundNode>,
}

/// The Node to which a token is bound.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BoundNode {
    /// The name of the Node.
    pub name: String,
}

/// The error for a token that is not a JWT with an expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the token is not a JSON Web Token with the claim `exp`; use the token of a service account, \
     which has three parts separated by dots"
)]
pub struct InvalidToken;

impl Claims {
    /// Decodes the claims in the second of a token's three parts. Does not verify the signature.
    pub fn decode(token: &str) -> Result<Self, InvalidToken> {
        let parts: Vec<&str> = token.trim().split('.').collect();
        let [_, claims, _] = parts[..] else {
            return Err(InvalidToken);
        };
        let json = BASE64URL_NOPAD
            .decode(claims.trim_end_matches('=').as_bytes())
            .map_err(|_| InvalidToken)?;
        serde_json::from_slice(&json).map_err(|_| InvalidToken)
    }

    /// Returns the name of the Node to which the token is bound; `None` if it is bound to no Node.
    pub fn node(&self) -> Option<&str> {
        self.kubernetes.node.as_ref().map(|node| node.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64URL_NOPAD.encode(claims.as_bytes()))
    }

    #[test]
    fn claims_of_a_token_are_decoded() {
        let text = token(
            r#"{"exp":1700003600,"iat":1700000000,"sub":"system:serviceaccount:a:b","aud":["x"]}"#,
        );
        let sub = "system:serviceaccount:a:b".into();
        let claims = Claims {
            exp: 1_700_003_600,
            iat: 1_700_000_000,
            sub,
            ..Claims::default()
        };
        assert_eq!(Claims::decode(&text), Ok(claims));
        let bound =
            token(r#"{"exp":7,"kubernetes.io":{"namespace":"a","node":{"name":"n1","uid":"u"}}}"#);
        assert_eq!(Claims::decode(&bound).unwrap().node(), Some("n1"));
        assert_eq!(
            Claims::decode(&format!("{}\n", token(r#"{"exp":7}"#)))
                .map(|claims| (claims.exp, claims.iat)),
            Ok((7, 0))
        );
    }

    #[test]
    fn malformed_token_is_rejected() {
        for text in ["", "a.b", "a.b.c.d", "a.%%.c"].map(str::to_owned) {
            assert_eq!(Claims::decode(&text), Err(InvalidToken), "{text}");
        }
        for claims in ["{}", r#"{"exp":"soon"}"#, "[]"] {
            assert_eq!(
                Claims::decode(&token(claims)),
                Err(InvalidToken),
                "{claims}"
            );
        }
    }
}
