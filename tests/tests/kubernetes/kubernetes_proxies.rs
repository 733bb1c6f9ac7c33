//! Real proxies between clients and a real API server, and programs of a node that follow no proxy.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use integration_tests::cluster::{self, Cluster, ControlPlane};
use integration_tests::command::ip;
use integration_tests::content::Content;
use integration_tests::forward_proxy::{ForwardProxy, REQUIRES};
use integration_tests::kubernetes::{ApiServer, ServiceAccount};
use integration_tests::namespaces::Host;
use integration_tests::plugin::{Call, Outcome};
use integration_tests::proxy::Proxy;
use integration_tests::skip::skipped;
use integration_tests::{Place, on};
use serde_json::{Value, json};

/// An address of the host in the API server's certificate. Clients reach loopback addresses without
/// a proxy.
const FAR: &str = "10.96.0.1";
const LOGIN: Option<(&str, &str)> = Some(("person", "p4ssw0rd"));
const AN_INVALID_PROXY: &str = "http://[";

/// The API server at an address that is not loopback, and a user with all rights.
struct FarServer<'a> {
    cluster: &'a Cluster<'a>,
    api: &'a ApiServer,
    account: &'a ServiceAccount,
    /// Host and port of the API server.
    target: String,
    _relay: Proxy,
}

fn on(place: Place, test: fn(&FarServer<'_>)) {
    let at_far_address = |cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
        test(&FarServer::new(cluster, control_plane));
    };
    cluster::on(place, at_far_address);
}

/// Later tests on the API server have its host without the address.
impl Drop for FarServer<'_> {
    fn drop(&mut self) {
        _ = ip(&format!("address delete {FAR}/32 dev lo"));
    }
}

impl<'a> FarServer<'a> {
    fn new(cluster: &'a Cluster<'a>, control_plane: &'a ControlPlane<'_>) -> FarServer<'a> {
        let api = &control_plane.servers.api;
        ip(&format!("address add {FAR}/32 dev lo")).unwrap();
        let listener = TcpListener::bind(format!("{FAR}:0")).unwrap();
        FarServer {
            cluster,
            api,
            account: &control_plane.account,
            target: listener.local_addr().unwrap().to_string(),
            _relay: api.proxy_on(listener).unwrap(),
        }
    }

    /// Writes a kubeconfig whose cluster has this proxy.
    fn kubeconfig(&self, proxy_url: Option<&str>) -> PathBuf {
        let url = format!("https://{}", self.target);
        let file = self
            .api
            .kubeconfig_to(&url, "person", &self.account.identity)
            .unwrap();
        let mut kubeconfig: Value =
            serde_norway::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        if let Some(proxy_url) = proxy_url {
            kubeconfig["clusters"][0]["cluster"]["proxy-url"] = json!(proxy_url);
        }
        fs::write(&file, kubeconfig.to_string()).unwrap();
        file
    }

    /// Prepares `calico-ipam get ippools` of a person.
    fn command(&self, proxy_url: Option<&str>) -> Call {
        let kubeconfig = self.kubeconfig(proxy_url);
        let call = self
            .cluster
            .plugins
            .call("calico-ipam")
            .args(["get", "ippools"]);
        call.env("DATASTORE_TYPE", "kubernetes")
            .env("KUBECONFIG", kubeconfig)
    }
}

fn succeeds(call: &Call) {
    let outcome = call.run();
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
}

fn refusal(call: &Call) -> Outcome {
    let outcome = call.run();
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    outcome
}

#[on(kubernetes_v1)]
fn command_passes_through_each_kind_of_proxy(server: &FarServer<'_>) {
    if !ForwardProxy::installed() {
        return skipped(REQUIRES);
    }
    let certificate = server.api.server_certificate().unwrap();
    let proxies: [&dyn Fn() -> anyhow::Result<ForwardProxy>; 5] = [
        &|| ForwardProxy::http(server.cluster.host, None),
        &|| ForwardProxy::http(server.cluster.host, LOGIN),
        &|| ForwardProxy::https(server.cluster.host, &certificate),
        &|| ForwardProxy::socks5(server.cluster.host, None),
        &|| ForwardProxy::socks5(server.cluster.host, LOGIN),
    ];
    for start in proxies {
        let proxy = start().unwrap();
        let before = proxy.requests_for(&server.target).unwrap();
        // The CA certificates of the host verify the proxy, and those of the kubeconfig the API
        // server.
        let command = server
            .command(Some(&proxy.url()))
            .env("SSL_CERT_FILE", server.api.authority());
        succeeds(&command);
        assert!(
            proxy.requests_for(&server.target).unwrap() > before,
            "{proxy:?}"
        );
    }
}

#[on(kubernetes_v1)]
fn refusal_of_a_login_by_a_proxy_is_named_without_the_password(server: &FarServer<'_>) {
    type Start = fn(&Host, Option<(&'static str, &'static str)>) -> anyhow::Result<ForwardProxy>;
    if !ForwardProxy::installed() {
        return skipped(REQUIRES);
    }
    for (start, url) in [
        (
            ForwardProxy::http as Start,
            "http://person:wr0ng@127.0.0.1:3128",
        ),
        (ForwardProxy::http, "http://127.0.0.1:3128"),
        (ForwardProxy::socks5, "socks5://person:wr0ng@127.0.0.1:1080"),
        (ForwardProxy::socks5, "socks5://127.0.0.1:1080"),
    ] {
        let _proxy = start(server.cluster.host, LOGIN).unwrap();
        let stderr = refusal(&server.command(Some(url))).stderr;
        assert!(
            stderr.contains("a password") || stderr.contains("the password"),
            "{url}: {stderr}"
        );
        assert!(!stderr.contains("wr0ng"), "{stderr}");
    }
}

#[on(kubernetes_v1)]
fn command_follows_the_proxy_variables(server: &FarServer<'_>) {
    if !ForwardProxy::installed() {
        return skipped(REQUIRES);
    }
    let proxy = ForwardProxy::http(server.cluster.host, None).unwrap();
    let command = server.command(None);
    for (variables, is_followed) in [
        (&[("HTTPS_PROXY", proxy.url().as_str())][..], true),
        (&[("https_proxy", "127.0.0.1:3128")], true),
        (
            &[
                ("HTTPS_PROXY", AN_INVALID_PROXY),
                ("NO_PROXY", "10.96.0.0/12"),
            ],
            false,
        ),
        (
            &[
                ("HTTPS_PROXY", proxy.url().as_str()),
                ("no_proxy", "example.com,*"),
            ],
            false,
        ),
        (
            &[
                ("HTTP_PROXY", AN_INVALID_PROXY),
                ("ALL_PROXY", AN_INVALID_PROXY),
            ],
            false,
        ),
    ] {
        let before = proxy.requests_for(&server.target).unwrap();
        succeeds(
            &variables
                .iter()
                .fold(command.clone(), |call, (name, value)| {
                    call.env(name, *value)
                }),
        );
        let after = proxy.requests_for(&server.target).unwrap();
        assert_eq!(after > before, is_followed, "{variables:?}");
    }
    let stderr = refusal(&command.clone().env("HTTPS_PROXY", AN_INVALID_PROXY)).stderr;
    assert!(stderr.contains("HTTPS_PROXY or https_proxy"), "{stderr}");
    let silent = "http://person:p4ssw0rd@127.0.0.1:9";
    let stderr = refusal(&command.env("HTTPS_PROXY", silent)).stderr;
    assert!(
        stderr.contains("proxy http://127.0.0.1:9: Connection refused"),
        "{stderr}"
    );
}

/// kube itself would read the variable, and fail. Shows SEC-75.
#[on(kubernetes_v1)]
fn plugin_ignores_an_invalid_proxy_variable(FarServer { cluster, .. }: &FarServer<'_>) {
    cluster.load(&Content::dual_stack());
    let (conf, pod) = (cluster.conf("node1", json!({})), cluster.pod(1));
    for verb in ["ADD", "DEL"] {
        let call = cluster
            .verb(verb, &pod, &conf)
            .env("HTTPS_PROXY", AN_INVALID_PROXY);
        call.env("https_proxy", AN_INVALID_PROXY).run().success();
    }
}

/// Shows SEC-75.
#[on(kubernetes_v1)]
fn plugin_with_a_proxy_url_is_refused(server: &FarServer<'_>) {
    let kubeconfig = server.kubeconfig(Some("http://person:p4ssw0rd@127.0.0.1:3128"));
    let conf = json!({
        "cniVersion": "1.1.0", "name": "k8s-pod-network", "type": "calico", "nodename": "node1",
        "datastore_type": "kubernetes", "nodename_file_optional": true,
        "ipam": { "type": "calico-ipam" },
        "kubernetes": { "kubeconfig": kubeconfig },
    });
    let outcome = server
        .cluster
        .plugins
        .call("calico")
        .env("CNI_COMMAND", "STATUS")
        .stdin(conf.to_string())
        .run();
    let error = outcome.error();
    let text = format!("{} {}", error.msg, error.details);
    assert!(
        text.contains("proxy-url of cluster lab is not supported on a node"),
        "{text}"
    );
    assert!(!text.contains("p4ssw0rd"), "{text}");
}
