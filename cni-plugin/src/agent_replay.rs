//! Replays deferred DELs in the node agent, with the credentials of the plugins and by the code of
//! the plugins.

use std::time::Duration;

use allocation::cluster_state;
use allocation::journal::{DatastoreIdentity, Journal};
use dataplane::KernelNetwork;
use datastore::{ClusterStore as _, Datastore, DatastoreConfig};
use ipam_plugin::datastore_settings;
use ipam_plugin::kubernetes_api::KubernetesApi;
use libcalico::failure::Failure;
use libcalico::variables::Variables;
use node_agent::{NodePlugins, ReplayPass};
use os::clock::SystemClock;
use os::node_files::NodeFiles;

use crate::context::node_name_or_empty;
use crate::deferred_del::{ReplayOutcome, Replayer};
use crate::world::ThisNode;

const DEADLINE: Duration = Duration::from_secs(10);

/// Replays a bounded number of deferred DELs of this node, and records the identity of the node's
/// datastore. Replays nothing if another process on the node replays now.
pub async fn replay(plugins: &NodePlugins) -> Result<ReplayPass, Failure> {
    let journal = Journal::new(&plugins.journal);
    if journal.is_empty() && !plugins.reads_identity {
        return Ok(ReplayPass::default());
    }
    let config =
        datastore_settings::with_environment(&plugins.conf, Some(DEADLINE), Variables::NONE)?;
    if let DatastoreConfig::Local(local) = &config
        && !local.path.exists()
    {
        // Opening the datastore would create an empty file in the file system of this container.
        return Err(Failure::new(format_args!(
            "the file {} of the embedded datastore is missing in this container",
            local.path.display()
        ))
        .way_out("mount its directory"));
    }
    let store = Datastore::open(&config)?;
    let api = KubernetesApi::for_call(&plugins.conf, &config, false)?;
    // The entries name handles and endpoints, which have the same names in both API groups.
    cluster_state::ensure_ready(&store).await?;
    let identity = store.identity().await;
    let has_read_identity = identity.is_ok();
    let identity = match identity {
        Ok(identity) => identity.unwrap_or_default(),
        Err(error) if journal.is_empty() => {
            return Err(Failure::new("cannot read the identity of the datastore").because(error));
        }
        Err(error) => {
            tracing::warn!(
                datastore = %plugins.datastore, %error,
                "cannot read the identity of the datastore; some deferred DELs stay"
            );
            String::new()
        }
    };
    let target = DatastoreIdentity {
        name: plugins.datastore.clone(),
        identity,
    };
    // The process that has the lock may replay the same entries.
    let Some(locked) = journal.try_lock()? else {
        return Ok(ReplayPass::default());
    };
    locked.remove_abandoned();
    let files = NodeFiles::of_this_node();
    let node = node_name_or_empty(&plugins.conf, &files);
    let replayer = Replayer::<ThisNode> {
        conf: &plugins.conf,
        variables: Variables::NONE,
        datastore_config: &config,
        store: &store,
        api: &api,
        clock: &SystemClock::start(),
        network: &KernelNetwork,
        files: &files,
        node: &node,
        replaying_container: "",
        target,
    };
    let ReplayOutcome {
        replayed,
        remaining,
    } = replayer.replay_some(&locked).await;
    Ok(ReplayPass {
        has_read_identity,
        replayed,
        remaining,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{ApiServer, Reply, context, record_del_of_a_gone_pod, without_pods};

    /// Answers for a cluster whose objects a migration has moved to v3.
    fn after_a_migration(request: &str) -> Option<Reply> {
        let (version, is_open) = match request.split([' ', '?']).nth(1)? {
            "/apis/crd.projectcalico.org/v1/clusterinformations/default" => {
                ("crd.projectcalico.org/v1", false)
            }
            "/apis/projectcalico.org/v3/clusterinformations/default" => {
                ("projectcalico.org/v3", true)
            }
            _ => return without_pods(request, "/no/such"),
        };
        let annotations = json!({ "migration.projectcalico.org/migrated-by": "uid" });
        let body = json!({
            "apiVersion": version, "kind": "ClusterInformation",
            "spec": { "datastoreReady": is_open },
            "metadata": { "name": "default", "resourceVersion": "7", "annotations": annotations },
        });
        Some(Reply {
            after: Duration::ZERO,
            status: 200,
            body,
        })
    }

    #[tokio::test]
    async fn replay_in_a_configured_group_after_a_migration_names_the_way_out() {
        let files = tempfile::tempdir().unwrap();
        let server = ApiServer::start(after_a_migration).await;
        let (journal, cx) = (
            files.path().join("journal"),
            context("DEL", &server, files.path()),
        );
        record_del_of_a_gone_pod(&cx);
        let conf = cx.call.conf.clone();
        let plugins = NodePlugins {
            conf,
            datastore: cx.datastore_name(),
            journal,
            reads_identity: true,
        };
        let error = replay(&plugins).await.unwrap_err().to_string();
        let has_way_out = error.contains("moved to projectcalico.org/v3")
            && error.contains("set calico_api_group");
        assert!(has_way_out, "{error}");
        assert_eq!(server.requests().len(), 2, "{:?}", server.requests());
    }

    #[tokio::test]
    async fn replay_without_the_identity_of_the_datastore_does_not_report_the_identity_as_read() {
        let files = tempfile::tempdir().unwrap();
        let server =
            ApiServer::start(|request| without_pods(request, "/namespaces/kube-system")).await;
        let (journal, cx) = (
            files.path().join("journal"),
            context("DEL", &server, files.path()),
        );
        record_del_of_a_gone_pod(&cx);
        let conf = cx.call.conf.clone();
        let plugins = NodePlugins {
            conf,
            datastore: cx.datastore_name(),
            journal,
            reads_identity: true,
        };
        let pass = replay(&plugins).await.unwrap();
        assert_eq!(
            pass,
            ReplayPass {
                has_read_identity: false,
                replayed: 1,
                remaining: 0
            }
        );
    }
}
