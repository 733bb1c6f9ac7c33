//! [`Startup`]: servers on which kube-controllers start, and probes of the process.

use std::process::Command;

use integration_tests::Place;
use integration_tests::controllers::{
    Controllers, ControllersCluster, PATIENCE, Proxied, Setup, await_that,
};
use integration_tests::kubernetes::{ApiServer, Kubernetes, on_prepared_kubernetes};
use integration_tests::namespaces::Host;
pub(crate) use integration_tests::on;
use integration_tests::plugin::Plugins;
use integration_tests::proxy::Proxy;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

/// The plural and the name of KubeControllersConfiguration.
const CONFIGURATION: (&str, &str) = ("kubecontrollersconfigurations", "default");

/// Servers, and the location of Calico's objects: etcd if `group` is `None`.
pub(crate) struct Startup<'a> {
    pub(crate) host: &'a Host,
    pub(crate) servers: &'a mut Kubernetes,
    pub(crate) group: Option<ApiGroup>,
}

/// Runs a test on servers without Calico's objects. The API server defines v1 for the tests with
/// etcd too, which share it with those of v1.
pub(crate) fn on(place: Place, test: fn(&mut Startup<'_>)) {
    let group = place.group();
    let defined = group.unwrap_or(ApiGroup::CrdV1);
    let prepare = move |api: &ApiServer| ControllersCluster::prepare(api, Some(defined));
    on_prepared_kubernetes(defined.api_version(), prepare, |host, servers| {
        test(&mut Startup {
            host,
            servers,
            group,
        });
    });
}

impl Startup<'_> {
    pub(crate) fn cluster(&self) -> ControllersCluster<'_> {
        ControllersCluster::prepared(self.host, self.servers, self.group)
    }

    pub(crate) fn setup(&self) -> Setup {
        self.cluster().setup()
    }

    /// Starts a proxy in front of the API server. Returns the proxy, and the setup of a
    /// kube-controllers that reaches the server through the proxy and may do everything.
    pub(crate) fn behind_proxy(&self) -> (Proxy, Setup) {
        let api = &self.servers.api;
        let proxy = api.proxy().unwrap();
        let account = Proxied::account(api, "early").unwrap();
        let kubeconfig = api.kubeconfig_to(&proxy.endpoint(), "early", &account.identity);
        let setup = self.cluster().setup_with(&kubeconfig.unwrap());
        (proxy, setup)
    }

    pub(crate) fn start(&self, setup: Setup) -> Controllers {
        setup.start(self.host, "controllers").unwrap()
    }

    /// Returns KubeControllersConfiguration; null if it is missing.
    pub(crate) fn configuration(&self) -> Value {
        let (plural, name) = CONFIGURATION;
        self.cluster().calico(plural, name)
    }

    pub(crate) fn configure(&self, patch: &Value) {
        let (plural, name) = CONFIGURATION;
        self.cluster().change(plural, name, patch);
    }

    pub(crate) fn overwrite_status(&self) {
        let nothing = json!({ "status": { "runningConfig": null, "environmentVars": null } });
        let (plural, name) = CONFIGURATION;
        if self.group.is_none() {
            return self.configure(&nothing);
        }
        let cluster = self.cluster();
        cluster.merge(&format!("{}/status", cluster.path(plural, name)), &nothing);
    }

    pub(crate) fn delete_configuration(&self) {
        let (plural, name) = CONFIGURATION;
        self.cluster().delete(plural, name);
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
