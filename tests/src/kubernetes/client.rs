//! A small client of the API server: one request, one response, no retries, no cache.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use ureq::http::{Method, Request};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::{AsSendBody, SendBody};

use super::api_server::ENDPOINT;
use super::identity::Identity;

/// A client with one identity.
#[derive(Debug, Clone)]
pub struct Client {
    agent: ureq::Agent,
    token: Option<String>,
}

/// A response of the server.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
    /// The object, or the `Status` of a failure. A string if the body is not JSON.
    pub body: Value,
}

impl Client {
    /// Creates a client that trusts one authority, PEM.
    pub fn new(authority: &str, identity: &Identity) -> Result<Client> {
        let authority = Certificate::from_pem(authority.as_bytes())?;
        let mut tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[authority]));
        let mut token = None;
        match identity {
            Identity::Certificate { certificate, key } => {
                let chain = [Certificate::from_pem(certificate.as_bytes())?];
                tls = tls.client_cert(Some(ClientCert::new_with_certs(
                    &chain,
                    PrivateKey::from_pem(key.as_bytes())?,
                )));
            }
            Identity::Token(text) => token = Some(text.clone()),
        }
        let agent = ureq::Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(Duration::from_secs(60)))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        Ok(Client {
            agent: agent.into(),
            token,
        })
    }

    /// Sends a request for a path of the server.
    pub fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Result<Answer> {
        let content_type = Some(content_type).filter(|_| !body.is_empty());
        self.send(method, path, content_type, body.to_owned())
    }

    /// Posts a body that is read while it is sent.
    pub fn upload(&self, path: &str, mut body: impl Read) -> Result<Answer> {
        self.send(
            Method::POST,
            path,
            Some("application/json"),
            SendBody::from_reader(&mut body),
        )
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: impl AsSendBody,
    ) -> Result<Answer> {
        let mut request = Request::builder()
            .method(&method)
            .uri(format!("{ENDPOINT}{path}"));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let sent = self.agent.run(request.body(body)?);
        let mut answer = sent.with_context(|| format!("{method} {path}"))?;
        let text = answer
            .body_mut()
            .read_to_string()
            .with_context(|| format!("{method} {path}"))?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Answer {
            code: answer.status().as_u16(),
            body,
        })
    }

    /// Reads an object, a list, or any other URL path.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.request(Method::GET, path, "", "")
    }

    /// Returns the Events of a namespace that kube-controllers posted. The API server also posts
    /// Events, for example `ClusterIPNotAllocated` if its cache has a new Service earlier than the
    /// IPAddress of the Service.
    pub fn events_of_controllers(&self, namespace: &str) -> Result<Vec<Value>> {
        let mut listed = self
            .get(&format!("/api/v1/namespaces/{namespace}/events"))?
            .checked()?;
        let Value::Array(mut events) = listed["items"].take() else {
            return Ok(Vec::new());
        };
        events.retain(|event| event["source"]["component"] == "calico-kube-controllers");
        Ok(events)
    }

    /// Creates an object in a collection.
    pub fn create(&self, collection: &str, object: &Value) -> Result<Answer> {
        self.request(
            Method::POST,
            collection,
            "application/json",
            &object.to_string(),
        )
    }

    /// Replaces an object, or its subresource.
    pub fn replace(&self, path: &str, object: &Value) -> Result<Answer> {
        self.request(Method::PUT, path, "application/json", &object.to_string())
    }

    /// Merges a patch (RFC 7386) into an object, or its subresource.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Answer> {
        self.request(
            Method::PATCH,
            path,
            "application/merge-patch+json",
            &patch.to_string(),
        )
    }

    /// Deletes an object, without the default grace period of pods.
    pub fn delete(&self, path: &str) -> Result<Answer> {
        self.request(
            Method::DELETE,
            path,
            "application/json",
            r#"{"gracePeriodSeconds":0}"#,
        )
    }
}

impl Answer {
    /// Returns the object of a successful response.
    ///
    /// # Panics
    /// Panics, with the caller's place, on any other response.
    #[track_caller]
    pub fn success(self) -> Value {
        self.checked().unwrap()
    }

    /// Returns the object of a successful response, and an error for any other response.
    pub fn checked(self) -> Result<Value> {
        if !(200..300).contains(&self.code) {
            bail!("the API server answered {}: {}", self.code, self.reason());
        }
        Ok(self.body)
    }

    /// Returns the message of a failure.
    pub fn reason(&self) -> String {
        self.body["message"]
            .as_str()
            .map_or_else(|| self.body.to_string(), str::to_owned)
    }
}
