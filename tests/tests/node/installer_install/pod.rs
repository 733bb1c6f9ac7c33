//! The installer in a pod, with a real API server.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use integration_tests::etcd;
use integration_tests::installation::{BIN, Container, NET, SERVICE_ACCOUNT};
use integration_tests::kubernetes::{
    ADDRESS, ApiServer, Identity, Kubernetes, ServiceAccount, on_prepared_kubernetes,
    on_shared_kubernetes,
};
use integration_tests::namespaces::Host;
use integration_tests::plugin::{DEADLINE, Outcome, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{DEFAULT, failed, logged, succeeded};

const KUBECONFIG: &str = "calico-kubeconfig";

struct Pod<'k> {
    container: Container,
    api: &'k ApiServer,
    token: String,
}

/// Runs a test on an API server with Calico's kinds.
fn on(test: impl FnOnce(&Host, &mut Kubernetes) + Send) {
    let prepare = |api: &ApiServer| api.define("crd.projectcalico.org/v1");
    on_prepared_kubernetes("kinds", prepare, test);
}

impl<'k> Pod<'k> {
    fn new(host: &Host, kubernetes: &'k Kubernetes, token: &str) -> Pod<'k> {
        let (container, api) = (Container::new(host, "c").unwrap(), &kubernetes.api);
        for (name, text) in [
            ("token", token),
            ("namespace", "kube-system"),
            ("ca.crt", &api.authority_certificate()),
        ] {
            container
                .file(&format!("{SERVICE_ACCOUNT}/{name}"), text)
                .unwrap();
        }
        Pod {
            container,
            api,
            token: token.to_owned(),
        }
    }

    /// Creates a pod with the DaemonSet's account, which has the rights of `deploy/` and the rules
    /// `more`.
    fn of_daemon_set(host: &Host, kubernetes: &'k Kubernetes, more: &[Value]) -> Pod<'k> {
        let api = &kubernetes.api;
        let account = api.service_account("kube-system", "calico-cni").unwrap();
        api.service_account("kube-system", "calico-cni-plugin")
            .unwrap();
        let Identity::Token(token) = &account.identity else {
            panic!("an account has a token")
        };
        grant(api, &account, more);
        Pod::new(host, kubernetes, token)
    }

    fn run(&self, variables: &[(&str, &str)]) -> Outcome {
        let outcome = self.call(variables).run();
        self.assert_no_token(&outcome);
        outcome
    }

    fn call(&self, variables: &[(&str, &str)]) -> integration_tests::plugin::Call {
        let (host, port) = ADDRESS.split_once(':').unwrap();
        let own = [
            ("KUBERNETES_SERVICE_HOST", host),
            ("KUBERNETES_SERVICE_PORT", port),
        ];
        let variables = own.iter().chain(variables);
        variables.fold(self.container.install(), |call, (name, value)| {
            call.env(name, *value)
        })
    }

    fn plugins_token(&self) -> String {
        let text = self.container.conf(KUBECONFIG).unwrap();
        let token = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("token: "))
            .map(str::to_owned);
        token.unwrap_or_else(|| panic!("{text}"))
    }

    fn assert_no_token(&self, outcome: &Outcome) {
        let plugins = self
            .container
            .conf(KUBECONFIG)
            .is_ok()
            .then(|| self.plugins_token());
        for token in [Some(self.token.clone()), plugins].into_iter().flatten() {
            assert!(
                !outcome.stderr.contains(&token) && !outcome.stdout.contains(&token),
                "a token is in the log"
            );
        }
    }
}

fn grant(api: &ApiServer, account: &ServiceAccount, more: &[Value]) {
    let mut rules = vec![
        json!({ "apiGroups": [""], "resources": ["serviceaccounts/token"],
                "resourceNames": ["calico-cni-plugin"],
                "verbs": ["create"] }),
        json!({
            "apiGroups": ["crd.projectcalico.org"], "resources": ["clusterinformations"],
            "verbs": ["get", "create"],
        }),
    ];
    rules.extend_from_slice(more);
    api.cluster_role("calico-cni", &json!(rules)).unwrap();
    api.bind(account, "calico-cni").unwrap();
}

/// Allows the plugins' account to read the ClusterInformation, the only object that a trial reads.
fn allow_the_trial(api: &ApiServer) {
    let plugin = api
        .service_account("kube-system", "calico-cni-plugin")
        .unwrap();
    let rule = json!([{
        "apiGroups": ["crd.projectcalico.org"], "resources": ["clusterinformations"],
        "verbs": ["get"],
    }]);
    api.cluster_role("calico-cni-plugin", &rule).unwrap();
    api.bind(&plugin, "calico-cni-plugin").unwrap();
}

/// As in upstream's test, the pod's token is invalid.
#[test]
fn install_uses_kubeconfig_instead_of_the_pods_account() {
    on_shared_kubernetes(|host, kubernetes| {
        kubernetes
            .api
            .service_account("kube-system", "calico-cni-plugin")
            .unwrap();
        let pod = Pod::new(host, kubernetes, "my-secret-key");
        let certs = fs::read(kubernetes.api.admin_kubeconfig()).unwrap();
        pod.container
            .file("home/user/certs/kubeconfig", certs)
            .unwrap();
        let variables = [
            ("KUBECONFIG", "/home/user/certs/kubeconfig"),
            ("CNI_TRY_SECONDS", "0"),
        ];
        succeeded(&pod.run(&variables));
        assert_eq!(pod.container.conf("10-calico.conflist").unwrap(), DEFAULT);
        let kubeconfig = pod.container.path(NET).join(KUBECONFIG);
        assert_eq!(
            fs::metadata(kubeconfig).unwrap().permissions().mode() & 0o7777,
            0o600
        );
        let plugins = kubernetes
            .api
            .client(&Identity::Token(pod.plugins_token()))
            .unwrap();
        assert_eq!(plugins.get("/version").unwrap().code, 200);
    });
}

#[test]
fn install_creates_missing_cluster_objects_once() {
    on(|host, kubernetes| {
        let pools = json!({
            "apiGroups": ["crd.projectcalico.org"], "resources": ["ippools"],
            "verbs": ["list", "create"],
        });
        let pod = Pod::of_daemon_set(host, kubernetes, &[pools]);
        allow_the_trial(&kubernetes.api);
        let pool = [
            ("CALICO_IPV4POOL_CIDR", "10.65.0.0/16"),
            ("CALICO_IPV4POOL_BLOCK_SIZE", "27"),
        ];
        let outcome = pod.run(&pool);
        succeeded(&outcome);
        logged(&outcome, "created ClusterInformation default");
        logged(&outcome, "created IPPool default-ipv4-ippool, 10.65.0.0/16");
        logged(&outcome, "the new configuration works");
        let get = |path: &str| {
            let path = format!("/apis/crd.projectcalico.org/v1/{path}");
            pod.api.admin().get(&path).unwrap().success()
        };
        let information = &get("clusterinformations/default")["spec"];
        assert_eq!(
            (&information["datastoreReady"], &information["clusterType"]),
            (&json!(true), &json!("k8s,kdd"))
        );
        assert_eq!(information["calicoVersion"], Value::Null);
        let made = &get("ippools/default-ipv4-ippool")["spec"];
        assert_eq!(
            (&made["cidr"], &made["blockSize"], &made["natOutgoing"]),
            (&json!("10.65.0.0/16"), &json!(27), &json!(true))
        );

        let (before, audit) = (pod.container.fingerprint(), pod.api.audit().unwrap());
        succeeded(&pod.run(&pool));
        assert_eq!(pod.container.fingerprint(), before);
        let requests = audit.lines().unwrap();
        assert!(
            requests
                .iter()
                .all(|line| line.starts_with("get ") || line.starts_with("list ")),
            "{requests:?}"
        );
    });
}

#[test]
fn install_creates_ipam_settings_with_strict_affinity_and_keeps_existing_settings() {
    on(|host, kubernetes| {
        let rule = json!({ "apiGroups": ["crd.projectcalico.org"], "resources": ["ipamconfigs"],
            "verbs": ["get", "create"] });
        let pod = Pod::of_daemon_set(host, kubernetes, &[rule]);
        let path = "/apis/crd.projectcalico.org/v1/ipamconfigs/default";
        let strict =
            || pod.api.admin().get(path).unwrap().success()["spec"]["strictAffinity"].clone();
        let variables = [
            ("CALICO_IPAM_STRICT_AFFINITY", "true"),
            ("CNI_TRY_SECONDS", "0"),
        ];
        let outcome = pod.run(&variables);
        succeeded(&outcome);
        logged(&outcome, "created IPAMConfig default, with strictAffinity");
        assert_eq!(strict(), json!(true));

        pod.api.admin().delete(path).unwrap().success();
        let config = json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMConfig",
            "metadata": { "name": "default" },
            "spec": { "strictAffinity": false, "autoAllocateBlocks": true } });
        pod.api.admin().apply_object(&config).unwrap();
        let outcome = pod.run(&variables);
        succeeded(&outcome);
        logged(
            &outcome,
            "the existing IPAMConfig has strictAffinity: false and stays",
        );
        assert_eq!(strict(), json!(false));
    });
}

/// A deferred DEL then names its datastore by this identity, even if no agent runs.
#[test]
fn install_stores_the_datastore_identity_with_the_plugins_credentials() {
    on(|host, kubernetes| {
        let api = &kubernetes.api;
        let pod = Pod::of_daemon_set(host, kubernetes, &[]);
        let account = api
            .service_account("kube-system", "calico-cni-plugin")
            .unwrap();
        let rules = json!([
            {
                "apiGroups": ["crd.projectcalico.org"], "resources": ["clusterinformations"],
                "verbs": ["get"],
            },
            {
                "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"],
                "verbs": ["get"],
            },
        ]);
        api.cluster_role("calico-cni-plugin", &rules).unwrap();
        api.bind(&account, "calico-cni-plugin").unwrap();
        let outcome = pod.run(&[]);
        succeeded(&outcome);
        let system = api
            .admin()
            .get("/api/v1/namespaces/kube-system")
            .unwrap()
            .success();
        let uid = system["metadata"]["uid"].as_str().unwrap();
        let journal = pod.container.path("var/lib/calico/cni-journal");
        let learned: Vec<String> = fs::read_dir(&journal)
            .unwrap_or_else(|error| panic!("{}: {error}; {}", journal.display(), outcome.stderr))
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "datastore")
            })
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        assert!(
            matches!(&learned[..], [one] if one.contains(&format!("kubernetes {uid}"))),
            "{learned:?}, not {uid}"
        );
    });
}

/// As in the plugin, keys are case-insensitive, and a configuration without a datastore type means
/// Kubernetes (CNI-63).
#[test]
fn install_selects_the_same_datastore_as_the_plugin() {
    on(|host, kubernetes| {
        let pod = Pod::of_daemon_set(host, kubernetes, &[]);
        let information = "/apis/crd.projectcalico.org/v1/clusterinformations/default";
        for template in [
            r#"{"type": "calico", "Datastore_Type": "kubernetes"}"#,
            r#"{"type": "calico"}"#,
        ] {
            let outcome = pod.run(&[("CNI_NETWORK_CONFIG", template), ("CNI_TRY_SECONDS", "0")]);
            succeeded(&outcome);
            logged(&outcome, "created ClusterInformation default");
            pod.api.admin().delete(information).unwrap().success();
        }
        let local = r#"{"type": "calico", "datastore_type": "local"}"#;
        for template in [local, r#"{"type": "flannel"}"#] {
            let cluster = [
                ("CALICO_IPV4POOL_CIDR", "10.65.0.0/16"),
                ("CALICO_IPAM_STRICT_AFFINITY", "true"),
            ];
            let outcome = pod.run(&[
                ("CNI_NETWORK_CONFIG", template),
                ("CNI_TRY_SECONDS", "0"),
                cluster[0],
                cluster[1],
            ]);
            succeeded(&outcome);
            logged(
                &outcome,
                "IPPool default-ipv4-ippool, 10.65.0.0/16, is not created: ",
            );
            logged(
                &outcome,
                "IPAMConfig default, with strictAffinity, is not created: ",
            );
        }
    });
}

/// IPAM assigns no address without the Node, and on etcd there may be no other program that creates
/// it.
#[test]
fn install_on_etcd_creates_the_node_too() {
    on_shared_kubernetes(|host, kubernetes| {
        let pod = Pod::of_daemon_set(host, kubernetes, &[]);
        let conf = json!({
            "type": "calico", "datastore_type": "etcdv3", "etcd_endpoints": etcd::ENDPOINT,
        });
        let conf = conf.to_string();
        let pool = ("CALICO_IPV4POOL_CIDR", "10.65.0.0/16");
        let variables = [
            ("CNI_NETWORK_CONFIG", conf.as_str()),
            pool,
            ("CNI_TRY_SECONDS", "0"),
        ];
        let outcome = pod.run(&variables);
        succeeded(&outcome);
        for words in [
            "created ClusterInformation default",
            "created Node my-node",
            "created IPPool default-ipv4-ippool",
        ] {
            logged(&outcome, words);
        }
        let calicos = || -> BTreeMap<_, _> {
            let all = kubernetes.etcd.dump().unwrap();
            all.into_iter()
                .filter(|(key, _)| key.starts_with("/calico/"))
                .collect()
        };
        let made = calicos();
        let node = &made["/calico/resources/v3/projectcalico.org/nodes/my-node"];
        assert_eq!(
            node["spec"]["orchRefs"],
            json!([{ "nodeName": "my-node", "orchestrator": "k8s" }])
        );
        assert_eq!(
            made["/calico/resources/v3/projectcalico.org/ippools/default-ipv4-ippool"]["spec"]["cidr"],
            pool.1
        );
        succeeded(&pod.run(&variables));
        assert_eq!(calicos(), made);
    });
}

/// The existing installation works while the kubelet restarts the container.
#[test]
fn install_with_etcd_unreachable_fails_and_keeps_the_configuration() {
    on_shared_kubernetes(|host, kubernetes| {
        let pod = Pod::of_daemon_set(host, kubernetes, &[]);
        pod.container
            .file(&format!("{NET}/10-calico.conflist"), "{}")
            .unwrap();
        let conf = r#"{"type": "calico", "datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:9"}"#;
        let outcome = pod.run(&[("CNI_NETWORK_CONFIG", conf), ("CNI_TRY_SECONDS", "0")]);
        failed(&outcome, "datastore http://127.0.0.1:9/ is unavailable");
        logged(
            &outcome,
            "this run cannot create the Node in etcd, without which no pod gets an address",
        );
        assert_eq!(pod.container.conf("10-calico.conflist").unwrap(), "{}");
    });
}

/// An installer outside a pod has no service account, which etcd does not need.
#[test]
fn install_outside_of_a_pod_creates_the_etcd_objects_too() {
    on_shared_kubernetes(|host, kubernetes| {
        let container = Container::new(host, "c").unwrap();
        let pool = ("CALICO_IPV4POOL_CIDR", "10.65.0.0/16");
        let run = |conf: String| {
            let outcome = container
                .run(&[
                    ("CNI_NETWORK_CONFIG", &conf),
                    pool,
                    ("CNI_TRY_SECONDS", "0"),
                ])
                .unwrap();
            succeeded(&outcome);
            outcome
        };
        let etcd = |endpoints: &str| {
            json!({ "type": "calico", "datastore_type": "etcdv3", "etcd_endpoints": endpoints })
                .to_string()
        };
        // Without a reachable etcd there is only a warning: the image of a node may be built on
        // another machine.
        logged(&run(etcd("http://127.0.0.1:9")), "[WARNING]");
        let outcome = run(etcd(etcd::ENDPOINT));
        for words in [
            "created ClusterInformation default",
            "created Node my-node",
            "created IPPool default-ipv4-ippool",
        ] {
            logged(&outcome, words);
        }
        assert!(
            kubernetes
                .etcd
                .dump()
                .unwrap()
                .contains_key("/calico/resources/v3/projectcalico.org/nodes/my-node")
        );
        // On Kubernetes the installer lacks the rights outside a pod.
        let outcome = run(r#"{"type": "calico", "datastore_type": "kubernetes"}"#.into());
        logged(
            &outcome,
            "IPPool default-ipv4-ippool, 10.65.0.0/16, is not created: there is no service account",
        );
    });
}

#[test]
fn install_replaces_an_invalid_token() {
    on_shared_kubernetes(|host, kubernetes| {
        let pod = Pod::of_daemon_set(host, kubernetes, &[]);
        let quick = [("CNI_TRY_SECONDS", "0")];
        succeeded(&pod.run(&quick));
        let token = pod.plugins_token();
        succeeded(&pod.run(&quick));
        assert_eq!(pod.plugins_token(), token);
        // A deleted account makes its tokens invalid.
        let account = "/api/v1/namespaces/kube-system/serviceaccounts/calico-cni-plugin";
        pod.api.admin().delete(account).unwrap().success();
        pod.api
            .service_account("kube-system", "calico-cni-plugin")
            .unwrap();
        let plugins = pod.api.client(&Identity::Token(token.clone())).unwrap();
        let patience = Instant::now() + DEADLINE;
        while plugins.get("/version").unwrap().code != 401 {
            assert!(Instant::now() < patience, "the old token still opens");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        succeeded(&pod.run(&quick));
        assert_ne!(pod.plugins_token(), token);
    });
}

#[test]
fn install_without_token_permission_keeps_the_former_installation() {
    on_shared_kubernetes(|host, kubernetes| {
        let account = kubernetes
            .api
            .service_account("kube-system", "calico-cni")
            .unwrap();
        let Identity::Token(token) = &account.identity else {
            panic!("an account has a token")
        };
        let pod = Pod::new(host, kubernetes, token);
        pod.container
            .file(&format!("{NET}/10-calico.conflist"), "{}")
            .unwrap();
        pod.container
            .file(&format!("{NET}/{KUBECONFIG}"), "token: before\n")
            .unwrap();
        failed(&pod.run(&[]), "serviceaccounts/token");
        assert_eq!(pod.container.conf("10-calico.conflist").unwrap(), "{}");
        assert_eq!(pod.container.conf(KUBECONFIG).unwrap(), "token: before\n");
        fs::remove_file(pod.container.path(SERVICE_ACCOUNT).join("ca.crt")).unwrap();
        failed(&pod.run(&[]), "ca.crt");
    });
}

/// calico-node starts after this container and makes the datastore ready.
#[test]
fn configuration_that_does_not_work_yet_is_reported_and_installed() {
    on_shared_kubernetes(|host, kubernetes| {
        let pod = Pod::of_daemon_set(host, kubernetes, &[]);
        let outcome = pod.run(&[("CNI_TRY_SECONDS", "1")]);
        succeeded(&outcome);
        logged(&outcome, "cannot get or create ClusterInformation default");
        logged(
            &outcome,
            "the new configuration does not work yet and is installed anyway",
        );
        // On a busy machine the plugin may need more than the second that CNI_TRY_SECONDS gives it.
        let reasons = [
            "data store connection failed",
            "the plugin did not answer in time",
        ];
        assert!(
            reasons.iter().any(|reason| outcome.stderr.contains(reason)),
            "{}",
            outcome.stderr
        );
        assert_eq!(pod.container.conf("10-calico.conflist").unwrap(), DEFAULT);
    });
}

#[test]
fn pod_token_is_written_only_into_a_template_with_its_placeholder() {
    on_shared_kubernetes(|host, kubernetes| {
        let pod = Pod::of_daemon_set(host, kubernetes, &[]);
        let template = r#"{"name": "canal", "type": "flannel", "token": "__SERVICEACCOUNT_TOKEN__", "mtu": broken}"#;
        failed(
            &pod.run(&[("CNI_NETWORK_CONFIG", template)]),
            "is not valid JSON",
        );
        let template = template.replace("broken", "0");
        succeeded(&pod.run(&[("CNI_NETWORK_CONFIG", &template)]));
        assert_eq!(
            pod.container.conf("10-calico.conflist").unwrap(),
            template.replace("__SERVICEACCOUNT_TOKEN__", &pod.token)
        );
    });
}

#[test]
fn installer_stays_until_sigterm_and_keeps_the_installed_files() {
    on_shared_kubernetes(|host, kubernetes| {
        let pod = Pod::of_daemon_set(host, kubernetes, &[]);
        let call = pod
            .call(&[("CNI_TRY_SECONDS", "0"), ("CNI_AGENT_LISTEN", "off")])
            .without_env("SLEEP");
        let (started, audit) = (Instant::now(), pod.api.audit().unwrap());
        let child = call.spawn().unwrap();
        // After the second request, which is the agent's, the agent handles signals.
        let made = || {
            audit
                .lines()
                .unwrap()
                .iter()
                .filter(|line| line.contains("token"))
                .count()
        };
        while made() < 2 && started.elapsed() < DEADLINE / 2 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        kill(
            Pid::from_raw(i32::try_from(child.id()).unwrap()),
            Signal::SIGTERM,
        )
        .unwrap();
        let outcome = wait(child, started, DEADLINE).unwrap();
        assert_eq!(made(), 2, "{}", outcome.stderr);
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        logged(&outcome, "running as the agent");
        pod.assert_no_token(&outcome);
        assert_eq!(pod.container.names(BIN).len(), 4);
        assert_eq!(pod.container.names(NET), ["10-calico.conflist", KUBECONFIG]);
    });
}
