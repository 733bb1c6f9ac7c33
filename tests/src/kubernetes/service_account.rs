//! Creates namespaces, service accounts and their permissions, in place of controllers and an
//! operator.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::api_server::ApiServer;
use super::client::Client;
use super::identity::Identity;
use super::role::Role;
use crate::controllers::{PATIENCE, await_that};

/// A service account with a token that is valid for an hour. It needs a role binding, see
/// [`ApiServer::bind`].
#[derive(Debug)]
pub struct ServiceAccount {
    /// `system:serviceaccount:<namespace>:<name>`, as in the audit log.
    pub user: String,
    /// The account's token.
    pub identity: Identity,
    /// Path of a kubeconfig with the token inline.
    pub kubeconfig: PathBuf,
    /// A client with the token.
    pub client: Client,
    namespace: String,
    name: String,
}

/// An action that RBAC allows or denies.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// `get`, `patch` …
    pub verb: &'a str,
    /// API group, empty for the core.
    pub group: &'a str,
    /// The plural, or `<plural>/<subresource>`.
    pub resource: &'a str,
}

impl ApiServer {
    /// Creates a namespace with the `default` service account, which pods need that do not name
    /// another one.
    pub fn namespace(&self, name: &str) -> Result<()> {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.admin().apply_object(&namespace)?;
        self.apply_account(name, "default")
    }

    /// Creates a service account and, if necessary, its namespace.
    pub fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount> {
        self.namespace(namespace)?;
        self.apply_account(namespace, name)?;
        let identity = Identity::Token(self.token(namespace, name)?);
        Ok(ServiceAccount {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            kubeconfig: self.kubeconfig(&format!("{namespace}-{name}"), &identity)?,
            client: self.client(&identity)?,
            identity,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Creates a service account with the manifests of its roles. Waits until the authorizer
    /// applies them.
    pub fn account_of(
        &self,
        namespace: &str,
        name: &str,
        manifests: &[PathBuf],
    ) -> Result<ServiceAccount> {
        let account = self.service_account(namespace, name)?;
        for manifest in manifests {
            self.admin().apply(&fs::read_to_string(manifest)?)?;
        }
        self.await_granted(&account, &Role::of_manifests(manifests)?)?;
        Ok(account)
    }

    /// Waits until the authorizer allows an account each permission of a role.
    pub fn await_granted(&self, account: &ServiceAccount, role: &Role) -> Result<()> {
        role.0.iter().try_for_each(|permission| {
            await_that(PATIENCE, || self.allows(&account.user, permission.access()))
                .with_context(|| format!("the authorizer does not see the role: {permission}"))
        })
    }

    /// Requests a new token of a service account. The server accepts a token for ten seconds after
    /// its use, even if the account is deleted.
    pub fn token(&self, namespace: &str, name: &str) -> Result<String> {
        let path = token_path(namespace, name);
        let made = self
            .admin()
            .create(&path, &token_request(json!({})))?
            .checked()
            .with_context(|| path)?;
        token_in(&made)
    }

    /// Creates or replaces a ClusterRole.
    pub fn cluster_role(&self, name: &str, rules: &Value) -> Result<()> {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": name }, "rules": rules,
        });
        self.admin().apply_object(&role).map(drop)
    }

    /// Binds a ClusterRole to a service account and waits until the authorizer applies both. The
    /// role needs a rule without resourceNames.
    pub fn bind(&self, account: &ServiceAccount, role: &str) -> Result<()> {
        let subject = json!({
            "kind": "ServiceAccount", "namespace": account.namespace, "name": account.name,
        });
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": format!("{role}.{}.{}", account.namespace, account.name) },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
            },
            "subjects": [subject],
        });
        self.admin().apply_object(&binding)?;
        let role = self
            .admin()
            .get(&format!(
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}"
            ))?
            .checked()?;
        let first = |rule: &Value, list: &str| rule[list][0].as_str().map(str::to_owned);
        // The authorizer applies all rules of a role together.
        let rule = role["rules"]
            .as_array()
            .into_iter()
            .flatten()
            .find_map(|rule| {
                rule["resourceNames"].is_null().then_some(())?;
                Some((
                    first(rule, "verbs")?,
                    first(rule, "apiGroups")?,
                    first(rule, "resources")?,
                ))
            });
        let (verb, group, resource) =
            rule.context("a role has no rule without resourceNames to wait for")?;
        let access = Access {
            verb: &verb,
            group: &group,
            resource: &resource,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.allows(&account.user, access)? {
            ensure!(
                Instant::now() < deadline,
                "{} is bound and still may not: {access:?}",
                account.user
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns true if a user may do something in all namespaces, according to the authorizer.
    pub fn allows(&self, user: &str, access: Access<'_>) -> Result<bool> {
        let (resource, subresource) = access
            .resource
            .split_once('/')
            .unwrap_or((access.resource, ""));
        let attributes = json!({
            "verb": access.verb, "group": access.group, "resource": resource,
            "subresource": subresource,
        });
        self.reviews(user, &attributes)
    }

    /// Returns true if a user may do something, given by `resourceAttributes`, according to the
    /// authorizer.
    pub(super) fn reviews(&self, user: &str, attributes: &Value) -> Result<bool> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": { "user": user, "resourceAttributes": attributes },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        Ok(self.admin().create(path, &review)?.checked()?["status"]["allowed"] == true)
    }

    fn apply_account(&self, namespace: &str, name: &str) -> Result<()> {
        let metadata = json!({ "namespace": namespace, "name": name });
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata });
        self.admin().apply_object(&account).map(drop)
    }
}

/// Returns the URL path of the tokens of a service account.
pub fn token_path(namespace: &str, account: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token")
}

/// Returns a TokenRequest, and does not send it.
pub fn token_request(spec: Value) -> Value {
    json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec })
}

/// Returns the token in the response to a TokenRequest.
pub fn token_in(made: &Value) -> Result<String> {
    Ok(made["status"]["token"]
        .as_str()
        .context("a TokenRequest has no token")?
        .to_owned())
}
