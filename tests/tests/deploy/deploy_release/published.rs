//! `deploy/publish.sh`, with a private registry (`crane registry serve`).

use std::fs;
use std::net::TcpStream;

use anyhow::Result;
use integration_tests::command::run;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::images::in_tree;
use integration_tests::installed::{arch, built};
use integration_tests::manifests::helm;
use integration_tests::namespaces::{Host, isolated};
use integration_tests::server_process::ServerProcess;
use integration_tests::skip::skipped;

use super::files::{VERSION, path};
use super::{REGISTRY, can_release, release_for_registry};

/// Address of the private registry, the first part of [`REGISTRY`].
const ADDRESS: &str = "127.0.0.1:5000";

/// Starts a registry in memory, without TLS.
fn start_registry(host: &Host) -> Result<ServerProcess> {
    let mut registry = ServerProcess::default();
    let args = ["registry", "serve", "--address", ADDRESS].map(str::to_owned);
    registry.start(&built("crane")?, &args, &host.dir("registry").join("log"))?;
    await_that(PATIENCE, || Ok(TcpStream::connect(ADDRESS).is_ok()))?;
    Ok(registry)
}

#[test]
fn published_release_has_its_digests_referrers_and_chart_in_the_registry() {
    if !can_release() {
        return;
    }
    if let Err(missing) = ["crane", "oras"]
        .map(built)
        .into_iter()
        .chain([helm()])
        .collect::<Result<Vec<_>>>()
    {
        return skipped(&missing.to_string());
    }
    let made = release_for_registry();
    let folder = made.join("release").display().to_string();
    isolated(|host| {
        let _registry = start_registry(host).unwrap();
        let home = host.dir("home").display().to_string();
        let environment = |words: &[&str]| -> Vec<String> {
            // helm and oras must not use the logins and caches of this machine's user.
            let folders = [
                "HELM_CACHE_HOME",
                "HELM_CONFIG_HOME",
                "HELM_DATA_HOME",
                "DOCKER_CONFIG",
            ];
            let own = folders.map(|name| format!("{name}={home}"));
            own.into_iter()
                .chain(words.iter().map(|word| (*word).to_owned()))
                .collect()
        };
        let publish = || {
            run(
                "env",
                &environment(&["PLAIN_HTTP=1", &in_tree("deploy/publish.sh"), &folder]),
            )
            .unwrap()
        };
        let oras = built("oras").unwrap().display().to_string();
        let ask =
            |words: &[&str]| run("env", &environment(&[&[oras.as_str()], words].concat())).unwrap();
        publish();
        let digests = fs::read_to_string(path(&made, "digests.txt")).unwrap();
        let referrers = || -> Vec<String> {
            let subjects = digests.lines().map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let (repository, _) = words[1].rsplit_once(':').unwrap();
                format!("{repository}@{}", words[0])
            });
            subjects
                .map(|subject| ask(&["discover", "--plain-http", "--format", "json", &subject]))
                .collect()
        };
        for line in digests.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match &words[2..] {
                [] => assert_eq!(ask(&["resolve", "--plain-http", words[1]]).trim(), words[0]),
                _ => assert_eq!(words[2], format!("linux/{}", arch())),
            }
        }
        let found = referrers();
        let kinds = [
            "application/vnd.in-toto+json",
            "application/vnd.cyclonedx+json",
        ];
        assert_eq!(found.len(), 4, "two images, each with one architecture");
        for (index, said) in found.iter().enumerate() {
            let [wanted, other] = [kinds[index % 2], kinds[(index + 1) % 2]];
            assert!(said.contains(wanted) && !said.contains(other), "{said}");
        }
        let chart = format!("oci://{REGISTRY}/charts/calico-cni");
        let words = [
            "pull",
            &chart,
            "--version",
            VERSION,
            "--plain-http",
            "--destination",
            &home,
        ];
        run(
            "env",
            &environment(
                &[
                    &[helm().unwrap().display().to_string().as_str()],
                    &words[..],
                ]
                .concat(),
            ),
        )
        .unwrap();
        let name = format!("calico-cni-{VERSION}.tgz");
        assert!(
            fs::read(host.dir("home").join(&name)).unwrap()
                == fs::read(path(&made, &name)).unwrap()
        );
        publish();
        assert_eq!(referrers(), found);
    });
}
