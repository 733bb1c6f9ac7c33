//! Addresses from a third-party IPAM plugin: Debian's host-local, and fakes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use integration_tests::cluster::{Cluster, Pod, on};
use integration_tests::command::{ip, run};
use integration_tests::content::Content;
use integration_tests::images::in_tree;
use integration_tests::installed::arch;
use integration_tests::kernel;
use integration_tests::plugin::{Call, CniError, is_host_local_installed};
use integration_tests::skip::skipped;
use serde_json::{Value, json};

/// Returns a configuration with host-local, and the directory of its leases. Returns `None`, and
/// skips the test, if host-local is missing.
fn host_local(cluster: &Cluster<'_>) -> Option<(Value, PathBuf)> {
    if !is_host_local_installed() {
        return None;
    }
    cluster.load(&Content::ready().node("node1"));
    let data = cluster.host.dir("host-local");
    let ranges = json!([[{ "subnet": "10.88.0.0/24" }], [{ "subnet": "fd00:88::/64" }]]);
    let ipam = json!({ "type": "host-local", "dataDir": data, "ranges": ranges });
    Some((
        cluster.conf("node1", json!({ "ipam": ipam })),
        data.join("k8s-pod-network"),
    ))
}

fn leases(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    names.retain(|name| name.parse::<std::net::Ipv4Addr>().is_ok() || name.contains(':'));
    names.sort();
    names
}

#[on(etcd, local)]
fn host_local_assigns_and_releases_addresses(cluster: &Cluster<'_>) {
    let Some((mut conf, data)) = host_local(cluster) else {
        return;
    };
    let pod = cluster.pod(1);
    let result = cluster.add(&pod, &conf);
    assert_eq!(result["ips"][0]["address"], "10.88.0.2/32");
    assert_eq!(result["ips"][1]["address"], "fd00:88::2/128");
    assert_eq!(leases(&data), ["10.88.0.2", "fd00:88::2"]);
    let endpoints = cluster.endpoints();
    let endpoint = endpoints.values().next().unwrap();
    assert_eq!(
        endpoint["spec"]["ipNetworks"],
        json!(["10.88.0.2/32", "fd00:88::2/128"])
    );
    assert!(cluster.accounts().held.is_empty(), "they are not Calico's");
    let addresses = kernel::pod(cluster.host, &pod.name).unwrap()["links"]["eth0"]["addrs"].clone();
    assert!(
        addresses.to_string().contains("10.88.0.2/32"),
        "{addresses}"
    );

    conf["prevResult"] = result;
    cluster.verb("CHECK", &pod, &conf).run().success();
    fs::remove_file(data.join("10.88.0.2")).unwrap();
    fs::remove_file(data.join("fd00:88::2")).unwrap();
    let error = cluster.verb("CHECK", &pod, &conf).run().error();
    assert!(
        format!("{} {}", error.msg, error.details).contains("host-local"),
        "{error:?}"
    );

    let next = cluster.pod(2);
    cluster.add(&next, &conf);
    for pod in [&pod, &next] {
        cluster.delete(pod, &conf);
        cluster.delete(pod, &conf);
    }
    assert_eq!(leases(&data), Vec::<String>::new());
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn failed_add_releases_the_address_of_host_local(cluster: &Cluster<'_>) {
    let Some((conf, data)) = host_local(cluster) else {
        return;
    };
    let pod = cluster.pod(1);
    ip("link add other0 type veth peer name eth0 netns pod1").unwrap();
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert!(error.msg.contains("eth0"), "{error:?}");
    assert_eq!(leases(&data), Vec::<String>::new());
    ip("link delete other0").unwrap();
    cluster.add(&pod, &conf);
    assert_eq!(leases(&data).len(), 2);
}

/// Canal with etcd: the image's flannel runs calico, which runs host-local.
#[on(etcd, local)]
fn flannel_runs_calico_with_the_subnet_of_flanneld(cluster: &Cluster<'_>) {
    if !is_host_local_installed() {
        return;
    }
    let place = ["--place".to_owned(), format!("cni-plugins-{}", arch())];
    let flannel = PathBuf::from(
        run(&in_tree("tests/install-go-tools.sh"), &place)
            .unwrap()
            .trim(),
    )
    .join("flannel");
    if !flannel.is_file() {
        return skipped(&format!(
            "flannel is not built (tests/install-go-tools.sh cni-plugins-{})",
            arch()
        ));
    }
    cluster.load(&Content::ready().node("node1"));
    let (data, subnet) = (
        cluster.host.dir("host-local"),
        cluster.host.dir("flannel").join("subnet.env"),
    );
    let mut delegate = cluster.conf("node1", json!({}));
    let [name, version, _] =
        ["name", "cniVersion", "ipam"].map(|key| delegate.as_object_mut().unwrap().remove(key));
    let stored = cluster.host.dir("flannel").join("pods");
    let mut conf = json!({ "name": name, "cniVersion": version, "type": "flannel",
            "subnetFile": subnet,
        "dataDir": stored, "ipam": { "dataDir": data }, "delegate": delegate });
    let pod = cluster.pod(1);
    let call = |verb: &str, conf: &Value| cluster.verb(verb, &pod, conf).program(&flannel).run();

    let error = call("ADD", &conf).error();
    assert!(error.msg.contains("subnet.env"), "{error:?}");
    let text = "FLANNEL_NETWORK=10.88.0.0/16\nFLANNEL_SUBNET=10.88.3.1/24\nFLANNEL_IPV6_NETWORK=fd00:88::/48\n\
                FLANNEL_IPV6_SUBNET=fd00:88:0:3::1/64\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=true\n";
    fs::write(&subnet, text).unwrap();
    let result = call("ADD", &conf).success();
    let address = |index: usize| result["ips"][index]["address"].as_str().unwrap();
    assert!(
        address(0).starts_with("10.88.3.") && address(1).starts_with("fd00:88:0:3:"),
        "{result}"
    );
    let pods_end = kernel::pod(cluster.host, &pod.name).unwrap()["links"]["eth0"].clone();
    assert_eq!(pods_end["mtu"], 1400, "{pods_end}");
    assert_eq!(leases(&data.join("k8s-pod-network")).len(), 2);
    conf["prevResult"] = result;
    call("DEL", &conf).success();
    call("DEL", &conf).success();
    assert_eq!(leases(&data.join("k8s-pod-network")), Vec::<String>::new());
    assert_eq!(fs::read_dir(&stored).unwrap().count(), 0);
    cluster.assert_nothing_left();
}

/// Debian's host-local supports neither STATUS nor GC.
#[on(etcd, local)]
fn status_and_gc_succeed_with_an_ipam_plugin_that_supports_no_such_command(cluster: &Cluster<'_>) {
    let Some((mut conf, _)) = host_local(cluster) else {
        return;
    };
    cluster.add(&cluster.pod(1), &conf);
    conf["cniVersion"] = json!("1.1.0");
    conf["cni.dev/valid-attachments"] = json!([]);
    for verb in ["STATUS", "GC"] {
        let call = cluster
            .plugins
            .call("calico")
            .env("CNI_COMMAND", verb)
            .stdin(conf.to_string());
        call.run().success();
    }
    assert!(cluster.endpoints().is_empty());
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
}

/// An IPAM plugin that records each command and then runs a script, and a pod.
struct FakeIpam<'c> {
    cluster: &'c Cluster<'c>,
    dir: PathBuf,
    conf: Value,
    pod: Pod,
}

impl<'c> FakeIpam<'c> {
    fn new(cluster: &'c Cluster<'c>, script: &str) -> FakeIpam<'c> {
        cluster.load(&Content::dual_stack());
        let ipam = json!({ "type": "fake-ipam", "colour": "blue" });
        let fake = FakeIpam {
            cluster,
            dir: cluster.host.dir("ipam"),
            conf: cluster.conf("node1", json!({ "ipam": ipam })),
            pod: cluster.pod(1),
        };
        fake.install(script);
        fake
    }

    /// Replaces the script, and deletes the recorded commands.
    fn install(&self, script: &str) {
        let [program, calls] = ["fake-ipam", "calls"].map(|name| self.dir.join(name));
        let text = format!(
            "#!/bin/sh\necho \"$CNI_COMMAND $CNI_ARGS\" >>{}\n{script}\n",
            calls.display()
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(calls, "").unwrap();
    }

    fn verb(&self, verb: &str) -> Call {
        self.cluster
            .verb(verb, &self.pod, &self.conf)
            .env("CNI_PATH", self.dir.as_os_str())
    }

    fn failed_add(&self) -> CniError {
        let before = self.cluster.state();
        let error = self.verb("ADD").run().error();
        assert_eq!(self.cluster.state(), before);
        error
    }

    fn calls(&self) -> Vec<String> {
        fs::read_to_string(self.dir.join("calls"))
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

#[on(local)]
fn ipam_plugin_is_called_as_in_the_cni_specification(cluster: &Cluster<'_>) {
    let script = r#"cat >>"${0%/*}/stdin"
test "$CNI_COMMAND" = ADD && echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.99.0.7/24", "gateway": "10.99.0.1"}],
  "dns": {"nameservers": ["10.99.0.53"]}}'; echo 'a word of warning' >&2"#;
    let fake = FakeIpam::new(cluster, script);
    let outcome = fake.verb("ADD").env("CNI_ARGS", "COLOUR=red").run();
    let result = outcome.success();
    assert_eq!(
        result["ips"],
        json!([{ "address": "10.99.0.7/32", "interface": 1 }])
    );
    assert_eq!(result["dns"], json!({ "nameservers": ["10.99.0.53"] }));
    assert!(outcome.stderr.contains("a word of warning"));
    fake.verb("DEL").run().success();
    assert_eq!(
        fake.calls(),
        ["ADD IgnoreUnknown=1;COLOUR=red", "DEL IgnoreUnknown=1"]
    );
    let stdin = fs::read_to_string(fake.dir.join("stdin")).unwrap();
    assert_eq!(
        stdin,
        format!("{0}{0}", fake.conf),
        "the configuration is passed on as it came"
    );
    fake.cluster.assert_nothing_left();
}

/// The IPAM plugin would release the addresses of containers that are not in the list.
#[on(local)]
fn gc_skips_the_ipam_plugin_while_a_container_is_kept(cluster: &Cluster<'_>) {
    let script = r#"test "$CNI_COMMAND" = ADD && echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.99.0.7/24"}]}'; true"#;
    let fake = FakeIpam::new(cluster, script);
    let added = fake.verb("ADD").run().success();
    let ifname = added["interfaces"][0]["name"].as_str().unwrap();
    // Without its alias, nothing proves that the interface belongs to the container.
    ip(&format!("link set dev {ifname} alias other")).unwrap();
    let mut conf = fake.conf.clone();
    conf["cniVersion"] = json!("1.1.0");
    conf["cni.dev/valid-attachments"] = json!([]);
    let gc = fake
        .cluster
        .plugins
        .call("calico")
        .env("CNI_COMMAND", "GC")
        .stdin(conf.to_string());
    let error = gc.env("CNI_PATH", fake.dir.as_os_str()).run().error();
    let left_out = format!(
        "is skipped, because these containers keep their addresses: {}",
        fake.pod.container_id
    );
    assert!(
        error.details.contains(ifname) && error.details.contains(&left_out),
        "{error:?}"
    );
    assert_eq!((fake.calls().len(), fake.cluster.endpoints().len()), (1, 1));
}

#[on(local)]
fn ipam_result_without_addresses_is_an_error_followed_by_del(cluster: &Cluster<'_>) {
    let script = r#"test "$CNI_COMMAND" = ADD && echo '{"cniVersion": "1.0.0", "ips": []}'; true"#;
    let fake = FakeIpam::new(cluster, script);
    assert!(fake.failed_add().msg.contains("missing IP config"));
    assert_eq!(fake.calls(), ["ADD IgnoreUnknown=1", "DEL IgnoreUnknown=1"]);
}

#[on(local)]
fn invalid_ipam_result_is_an_error_naming_the_cause(cluster: &Cluster<'_>) {
    let fake = FakeIpam::new(cluster, "");
    for (printed, word) in [
        ("hello", "result"),
        ("", "result"),
        (
            r#"{"cniVersion": "1.0.0", "ips": [{"address": "300.1.1.1/24"}]}"#,
            "300.1.1.1",
        ),
        (r#"{"cniVersion": "7.0.0", "ips": []}"#, "7.0.0"),
    ] {
        fake.install(&format!(
            "test \"$CNI_COMMAND\" = ADD && echo '{printed}'; true"
        ));
        let error = fake.failed_add();
        let said = format!("{} {}", error.msg, error.details);
        assert!(said.contains(word), "{printed}: {word:?} is not in {said}");
        assert_eq!(
            fake.calls(),
            ["ADD IgnoreUnknown=1", "DEL IgnoreUnknown=1"],
            "{printed}"
        );
    }
}

#[on(local)]
fn error_object_of_the_ipam_plugin_is_returned(cluster: &Cluster<'_>) {
    let script = r#"echo '{"cniVersion": "1.0.0", "code": 117, "msg": "out of blue addresses", "details": "of 12"}'; exit 1"#;
    let fake = FakeIpam::new(cluster, script);
    let error = fake.failed_add();
    assert_eq!(
        (error.code, error.msg.as_str(), error.details.as_str()),
        (117, "out of blue addresses", "of 12")
    );
    let error = fake.verb("DEL").run().error();
    assert_eq!(error.code, 117);
}

#[on(local)]
fn crash_of_the_ipam_plugin_is_an_error_with_its_stderr(cluster: &Cluster<'_>) {
    let fake = FakeIpam::new(cluster, "echo 'lost my mind' >&2; kill -9 $$");
    let error = fake.failed_add();
    assert!(
        error.msg.contains("fake-ipam") && error.msg.contains("lost my mind"),
        "{error:?}"
    );
}

/// Runtimes call STATUS every few seconds.
#[on(local)]
fn status_with_a_hanging_ipam_plugin_fails_after_two_seconds(cluster: &Cluster<'_>) {
    let fake = FakeIpam::new(cluster, "exec sleep 30");
    let mut conf = fake.conf.clone();
    conf["cniVersion"] = json!("1.1.0");
    let call = fake
        .cluster
        .verb("STATUS", &fake.pod, &conf)
        .env("CNI_PATH", fake.dir.as_os_str());
    let outcome = call.run();
    let error = outcome.error();
    assert_eq!(
        (
            error.code,
            error
                .msg
                .contains("fake-ipam did not finish STATUS within 2s")
        ),
        (50, true),
        "{error:?}"
    );
}

#[on(local)]
fn missing_ipam_plugin_is_named_with_the_path(cluster: &Cluster<'_>) {
    let fake = FakeIpam::new(cluster, "true");
    for verb in ["ADD", "DEL"] {
        let error = fake
            .verb(verb)
            .env("CNI_PATH", "/nowhere:/opt/none")
            .run()
            .error();
        assert!(
            error.msg.contains("fake-ipam") && error.msg.contains("/nowhere"),
            "{verb}: {error:?}"
        );
    }
}
