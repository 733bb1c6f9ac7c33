//! `calico-ipam` with a configuration file of calicoctl, and with a context of a kubeconfig.

#[expect(
    unreachable_pub,
    reason = "the datastore's own tests share it as a module"
)]
#[path = "../../../datastore/tests/stores/harness/certificates.rs"]
mod certificates;

use std::fs;

use certificates::Certificates;
use integration_tests::cluster::{Cluster, ControlPlane, on_one_group};
use integration_tests::content::Content;
use integration_tests::etcd::{self, Etcd};
use integration_tests::namespaces::isolated;
use integration_tests::plugin::{Call, Plugins};
use integration_tests::skip::skipped;
use integration_tests::store::Store;
use integration_tests::{Place, on};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

const TLS: &str = "https://127.0.0.1:2381";
/// A server that does not exist.
const DEAD: &str = "https://127.0.0.1:1";

/// The commands find the API group by themselves.
fn on(place: Place, test: fn(&Cluster<'_>, &mut ControlPlane<'_>)) {
    on_one_group(place.api_group(), test);
}

fn calicoctl_config(spec: &Value) -> NamedTempFile {
    let document = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "metadata": {},
        "spec": spec,
    });
    yaml_file(&document)
}

fn yaml_file(document: &Value) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), serde_norway::to_string(document).unwrap()).unwrap();
    file
}

/// Prepares `calico-ipam check` with an option that names a file.
fn check(cluster: &Cluster<'_>, option: &str, file: &NamedTempFile) -> Call {
    let call = cluster
        .plugins
        .call("calico-ipam")
        .args(["check", "--settle", "0", option]);
    call.args([file.path().to_str().unwrap()])
}

#[test]
fn check_with_a_calicoctl_config_works_on_etcd() {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    let ours = Certificates::new("ours");
    let mut flags = ours.etcd_flags();
    flags.push(format!("--listen-client-urls={},{TLS}", etcd::ENDPOINT));
    isolated(|host| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let store = Store::Etcd(Etcd::start_with(host, &flags).unwrap());
        let cluster = Cluster {
            host,
            plugins: Plugins::locate().unwrap(),
            store,
        };
        cluster.load(&Content::dual_stack());
        let file = calicoctl_config(&json!({
            "etcdEndpoints": TLS, "etcdCACert": ours.text("ca.pem"),
            "etcdCert": ours.text("client.pem"),
            "etcdKey": ours.text("client-key.pem"),
        }));
        let call = check(&cluster, "--calicoctl-config", &file);
        // The environment does not count.
        let outcome = call
            .env("ETCD_ENDPOINTS", DEAD)
            .env("ETCD_KEY_FILE", "/nowhere")
            .run();
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
        let without_certificate =
            calicoctl_config(&json!({ "etcdEndpoints": TLS, "etcdCACert": ours.text("ca.pem") }));
        let outcome = check(&cluster, "--calicoctl-config", &without_certificate).run();
        assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    });
}

#[on(kubernetes_v3)]
fn check_with_a_calicoctl_config_works_on_an_api_server(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(&Content::dual_stack());
    let kubeconfig = control_plane.servers.api.admin_kubeconfig();
    let inline = fs::read_to_string(&kubeconfig).unwrap();
    for spec in [
        json!({
            "datastoreType": "kubernetes", "kubeconfig": kubeconfig, "k8sCurrentContext": "lab",
        }),
        // An inline kubeconfig is used alone.
        json!({ "kubeconfigInline": inline, "k8sAPIEndpoint": DEAD, "k8sAPIToken": "none" }),
    ] {
        let file = calicoctl_config(&spec);
        let call = check(cluster, "--calicoctl-config", &file);
        let outcome = call
            .env("KUBECONFIG", "/nowhere")
            .env("K8S_API_ENDPOINT", DEAD)
            .run();
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    }
}

#[on(kubernetes_v1)]
fn context_option_selects_the_cluster_of_a_kubeconfig(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(&Content::dual_stack());
    let kubeconfig = fs::read_to_string(control_plane.servers.api.admin_kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_norway::from_str(&kubeconfig).unwrap();
    let dead = json!({ "name": "dead", "cluster": { "server": DEAD } });
    kubeconfig["clusters"].as_array_mut().unwrap().push(dead);
    let dead = json!({ "name": "dead", "context": { "cluster": "dead", "user": "lab" } });
    kubeconfig["contexts"].as_array_mut().unwrap().push(dead);
    kubeconfig["current-context"] = json!("dead");
    let file = yaml_file(&kubeconfig);
    let check = |context: &[&str]| {
        check(cluster, "--kubeconfig", &file)
            .args(context.iter().copied())
            .run()
    };
    assert_eq!(check(&[]).exit, Some(1));
    let lab = check(&["--context", "lab"]);
    assert_eq!(lab.exit, Some(0), "{lab:?}");
    let unknown = check(&["--context", "staging"]);
    assert!(
        unknown.exit == Some(1) && unknown.stderr.contains("staging"),
        "{unknown:?}"
    );
}
