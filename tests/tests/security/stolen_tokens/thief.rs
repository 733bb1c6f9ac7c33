//! [`Thief`]: the owner of a stolen token.

use std::path::PathBuf;

use anyhow::Result;
use integration_tests::Place;
use integration_tests::controllers::{
    ControllersCluster, deletion_mark, on_both_groups, on_prepared,
};
use integration_tests::kubernetes::{Answer, ApiServer, Audit, Client, Permission, Role};
use integration_tests::manifests::deploy;
pub(crate) use integration_tests::on;
use serde_json::{Value, json};

pub(crate) const SYSTEM: &str = "kube-system";

pub(crate) struct Thief<'a> {
    pub(crate) cluster: ControllersCluster<'a>,
    pub(crate) client: Client,
    user: String,
    role: Role,
    audit: Audit,
}

/// Runs a test with KubeVirt's machines, and with all accounts of the datastore and their roles. The
/// tests of both API groups share a server.
pub(crate) fn on(place: Place, test: fn(&ControllersCluster<'_>)) {
    let (preparation, accounts) = match place {
        Place::Etcd => (
            "all accounts with etcd",
            vec![(
                "calico-kube-controllers",
                vec![deploy("rbac/etcd/calico-kube-controllers.yaml")],
            )],
        ),
        _ => (
            "all accounts",
            vec![
                ("calico-cni", vec![deploy("rbac/calico-cni.yaml")]),
                (
                    "calico-cni-plugin",
                    vec![deploy("rbac/calico-cni-plugin.yaml")],
                ),
                (
                    "calico-kube-controllers",
                    Role::manifests_of_controllers().into(),
                ),
            ],
        ),
    };
    let prepare = |api: &ApiServer| {
        api.define_machines()?;
        accounts
            .into_iter()
            .try_for_each(|(name, manifests)| api.account_of(SYSTEM, name, &manifests).map(drop))
    };
    match place {
        Place::Etcd => on_prepared(preparation, place, prepare, test),
        _ => on_both_groups(preparation, place, prepare, test),
    }
}

impl<'a> Thief<'a> {
    /// Creates the account with the roles of the manifests, and returns a thief with a token of it.
    pub(crate) fn of(
        cluster: &ControllersCluster<'a>,
        manifests: &[PathBuf],
        account: &str,
    ) -> Thief<'a> {
        let stolen = cluster.api.account_of(SYSTEM, account, manifests).unwrap();
        let mut groups = vec!["", "apps", "kubevirt.io", "networking.k8s.io"];
        groups.extend(
            cluster
                .group
                .and_then(|group| group.api_version().split('/').next()),
        );
        let role = Role::of_manifests(manifests).unwrap().of_groups(&groups);
        Thief {
            client: stolen.client,
            user: stolen.user,
            role,
            audit: cluster.api.audit().unwrap(),
            cluster: *cluster,
        }
    }

    /// Reads a collection and the object `name` in it by each read verb of the role.
    #[track_caller]
    pub(crate) fn reads(&self, collection: &str, name: &str) {
        let resource = collection.rsplit('/').next().unwrap();
        let mut verbs = 0;
        for (verb, path) in [
            ("get", format!("{collection}/{name}")),
            ("list", collection.to_owned()),
            ("watch", format!("{collection}?watch=true&timeoutSeconds=1")),
        ] {
            let has_verb = |one: &Permission| one.resource == resource && one.verb == verb;
            if self.role.0.iter().any(has_verb) {
                let answer = self.client.get(&path).unwrap();
                assert!(matches!(answer.code, 200 | 404), "{path}: {answer:?}");
                verbs += 1;
            }
        }
        assert!(verbs > 0, "the role does not let anybody read {collection}");
    }

    #[track_caller]
    pub(crate) fn creates(&self, collection: &str, object: &Value) {
        done(self.client.create(collection, object));
    }

    /// Replaces the object at a path after `edit`, with the resourceVersion of the stored object.
    #[track_caller]
    pub(crate) fn replaces(&self, path: &str, edit: impl FnOnce(&mut Value)) {
        let mut object = self.cluster.get(path);
        edit(&mut object);
        done(self.client.replace(path, &object));
    }

    #[track_caller]
    pub(crate) fn deletes(&self, path: &str) {
        done(self.client.delete(path));
        assert_eq!(
            self.cluster.api.admin().get(path).unwrap().code,
            404,
            "{path}"
        );
    }

    /// Creates an object named `stolen`.
    #[track_caller]
    pub(crate) fn creates_stolen(&self, kind: &str, collection: &str, spec: &Value) {
        let version = self.cluster.group.unwrap().api_version();
        let object = json!({
            "apiVersion": version, "kind": kind, "metadata": { "name": "stolen" }, "spec": spec,
        });
        self.creates(collection, &object);
    }

    /// Creates, replaces and deletes an object named `stolen`.
    #[track_caller]
    pub(crate) fn writes(&self, kind: &str, collection: &str, spec: &Value) {
        self.creates_stolen(kind, collection, spec);
        let path = format!("{collection}/stolen");
        self.replaces(&path, |object| {
            object["metadata"]["annotations"] = json!({ "by": "thief" })
        });
        self.deletes(&path);
    }

    /// Creates, replaces and deletes an object of each kind of IPAM that a role lets its account
    /// write.
    #[track_caller]
    pub(crate) fn writes_ipam(&self) {
        let mark = deletion_mark(self.cluster.group.unwrap(), false);
        for (kind, plural, spec) in [
            (
                "IPAMBlock",
                "ipamblocks",
                json!({
                    "cidr": "10.66.0.0/32", "affinity": "host:node1", "strictAffinity": false,
                    "allocations": [null], "unallocated": [0], "attributes": [],
                }),
            ),
            (
                "BlockAffinity",
                "blockaffinities",
                json!({ "state": "confirmed", "node": "node1", "type": "host",
                        "cidr": "10.66.0.0/32",
                    "deleted": mark }),
            ),
            (
                "IPAMHandle",
                "ipamhandles",
                json!({ "handleID": "stolen", "block": {} }),
            ),
        ] {
            self.writes(kind, &self.cluster.collection(plural), &spec);
        }
    }

    #[track_caller]
    pub(crate) fn assert_every_right_used(&self) {
        let mut requests = self.audit.of(&self.user).unwrap();
        requests.retain(|request| request.code != Some(403));
        let used = Role::used_by(&requests);
        let unused = Role(self.role.0.difference(&used.0).cloned().collect());
        assert_eq!(
            unused,
            Role::default(),
            "granted, and not tried by the thief:\n{unused}"
        );
    }
}

#[track_caller]
pub(crate) fn done(answer: Result<Answer>) -> Value {
    answer.and_then(Answer::checked).unwrap()
}

/// Expects that the API server refuses each of these requests for lack of a right.
#[track_caller]
pub(crate) fn assert_refused(requests: impl IntoIterator<Item = (&'static str, Result<Answer>)>) {
    for (what, answer) in requests {
        let answer = answer.unwrap();
        assert_eq!(answer.code, 403, "{what}: {answer:?}");
    }
}
