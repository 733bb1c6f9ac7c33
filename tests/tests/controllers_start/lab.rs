//! [`Lab`]: a control plane on which kube-controllers starts, and its probes.

use std::process::Command;

use integration_tests::controllers::{Controllers, PATIENCE, Setup, await_that, merge};
use integration_tests::kubernetes::{ApiServer, Kubernetes, on_prepared_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::plugin::Plugins;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

pub(crate) const CONFIGURATIONS: &str =
    "/calico/resources/v3/projectcalico.org/kubecontrollersconfigurations/default";

/// A control plane, and the location of Calico's objects: etcd if `group` is `None`.
pub(crate) struct Lab<'a> {
    pub(crate) host: &'a Host,
    pub(crate) kubernetes: &'a mut Kubernetes,
    pub(crate) group: Option<ApiGroup>,
}

impl Lab<'_> {
    pub(crate) fn setup(&self) -> Setup {
        let api = &self.kubernetes.api;
        if self.group.is_some() {
            Setup::kubernetes(api)
        } else {
            Setup::etcd(api)
        }
        .unwrap()
    }

    pub(crate) fn start(&self, setup: Setup) -> Controllers {
        setup.start(self.host, "controllers").unwrap()
    }

    /// Returns a singleton object, or null if it is missing.
    pub(crate) fn object(&self, key: &str) -> Value {
        match self.url(key) {
            None => self
                .kubernetes
                .etcd
                .dump()
                .unwrap()
                .remove(key)
                .unwrap_or_default(),
            Some(url) => {
                let answer = self.kubernetes.api.admin().get(&url).unwrap();
                if answer.code == 404 {
                    Value::Null
                } else {
                    answer.success().unwrap()
                }
            }
        }
    }

    pub(crate) fn configuration(&self) -> Value {
        self.object(CONFIGURATIONS)
    }

    pub(crate) fn configure(&self, patch: &Value) {
        match self.url(CONFIGURATIONS) {
            None => {
                let mut object = self.configuration();
                merge(&mut object, patch);
                self.kubernetes
                    .etcd
                    .put(CONFIGURATIONS, object.to_string().as_bytes())
                    .unwrap();
            }
            Some(url) => {
                _ = self
                    .kubernetes
                    .api
                    .admin()
                    .patch(&url, patch)
                    .unwrap()
                    .success()
                    .unwrap()
            }
        }
    }

    pub(crate) fn overwrite_status(&self) {
        match self.url(CONFIGURATIONS) {
            None => self.configure(
                &json!({ "status": { "runningConfig": null, "environmentVars": null } }),
            ),
            Some(url) => {
                let nothing =
                    json!({ "status": { "runningConfig": null, "environmentVars": null } });
                _ = self
                    .kubernetes
                    .api
                    .admin()
                    .patch(&format!("{url}/status"), &nothing)
                    .unwrap()
                    .success()
                    .unwrap();
            }
        }
    }

    pub(crate) fn delete_configuration(&self) {
        match self.url(CONFIGURATIONS) {
            None => self.kubernetes.etcd.delete(CONFIGURATIONS).unwrap(),
            Some(url) => {
                _ = self
                    .kubernetes
                    .api
                    .admin()
                    .delete(&url)
                    .unwrap()
                    .success()
                    .unwrap()
            }
        }
    }

    /// Returns the URL path of the object, or `None` if the object is in etcd.
    pub(crate) fn url(&self, key: &str) -> Option<String> {
        let (plural, name) = key
            .rsplit_once('/')
            .and_then(|(rest, name)| Some((rest.rsplit_once('/')?.1, name)))
            .unwrap();
        Some(format!(
            "/apis/{}/{plural}/{name}",
            self.group?.api_version()
        ))
    }

    /// Waits until the status has this value at `pointer`.
    #[track_caller]
    pub(crate) fn await_status(&self, pointer: &str, expected: &Value) {
        let shown = || {
            self.configuration()["status"]
                .pointer(pointer)
                .cloned()
                .unwrap_or_default()
        };
        let same = await_that(PATIENCE, || Ok(shown() == *expected));
        assert!(same.is_ok(), "{pointer} is {}, not {expected}", shown());
    }
}

pub(crate) fn on(group: Option<ApiGroup>, test: fn(&mut Lab<'_>)) {
    let prepare =
        move |api: &ApiServer| group.map_or(Ok(()), |group| api.define(group.api_version()));
    on_prepared_kubernetes(&format!("{group:?}"), prepare, |host, kubernetes| {
        test(&mut Lab {
            host,
            kubernetes,
            group,
        });
    });
}

/// Runs `check-status`. Returns true if it succeeds, and its output.
pub(crate) fn check_status(controllers: &Controllers, flag: &str) -> (bool, String) {
    let program = Plugins::locate().unwrap().dir().join("check-status");
    let output = Command::new(program)
        .arg(flag)
        .arg("-f")
        .arg(controllers.status_file())
        .output()
        .unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap().trim().to_owned(),
    )
}

#[track_caller]
pub(crate) fn await_ready(controllers: &Controllers, ready: bool) {
    let as_expected = await_that(PATIENCE * 2, || {
        Ok(check_status(controllers, "-r").0 == ready)
    });
    assert!(
        as_expected.is_ok(),
        "{:?}\n{}",
        check_status(controllers, "-r"),
        controllers.log().unwrap()
    );
}

pub(crate) fn page(port: u16, path: &str) -> Result<Vec<u8>, ureq::Error> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .proxy(None)
        .build();
    ureq::Agent::from(agent)
        .get(format!("http://127.0.0.1:{port}{path}"))
        .call()?
        .into_body()
        .read_to_vec()
}

pub(crate) fn serves(port: u16, path: &str) -> bool {
    page(port, path).is_ok()
}

#[track_caller]
pub(crate) fn await_served(port: u16, path: &str) {
    assert!(
        await_that(PATIENCE, || Ok(serves(port, path))).is_ok(),
        "{path} is not served on {port}"
    );
}
