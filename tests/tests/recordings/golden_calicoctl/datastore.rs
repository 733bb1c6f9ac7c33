//! [`Datastore`]: etcd or an API server, on which a course is replayed.

use anyhow::Result;
use integration_tests::Place;
use integration_tests::etcd::{self, Etcd};
use integration_tests::golden::calicoctl::Course;
use integration_tests::kubernetes::{ApiServer, Objects, ServiceAccount, on_prepared_kubernetes};
use integration_tests::namespaces::isolated;
pub(crate) use integration_tests::on;
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use integration_tests::store::Store;

use crate::golden_calicoctl::loaded_course::LoadedCourse;

/// A datastore without objects of Calico.
pub(crate) struct Datastore<'a> {
    store: Store,
    /// The server of pods and nodes, on Kubernetes.
    pub(crate) api: Option<&'a ApiServer>,
}

/// Runs a test with a datastore. An API server defines all kinds of Calico, has the account of
/// [`administrator`], and has no namespace for pods.
pub(crate) fn on(place: Place, test: impl FnOnce(Datastore<'_>) + Send) {
    if place == Place::Etcd {
        if !Etcd::installed() {
            return skipped(etcd::REQUIRES);
        }
        return isolated(|host| {
            test(Datastore {
                store: Store::etcd(host).unwrap(),
                api: None,
            });
        });
    }
    let group = place.api_group();
    let prepare = move |api: &ApiServer| {
        api.define(group.api_version())?;
        api.define_others(group.api_version())?;
        administrator(api).map(drop)
    };
    let preparation = format!("all kinds of {}", group.name());
    on_prepared_kubernetes(&preparation, prepare, |_, kubernetes| {
        let api = &kubernetes.api;
        let objects = Objects::new(api.admin(), group, api.admin_kubeconfig());
        test(Datastore {
            store: Store::Kubernetes(objects),
            api: Some(api),
        });
    });
}

/// Creates an account that may do everything. Writes nothing if it exists.
pub(crate) fn administrator(api: &ApiServer) -> Result<ServiceAccount> {
    let account = api.service_account("kube-system", "administrator")?;
    api.bind(&account, "cluster-admin")?;
    Ok(account)
}

impl<'a> Datastore<'a> {
    /// Reads a course, whose steps are replayed here.
    pub(crate) fn course(self, name: &str) -> LoadedCourse<'a> {
        LoadedCourse {
            course: Course::read(name).unwrap(),
            plugins: Plugins::locate().unwrap(),
            store: self.store,
            api: self.api,
        }
    }
}
