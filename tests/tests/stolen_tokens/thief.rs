//! [`Thief`]: the owner of a stolen token. [`on_v1`]: the API server that most of the tests share.

use std::path::PathBuf;

use anyhow::Result;
use integration_tests::controllers::{World, deletion_mark};
use integration_tests::kubernetes::{
    Answer, ApiServer, Audit, Client, Permission, Role, on_prepared_kubernetes,
};
use integration_tests::manifests::deploy;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

pub(crate) const SYSTEM: &str = "kube-system";

pub(crate) struct Thief<'a> {
    pub(crate) world: World<'a>,
    pub(crate) client: Client,
    user: String,
    role: Role,
    audit: Audit,
}

/// Runs a test with Calico's objects in `crd.projectcalico.org/v1`, with KubeVirt's machines, and
/// with all accounts of this datastore and their roles.
pub(crate) fn on_v1(test: impl FnOnce(World<'_>) + Send) {
    let group = Some(ApiGroup::CrdV1);
    let prepare = move |api: &ApiServer| {
        World::prepare(api, group)?;
        api.define_machines()?;
        for (name, manifests) in [
            ("calico-cni", vec![deploy("rbac/calico-cni.yaml")]),
            (
                "calico-cni-plugin",
                vec![deploy("rbac/calico-cni-plugin.yaml")],
            ),
            (
                "calico-kube-controllers",
                Role::manifests_of_controllers().into(),
            ),
        ] {
            api.account_of(SYSTEM, name, &manifests)?;
        }
        Ok(())
    };
    on_prepared_kubernetes("all accounts", prepare, |_, servers| {
        test(World::prepared(servers, group))
    });
}

impl<'a> Thief<'a> {
    /// Creates the account with the roles of the manifests, and returns a thief with a token of it.
    pub(crate) fn of(world: World<'a>, manifests: &[PathBuf], account: &str) -> Thief<'a> {
        let stolen = world.api.account_of(SYSTEM, account, manifests).unwrap();
        let mut groups = vec!["", "apps", "kubevirt.io", "networking.k8s.io"];
        groups.extend(
            world
                .group
                .and_then(|group| group.api_version().split('/').next()),
        );
        let role = Role::of_manifests(manifests).unwrap().of_groups(&groups);
        Thief {
            client: stolen.client,
            user: stolen.user,
            role,
            audit: world.api.audit().unwrap(),
            world,
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
        let mut object = self.world.get(path);
        edit(&mut object);
        done(self.client.replace(path, &object));
    }

    #[track_caller]
    pub(crate) fn deletes(&self, path: &str) {
        done(self.client.delete(path));
        assert_eq!(
            self.world.api.admin().get(path).unwrap().code,
            404,
            "{path}"
        );
    }

    /// Creates an object named `stolen`.
    #[track_caller]
    pub(crate) fn creates_stolen(&self, kind: &str, collection: &str, spec: &Value) {
        let version = self.world.group.unwrap().api_version();
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
        let mark = deletion_mark(self.world.group.unwrap(), false);
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
            self.writes(kind, &self.world.collection(plural), &spec);
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
    answer.and_then(Answer::success).unwrap()
}

/// Expects that the API server refuses each of these requests for lack of a right.
#[track_caller]
pub(crate) fn assert_refused(requests: impl IntoIterator<Item = (&'static str, Result<Answer>)>) {
    for (what, answer) in requests {
        let answer = answer.unwrap();
        assert_eq!(answer.code, 403, "{what}: {answer:?}");
    }
}
