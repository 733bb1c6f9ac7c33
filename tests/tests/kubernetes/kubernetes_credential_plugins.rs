//! Credential plugins: real programs that give a person's command and kube-controllers their
//! credentials.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use integration_tests::Place;
use integration_tests::controllers::{PATIENCE, await_that, on};
use integration_tests::kubernetes::{ApiServer, ENDPOINT, Identity};
use integration_tests::namespaces::Host;
use integration_tests::plugin::{Call, Plugins};
use serde_json::{Value, json};

const VERSION: &str = "client.authentication.k8s.io/v1";

/// A credential plugin beside a kubeconfig, and files that it reads and writes.
struct CredentialPlugin {
    directory: PathBuf,
    kubeconfig: PathBuf,
}

impl CredentialPlugin {
    /// Installs a script as the plugin of a user. Its working directory is that of its files.
    fn install(host: &Host, api: &ApiServer, script: &str) -> CredentialPlugin {
        let nobody = Identity::Token("none".into());
        let content = nobody
            .kubeconfig(ENDPOINT, &api.authority_certificate())
            .unwrap();
        let mut content: Value = serde_norway::from_str(&content).unwrap();
        content["users"][0]["user"] = json!({ "exec": {
            "apiVersion": VERSION, "command": "./helper/plugin", "interactiveMode": "Never",
        } });
        let kubeconfig = host.dir("helped").join("kubeconfig");
        fs::write(&kubeconfig, content.to_string()).unwrap();
        let directory = kubeconfig.with_file_name("helper");
        fs::create_dir_all(&directory).unwrap();
        let helper = CredentialPlugin {
            directory,
            kubeconfig,
        };
        let program = helper.file("plugin");
        let script = format!(
            "#!/bin/sh\ncd {}\necho run >>runs\n{script}\n",
            helper.directory.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        helper
    }

    /// Installs a plugin that prints `status`.
    fn printing(host: &Host, api: &ApiServer, status: &Value) -> CredentialPlugin {
        let helper = Self::install(host, api, "cat output");
        let output = json!({ "apiVersion": VERSION, "kind": "ExecCredential", "status": status });
        fs::write(helper.file("output"), output.to_string()).unwrap();
        helper
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.file("runs"))
            .unwrap_or_default()
            .lines()
            .count()
    }
}

fn command(kubeconfig: &Path) -> Call {
    let call = Plugins::locate()
        .unwrap()
        .call("calico-ipam")
        .args(["get", "ippools"]);
    call.env("DATASTORE_TYPE", "kubernetes")
        .env("KUBECONFIG", kubeconfig)
}

#[test]
fn command_authenticates_with_the_token_or_the_certificate_of_a_plugin() {
    on(Place::KubernetesV1, |cluster| {
        let api = cluster.api;
        let account = api.service_account("kube-system", "person").unwrap();
        api.bind(&account, "cluster-admin").unwrap();
        let Identity::Token(token) = &account.identity else {
            panic!("the account has no token")
        };
        let Identity::Certificate { certificate, key } =
            api.user("carla", "system:masters").unwrap()
        else {
            panic!("the user has no certificate")
        };
        for (status, user) in [
            (json!({ "token": token }), account.user.as_str()),
            (
                json!({ "clientCertificateData": certificate, "clientKeyData": key }),
                "carla",
            ),
        ] {
            let helper = CredentialPlugin::printing(cluster.host, api, &status);
            let (before, audit) = (helper.runs(), api.audit().unwrap());
            let outcome = command(&helper.kubeconfig).run();
            assert_eq!(outcome.exit, Some(0), "{outcome:?}");
            assert_eq!(helper.runs(), before + 1);
            assert!(!audit.of(user).unwrap().is_empty(), "{user}");
        }
    });
}

#[test]
fn failure_of_a_plugin_is_named_without_its_output() {
    on(Place::KubernetesV1, |cluster| {
        let (host, api) = (cluster.host, cluster.api);
        for (script, expected) in [
            (
                "echo s3cret; echo s3cret >&2; exit 3",
                "the program failed (exit status: 3)",
            ),
            ("echo s3cret", "not the JSON or YAML of an ExecCredential"),
        ] {
            let helper = CredentialPlugin::install(host, api, script);
            let outcome = command(&helper.kubeconfig).run();
            assert_eq!(outcome.exit, Some(1), "{outcome:?}");
            assert!(
                outcome.stderr.contains(expected) && outcome.stderr.contains("helper/plugin"),
                "{outcome:?}"
            );
            assert!(
                !outcome.stderr.contains("s3cret") && !outcome.stdout.contains("s3cret"),
                "{outcome:?}"
            );
        }
        let helper = CredentialPlugin::printing(host, api, &json!({ "token": "wr0ng" }));
        let outcome = command(&helper.kubeconfig).run();
        assert_eq!(outcome.exit, Some(1), "{outcome:?}");
        assert!(helper.runs() >= 4, "a 401 runs the plugin once more");
        assert!(
            outcome.stderr.contains("the token in the output of "),
            "{outcome:?}"
        );
        assert!(!outcome.stderr.contains("wr0ng"), "{outcome:?}");
    });
}

/// The environment and the kubeconfig of such a process belong to the node. Shows SEC-75.
#[test]
fn plugin_with_an_exec_kubeconfig_is_refused_without_running_it() {
    on(Place::KubernetesV1, |cluster| {
        let status = json!({ "token": "t" });
        let helper = CredentialPlugin::printing(cluster.host, cluster.api, &status);
        let conf = json!({
            "cniVersion": "1.1.0", "name": "k8s-pod-network", "type": "calico", "nodename": "node1",
            "datastore_type": "kubernetes", "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" },
            "kubernetes": { "kubeconfig": helper.kubeconfig },
        });
        for program in ["calico", "calico-ipam"] {
            // Without CNI_COMMAND, the arguments would be a command of a person.
            let args: &[&str] = if program == "calico-ipam" {
                &["get", "ippools"]
            } else {
                &[]
            };
            let call = Plugins::locate()
                .unwrap()
                .call(program)
                .args(args.iter().copied());
            let call = call
                .env("KUBECONFIG", &helper.kubeconfig)
                .env("CNI_COMMAND", "STATUS")
                .stdin(conf.to_string());
            let error = call.run().error();
            let text = format!("{} {}", error.msg, error.details);
            assert!(
                text.contains("which is not supported on a node"),
                "{program}: {text}"
            );
        }
        assert_eq!(helper.runs(), 0);
    });
}

/// The plugin's credentials expire while kube-controllers runs, and later its account is replaced.
#[test]
fn collection_continues_after_the_expiry_and_the_end_of_a_plugins_token() {
    on(Place::KubernetesV1, |cluster| {
        let api = cluster.api;
        let helper = CredentialPlugin::install(
            cluster.host,
            api,
            "seconds=$(cat seconds)\n\
             printf \
             '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{'\n\
             printf '\"token\":\"%s\",\"expirationTimestamp\":\"%s\"}}' \"$(cat token)\" \"$(date \
             -u -d \"+$seconds seconds\" +%Y-%m-%dT%H:%M:%SZ)\"\n\
             echo $seconds >>given",
        );
        // The rename prevents the plugin from reading a part of the text.
        let put = |name: &str, text: &str| {
            fs::write(helper.file("new"), text).unwrap();
            fs::rename(helper.file("new"), helper.file(name)).unwrap();
        };
        let give = |seconds: u32| {
            let account = api.service_account("kube-system", "controllers").unwrap();
            let Identity::Token(token) = &account.identity else {
                panic!("the account has no token")
            };
            put("token", token);
            put("seconds", &seconds.to_string());
            account
        };
        let account = give(4);
        api.bind(&account, "cluster-admin").unwrap();
        cluster.node("n1", "10.9.0.1");
        let setup = cluster
            .setup()
            .env("KUBECONFIG", helper.kubeconfig.display().to_string());
        let controllers = setup
            .env("POD_NAME", "controllers")
            .start(cluster.host, "controllers")
            .unwrap();
        cluster.configure(&json!({ "leakGracePeriod": "1s" }));
        cluster.address_left_behind("n1", "10.65.1.0");
        cluster.until(&controllers, "the leak is gone", || {
            cluster.handles_and_blocks().0.is_empty()
        });
        let before = helper.runs();
        await_that(PATIENCE, || Ok(helper.runs() > before + 1)).expect("the plugin runs again");

        // A run that has begun may read the file before or after this write.
        put("seconds", "86400");
        let given = || fs::read_to_string(helper.file("given")).unwrap_or_default();
        await_that(PATIENCE, || Ok(given().contains("86400")))
            .expect("the plugin gives credentials for a day");
        cluster.remove("/api/v1/namespaces/kube-system/serviceaccounts/controllers");
        give(86400);
        cluster.address_left_behind("n1", "10.65.2.0");
        cluster.until(&controllers, "the second leak is gone", || {
            cluster.handles_and_blocks().0.is_empty()
        });
    });
}
