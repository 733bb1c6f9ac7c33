//! Leaders that are killed: the other replica continues the migration, in each phase.

use std::time::Duration;

use integration_tests::controllers::{Controllers, Proxied, exit_text};
use integration_tests::kubernetes::Client;
use integration_tests::migration::{PLUGIN, installer};
use integration_tests::proxy::{Fault, Point};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::migration_to_v3::migrated_cluster::{MigratedCluster, at, on};
use crate::migration_to_v3::objects::sources;

/// Time for which the proxy of a leader holds each request, so that the test can kill the leader in
/// between.
const HELD: Duration = Duration::from_millis(200);
const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-kube-controllers";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A leader, and a replica that waits for the Lease.
struct Replicas<'a> {
    cluster: &'a MigratedCluster<'a>,
    leader: Proxied,
    standby: Proxied,
    started: usize,
}

impl<'a> Replicas<'a> {
    fn start(cluster: &'a MigratedCluster<'a>) -> Replicas<'a> {
        let leader = replica(cluster, 1);
        leader
            .controllers
            .await_log("this replica is the leader", 1)
            .unwrap();
        Replicas {
            cluster,
            leader,
            standby: replica(cluster, 2),
            started: 2,
        }
    }

    /// Kills the leader, and waits until the other replica has the Lease. Starts a third replica.
    #[track_caller]
    fn kill_leader(&mut self) {
        self.leader.controllers.kill();
        self.await_leader();
        self.start_standby();
    }

    /// Does the same as [`Replicas::kill_leader`], but releases the Lease, for which the other
    /// replica would wait 15 seconds.
    #[track_caller]
    fn kill_leader_and_release(&mut self) {
        self.leader.controllers.kill();
        self.cluster.servers.merge(
            LEASE,
            &json!({ "spec": { "holderIdentity": "", "leaseDurationSeconds": 1 } }),
        );
        self.await_leader();
        self.start_standby();
    }

    /// Ends the leader, which the standby replaces, and starts it again as the standby. A new
    /// leader looks at once; the present one may look only after a minute.
    #[track_caller]
    fn change_leader(&mut self) {
        assert!(self.leader.controllers.terminate().unwrap().success());
        self.await_leader();
        std::mem::swap(&mut self.leader, &mut self.standby);
        self.standby.controllers.restart().unwrap();
    }

    /// Makes the standby, which has the Lease, the leader, and starts another standby.
    fn start_standby(&mut self) {
        self.started += 1;
        self.leader = std::mem::replace(&mut self.standby, replica(self.cluster, self.started));
    }

    /// Waits until the standby has the Lease.
    #[track_caller]
    fn await_leader(&self) {
        let name = self.standby.user.rsplit(':').next().unwrap().to_owned();
        self.cluster
            .migration
            .until(&self.standby.controllers, "the standby leads", || {
                let lease = self.cluster.servers.get(LEASE);
                lease["spec"]["holderIdentity"]
                    .as_str()
                    .is_some_and(|holder| holder.starts_with(&name))
            });
    }

    fn process(&self) -> &Controllers {
        &self.leader.controllers
    }
}

/// Holds each request of a replica for a moment.
fn slow_down(replica: &Proxied) {
    replica
        .api
        .arm(Some((Point::EveryRequest, Fault::Delay(HELD))));
}

fn replica(cluster: &MigratedCluster<'_>, number: usize) -> Proxied {
    let name = format!("replica-{number}");
    Proxied::start(&cluster.servers, &name, |setup| {
        cluster.migration.in_pod(setup, &name)
    })
    .unwrap()
}

/// Returns true if the definition of the first kind is deleted, or is being deleted.
fn has_begun_to_delete_v1(admin: &Client) -> bool {
    let definition = admin
        .get(&format!("{DEFINITIONS}/tiers.crd.projectcalico.org"))
        .unwrap();
    definition.code == 404 || !definition.body["metadata"]["deletionTimestamp"].is_null()
}

#[on(kubernetes_v1)]
fn leader_killed_in_each_phase_is_replaced(cluster: &MigratedCluster<'_>) {
    let (admin, migration) = (cluster.servers.admin(), cluster.migration);
    assert!(cluster.start("one").terminate().unwrap().success());
    // Obstacles in the order of the phases: the plugin, a conflict, and calico-node without v3.
    migration.roll_out("DaemonSet", PLUGIN, &installer(None));
    cluster.create_in_v3("Tier", None, "security", &json!({ "order": 200 }));
    let node = |variables: Value| {
        json!({
            "containers": [{ "name": "calico-node", "image": "none", "env": variables }]
        })
    };
    // Not rolled out: kube-controllers would rename the policy with an old name.
    migration.apply_workload("DaemonSet", "calico-node", &node(json!([])));
    migration.create(None);
    let mut replicas = Replicas::start(cluster);

    migration.await_message(replicas.process(), "with v1 locked no pod could start");
    replicas.kill_leader_and_release();
    migration.roll_out("DaemonSet", PLUGIN, &installer(Some("")));
    replicas.change_leader();
    migration.await_phase(replicas.process(), "WaitingForConflictResolution");
    replicas.kill_leader_and_release();
    assert!(migration.is_ready(ApiGroup::CrdV1));
    cluster
        .servers
        .remove(&at(ApiGroup::V3, "Tier", None, "security").url_path());

    replicas.change_leader();
    cluster.await_lock(replicas.process());
    // During the ten seconds before the first copy. They end before the standby has the Lease,
    // so the standby copies while another one is started.
    slow_down(&replicas.standby);
    replicas.leader.controllers.kill();
    replicas.await_leader();
    assert!(!migration.is_ready(ApiGroup::CrdV1) && !migration.is_ready(ApiGroup::V3));
    replicas.start_standby();
    migration.until(replicas.process(), "half of the kinds are copied", || {
        migration.object()["status"]["progress"]["completedTypes"]
            .as_u64()
            .is_some_and(|done| done >= 10)
    });
    assert_eq!(migration.phase(), "Migrating");
    replicas.kill_leader();

    migration.await_phase(replicas.process(), "Converged");
    assert_eq!(exit_text(replicas.leader.controllers.ended().unwrap()), "1");
    replicas.standby.controllers.kill();
    let object = migration.object();
    for source in sources() {
        source.assert_copied(admin, &object);
    }
    // Both replicas used v1. Their successors use v3.
    for process in [
        &mut replicas.leader.controllers,
        &mut replicas.standby.controllers,
    ] {
        process.restart().unwrap();
    }
    migration.await_message(
        replicas.process(),
        "CALICO_API_GROUP=projectcalico.org/v3 on calico-node",
    );
    let holder = cluster.servers.get(LEASE)["spec"]["holderIdentity"]
        .as_str()
        .unwrap()
        .to_owned();
    if holder.starts_with(replicas.standby.user.rsplit(':').next().unwrap()) {
        std::mem::swap(&mut replicas.leader, &mut replicas.standby);
    }
    replicas.kill_leader_and_release();
    [&replicas.leader, &replicas.standby]
        .into_iter()
        .for_each(slow_down);
    // The object stays until the migration is complete and v1 is deleted.
    migration.delete();
    let v3 = json!([{ "name": "CALICO_API_GROUP", "value": ApiGroup::V3.api_version() }]);
    migration.roll_out("DaemonSet", "calico-node", &node(v3));
    replicas.change_leader();
    replicas.standby.api.arm(None);
    migration.until(replicas.process(), "the deletion of v1 has begun", || {
        has_begun_to_delete_v1(admin)
    });
    assert_eq!(migration.phase(), "Complete");
    let lock = admin
        .get(&format!(
            "{DEFINITIONS}/clusterinformations.crd.projectcalico.org"
        ))
        .unwrap();
    assert!(
        lock.success()["metadata"]["deletionTimestamp"].is_null(),
        "the lock of v1 is deleted last"
    );
    replicas.kill_leader();
    migration.until(replicas.process(), "the object is gone", || {
        migration.is_gone()
    });
    assert!(!cluster.in_v3("IPAMBlock", None, "10-65-1-0-26").is_null());
}
