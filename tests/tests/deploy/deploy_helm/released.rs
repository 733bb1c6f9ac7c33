//! Releases of the chart on a real API server: upgrade, rollback and `helm test`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use integration_tests::command::run;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::images::in_tree;
use integration_tests::kubernetes::{ApiServer, Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{NAMESPACE, deploy, helm};
use serde_json::{Value, json};

use super::can_render;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Helm as the administrator, with caches of its own.
pub(super) struct Helm {
    own: Vec<String>,
}

impl Helm {
    pub(super) fn new(api: &ApiServer) -> Result<Helm> {
        let (program, kubeconfig) = (helm()?.display().to_string(), api.admin_kubeconfig());
        let home = kubeconfig.with_file_name("helm");
        let folder = |name: &str| format!("HELM_{name}_HOME={}", home.join(name).display());
        let kubeconfig = kubeconfig.display().to_string();
        let options = [
            program.as_str(),
            "--kubeconfig",
            kubeconfig.as_str(),
            "--namespace",
            NAMESPACE,
        ];
        let folders = ["CACHE", "CONFIG", "DATA"].map(folder);
        Ok(Helm {
            own: folders
                .into_iter()
                .chain(options.map(str::to_owned))
                .collect(),
        })
    }

    fn command(&self, words: &[&str]) -> Vec<String> {
        self.own
            .iter()
            .cloned()
            .chain(words.iter().map(|word| (*word).to_owned()))
            .collect()
    }

    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        run("env", &self.command(words))
    }
}

pub(super) fn chart() -> String {
    deploy("helm/calico-cni").display().to_string()
}

/// The last commit before the chart labeled its objects, split the roles of optional controllers
/// and copied the configuration: the former release as long as this repository has no tag.
const BEFORE_A_TAG: &str = "8643f790da7d5e2a74290b96de7214dc2fcf7757";

/// Writes the chart of the newest tag before this commit; without a tag, the chart of
/// [`BEFORE_A_TAG`]. A shallow clone has neither: then it writes the present chart with an older
/// version, from which only the version differs.
fn last_release(into: &Path) -> Result<PathBuf> {
    let (tree, folder) = (in_tree(""), into.display().to_string());
    let chart = into.join("deploy/helm/calico-cni");
    let git = |words: &[&str]| run("git", &[&["-C", tree.as_str()][..], words].concat());
    let tag = git(&["describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^"]);
    let known = || {
        git(&["cat-file", "-e", &format!("{BEFORE_A_TAG}^{{commit}}")])
            .map(|_| BEFORE_A_TAG.to_owned())
    };
    if let Ok(commit) = tag.map(|tag| tag.trim().to_owned()).or_else(|_| known()) {
        run(
            "sh",
            &[
                "-c",
                &format!("git -C '{tree}' archive '{commit}' deploy | tar -x -C '{folder}'"),
            ],
        )?;
        return Ok(chart);
    }
    eprintln!(
        "this clone has no earlier chart: the former release is the present chart with another \
         version"
    );
    run("cp", &["--recursive", &in_tree("deploy"), &folder])?;
    let file = chart.join("Chart.yaml");
    let text = fs::read_to_string(&file)?.replace(&format!("ersion: {VERSION}"), "ersion: 0.0.9");
    fs::write(&file, text)?;
    Ok(chart)
}

fn uids(api: &ApiServer, manifest: &str) -> Result<BTreeMap<String, String>> {
    let listed: Value = serde_json::from_str(&api.kubectl(&[
        "get",
        "--filename",
        manifest,
        "--output",
        "json",
    ])?)?;
    let objects = listed["items"]
        .as_array()
        .context("kubectl printed no list")?;
    let uid = |object: &Value| {
        let metadata = &object["metadata"];
        (
            format!("{} {}", object["kind"], metadata["name"]),
            metadata["uid"].to_string(),
        )
    };
    Ok(objects.iter().map(uid).collect())
}

/// Definitions, and with them all pools and addresses, stay.
#[test]
fn upgrade_from_the_last_release_and_rollback_keep_every_object() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        api.namespace(NAMESPACE).unwrap();
        let helm = Helm::new(api).unwrap();
        let former = last_release(&host.dir("former"))
            .unwrap()
            .display()
            .to_string();
        helm.run(&["install", "calico-cni", &former]).unwrap();
        let file = host.dir("manifests").join("former.yaml");
        fs::write(&file, helm.run(&["get", "manifest", "calico-cni"]).unwrap()).unwrap();
        let manifest = file.display().to_string();
        let before = uids(api, &manifest).unwrap();
        assert!(before.len() > 25, "{before:?}");
        let pool = deploy("examples/ippool.yaml").display().to_string();
        api.kubectl(&[
            "wait",
            "--for",
            "condition=established",
            "crd/ippools.crd.projectcalico.org",
        ])
        .unwrap();
        api.await_schema("crd.projectcalico.org/v1", "IPPool")
            .unwrap();
        api.kubectl(&["apply", "--filename", &pool]).unwrap();
        let pools = || {
            api.admin()
                .get("/apis/crd.projectcalico.org/v1/ippools")
                .unwrap()
                .success()
        };
        let uid = pools()["items"][0]["metadata"]["uid"].clone();

        let label = || {
            let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/calico-cni");
            let object = api.admin().get(&path).unwrap().success();
            object["metadata"]["labels"]["helm.sh/chart"].clone()
        };
        helm.run(&["upgrade", "calico-cni", &chart()]).unwrap();
        assert_eq!(label(), format!("calico-cni-{VERSION}"));
        assert_eq!(uids(api, &manifest).unwrap(), before);

        helm.run(&["rollback", "calico-cni", "1"]).unwrap();
        assert_ne!(label(), format!("calico-cni-{VERSION}"));
        assert_eq!(uids(api, &manifest).unwrap(), before);
        assert_eq!(pools()["items"][0]["metadata"]["uid"], uid);
    });
}

/// No kubelet runs here. The test writes the pod's status in its place.
#[test]
fn helm_test_succeeds_or_fails_with_its_pod() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        api.namespace(NAMESPACE).unwrap();
        let helm = Helm::new(api).unwrap();
        helm.run(&["install", "calico-cni", &chart()]).unwrap();
        let pod = format!("/api/v1/namespaces/{NAMESPACE}/pods/calico-cni-test");
        let mut former = Value::Null;
        for phase in ["Succeeded", "Failed"] {
            let command = helm.command(&["test", "calico-cni", "--timeout", "60s"]);
            let testing = thread::spawn(move || run("env", &command));
            // Helm deletes the pod of the last test first, so the pod can be absent between two
            // reads.
            let mut uid = Value::Null;
            await_that(PATIENCE, || {
                uid = api.admin().get(&pod)?.body["metadata"]["uid"].clone();
                Ok(uid.is_string() && uid != former)
            })
            .unwrap();
            former = uid;
            let status = json!({ "status": { "phase": phase } });
            api.admin()
                .patch(&format!("{pod}/status"), &status)
                .unwrap()
                .success();
            let result = testing.join().unwrap();
            assert_eq!(result.is_ok(), phase == "Succeeded", "{phase}: {result:?}");
        }
    });
}
