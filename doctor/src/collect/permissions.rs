//! Tests the permissions that the plugins' account has at the API server and in etcd.

use std::time::Duration;

use datastore::kubernetes::{self, ObjectError};
use datastore::{Datastore, KubernetesConfig};
use libcalico::api::{ClusterInformation, IpPool, Node, ObjectKey, WorkloadEndpoint};
use libcalico::ipam::{AffinityKey, AffinityOwner, Block, BlockAffinity, Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Kind, Revision, Store, StoreError, Write, WriteOp};
use tokio::time::timeout;

use crate::role::{self, Permission, Scope};
use crate::snapshot::{ApiServer, Observed, PermissionCheck, Unobserved};

/// Asks the API server whether the account has each permission that the plugins need in `scope`.
/// `deadline` limits each request. Stops after a request without a response.
pub(super) async fn test_api_server(
    config: &KubernetesConfig,
    scope: Scope<'_>,
    deadline: Duration,
) -> ApiServer {
    let address = format!("the API server of {config}");
    let mut api = ApiServer {
        address,
        reached: Ok(()),
        rejection: None,
        permissions: Vec::new(),
    };
    let client = match kubernetes::client(config).await {
        Ok(client) => client,
        Err(error) => {
            return ApiServer {
                reached: Err(Unobserved::new(error)),
                ..api
            };
        }
    };
    for permission in role::permissions(scope) {
        let is_allowed = match has_permission(&client, &permission, deadline).await {
            Ok(is_allowed) => Ok(is_allowed),
            Err(ObjectError::Request(kube::Error::Api(status))) => {
                let refusal = format!("{} ({})", status.message, status.code);
                if status.code == 401 {
                    api.rejection = Some(refusal.clone());
                }
                Err(Unobserved::new(refusal))
            }
            Err(error) => {
                let reason = Unobserved::new(datastore::describe_error_chain(&error));
                api.permissions.push(PermissionCheck {
                    permission,
                    is_allowed: Err(reason.clone()),
                });
                return ApiServer {
                    reached: Err(reason),
                    ..api
                };
            }
        };
        api.permissions.push(PermissionCheck {
            permission,
            is_allowed,
        });
    }
    api
}

/// Returns true if the account of `client` has a permission in all namespaces.
async fn has_permission(
    client: &kube::Client,
    permission: &Permission,
    limit: Duration,
) -> Result<bool, ObjectError> {
    let (resource, subresource) = permission
        .resource
        .split_once('/')
        .unwrap_or((&permission.resource, ""));
    let right = [
        permission.group.as_str(),
        resource,
        subresource,
        permission.verb.as_str(),
    ];
    let is_allowed = timeout(limit, kubernetes::is_allowed(client, right))
        .await
        .unwrap_or_else(|_| {
            let reason = format!("no answer within {limit:?}");
            Err(kube::Error::Service(reason.into()).into())
        })?;
    Ok(is_allowed == Some(true))
}

/// A revision that no object ever has.
const IMPOSSIBLE_REVISION: &str = "9223372036854775807";

/// A block in no pool. The range is reserved for documentation (RFC 5737).
const DOCUMENTATION_BLOCK: &str = "192.0.2.0/26";

/// Tests, with a few keys, the permissions that the plugins need in etcd. etcd checks the
/// permission of each write before it evaluates the condition of the transaction. The conditions
/// used here never hold, so nothing is written.
pub(super) async fn test_etcd(store: &Datastore, node: &str) -> Vec<PermissionCheck> {
    let mut checks = vec![
        check_read::<ClusterInformation>(store, &ObjectKey::global("default")).await,
        check_read::<IpPool>(store, &ObjectKey::global("calico-doctor")).await,
        check_read::<Node>(
            store,
            &ObjectKey::global(if node.is_empty() {
                "calico-doctor"
            } else {
                node
            }),
        )
        .await,
    ];
    let Ok(block) = DOCUMENTATION_BLOCK.parse::<Cidr>() else {
        return checks;
    };
    let owner = AffinityOwner::Host(if node.is_empty() {
        "calico-doctor".into()
    } else {
        node.to_owned()
    });
    let endpoint = ObjectKey::namespaced("default", "calico--doctor-cni-none-eth0");
    for (kind, path) in [
        (Block::KIND, Block::path(&block)),
        (
            BlockAffinity::KIND,
            BlockAffinity::path(&AffinityKey { owner, cidr: block }),
        ),
        (Handle::KIND, Handle::path(&HandleId::new("calico-doctor"))),
        (WorkloadEndpoint::KIND, WorkloadEndpoint::path(&endpoint)),
    ] {
        let op = WriteOp::Update(b"{}".to_vec(), Revision(IMPOSSIBLE_REVISION.into()));
        let write = Write {
            kind,
            key: format!("{kind}(calico-doctor)"),
            path,
            op,
        };
        let is_allowed = is_permitted(store.write_one(write).await.map(drop));
        checks.push(PermissionCheck {
            permission: permission("write", kind),
            is_allowed,
        });
    }
    checks
}

fn permission(verb: &str, resource: &str) -> Permission {
    Permission {
        group: String::new(),
        resource: resource.to_owned(),
        verb: verb.to_owned(),
    }
}

async fn check_read<K: Kind>(store: &Datastore, key: &K::Key) -> PermissionCheck {
    let is_allowed = is_permitted(store.get::<K>(key).await.map(drop));
    PermissionCheck {
        permission: permission("read", K::KIND),
        is_allowed,
    }
}

/// Returns true if the outcome of a request shows that it was permitted, as a missing object or a
/// conflict does.
fn is_permitted(outcome: Result<(), StoreError>) -> Observed<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(StoreError::Unauthorized { .. } | StoreError::Forbidden { .. }) => Ok(false),
        Err(error) if error.is_race() => Ok(true),
        Err(error) => Err(Unobserved::new(error)),
    }
}
