//! Invalid network configurations and CNI variables. No such call changes links, endpoints or
//! allocations.

mod keys;

use std::path::Path;

use integration_tests::cluster::{Cluster, Pod, assert_same, on};
use integration_tests::content::Content;
use integration_tests::plugin::CniError;
use keys::{KEYS, wrong_values};
use serde_json::{Value, json};

/// Values of the right type that are out of range or malformed.
const OUT_OF_RANGE: &[(&str, &str)] = &[
    ("/mtu", "-1"),
    ("/mtu", "67"),
    ("/mtu", "4294967296"),
    ("/num_queues", "1e10"),
    ("/vxlan_vni", "-1"),
    ("/log_file_max_size", "-1"),
    ("/policy_setup_timeout_seconds", "-1"),
    ("/name", "\"\""),
    ("/name", "\"a/b\""),
    ("/name", "\"../etc\""),
    ("/readiness_gates", "[\"not a url\"]"),
    ("/ipam/ipv4_pools", "[\"fd00::/64\"]"),
];

/// Returns a configuration as text, with `value` as the value at `path`.
fn with_value(conf: &Value, path: &str, value: &str) -> String {
    const PLACE: &str = "@@place@@";
    let mut conf = conf.clone();
    if path == "/dataplane_options/type" {
        conf["dataplane_options"] = json!({ "socket": "unix:///run/x.sock" });
    }
    if path == "/ipam/ranges" || path == "/ipam/routes" {
        conf["ipam"]["type"] = json!("host-local");
    }
    let place = keys(path).fold(&mut conf, |parent, key| &mut parent[key]);
    *place = json!(PLACE);
    conf.to_string().replace(&format!("\"{PLACE}\""), value)
}

fn keys(path: &str) -> impl Iterator<Item = String> {
    path.split('/').skip(1).map(|key| key.replace("~1", "/"))
}

/// Adds a pod, so that a faulty DEL would change something.
fn with_a_pod(cluster: &Cluster<'_>) -> (Pod, Value) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    (pod, conf)
}

fn refused(cluster: &Cluster<'_>, verb: &str, pod: &Pod, conf: &Value, stdin: &str) -> CniError {
    let outcome = cluster.verb(verb, pod, conf).stdin(stdin).run();
    assert_eq!(
        outcome.exit,
        Some(1),
        "{verb} accepted {stdin}\n{}{}",
        outcome.stdout,
        outcome.stderr
    );
    outcome.error()
}

/// Returns true if a DEL must reject an invalid value of this key.
fn del_needs(path: &str) -> bool {
    const NEEDED: [&str; 7] = [
        "name",
        "cniversion",
        "kubernetes",
        "policy",
        "args",
        "dataplane_options",
        "hostname",
    ];
    const NEEDED_PREFIXES: [&str; 3] = ["etcd_", "datastore_", "nodename"];
    let mut keys = keys(path).map(|key| key.to_lowercase());
    match keys.next().unwrap_or_default().as_str() {
        "ipam" => keys.next().is_none_or(|key| key == "type"),
        first => {
            NEEDED.contains(&first)
                || NEEDED_PREFIXES
                    .iter()
                    .any(|prefix| first.starts_with(prefix))
        }
    }
}

#[on(etcd, local)]
fn invalid_configurations_are_refused_without_changes(cluster: &Cluster<'_>) {
    let (pod, conf) = with_a_pod(cluster);
    let newcomer = cluster.pod(2);
    let before = cluster.state();
    let wrong = KEYS.iter().flat_map(|(path, kind)| {
        wrong_values(*kind)
            .into_iter()
            .map(|v| (*path, v.to_string()))
    });
    let ranges = OUT_OF_RANGE
        .iter()
        .map(|(path, value)| (*path, (*value).to_owned()));
    let mut failures = Vec::new();
    for (path, value) in wrong.chain(ranges) {
        for (verb, pod) in [
            ("ADD", &newcomer),
            ("DEL", if del_needs(path) { &pod } else { &newcomer }),
        ] {
            // The delegated IPAM plugin reads these keys.
            if verb == "DEL" && ["/ipam/ranges", "/ipam/routes"].contains(&path) {
                continue;
            }
            let stdin = with_value(&conf, path, &value);
            let outcome = cluster.verb(verb, pod, &conf).stdin(stdin.as_str()).run();
            let error: Option<CniError> = serde_json::from_str(&outcome.stdout).ok();
            let named = |error: &CniError| {
                let said = format!("{} {}", error.msg, error.details);
                keys(path).all(|key| said.contains(&key))
            };
            let is_refused = outcome.exit == Some(1)
                && error
                    .as_ref()
                    .is_some_and(|error| matches!(error.code, 6 | 7) && named(error));
            let is_passed_over = verb == "DEL" && !del_needs(path) && outcome.exit == Some(0);
            if !is_refused && !is_passed_over {
                failures.push(format!(
                    "{verb} {path} = {value}: exit {:?}, {}",
                    outcome.exit, outcome.stdout
                ));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} bad values got a wrong answer:\n{}",
        failures.len(),
        failures.join("\n")
    );
    cluster.assert_unchanged(&before);

    for (what, stdin, code) in [
        ("nothing", String::new(), 6),
        ("half an object", "{\"name\": ".to_owned(), 6),
        ("a list", "[]".to_owned(), 6),
        ("null", "null".to_owned(), 7),
        ("no name", "{\"cniVersion\": \"1.0.0\"}".to_owned(), 7),
        ("two documents", format!("{conf}{conf}"), 6),
        (
            "a key twice",
            conf.to_string()
                .replacen('{', "{\"mtu\": 1400, \"mtu\": 1500, ", 1),
            6,
        ),
        (
            "deep nesting",
            with_value(
                &conf,
                "/args",
                &format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
            ),
            6,
        ),
        (
            "over a megabyte",
            with_value(&conf, "/hostname", &format!("\"{}\"", "x".repeat(1 << 20))),
            6,
        ),
        (
            "a number beyond all numbers",
            with_value(&conf, "/mtu", "1e400"),
            6,
        ),
        (
            "another version",
            with_value(&conf, "/cniVersion", "\"9.9.9\""),
            1,
        ),
    ] {
        for (verb, pod) in [("ADD", &newcomer), ("DEL", &pod)] {
            let error = refused(cluster, verb, pod, &conf, &stdin);
            assert_eq!(error.code, code, "{verb} with {what}: {error:?}");
        }
    }
    for verb in ["ADD", "DEL"] {
        let mut stdin = conf.to_string().into_bytes();
        stdin.insert(2, 0xff);
        let outcome = cluster.verb(verb, &newcomer, &conf).stdin(stdin).run();
        assert_eq!(outcome.error().code, 6, "invalid UTF-8");
    }
    cluster.assert_unchanged(&before);
}

#[on(etcd, local)]
fn invalid_cni_variables_are_refused_without_changes(cluster: &Cluster<'_>) {
    let (pod, conf) = with_a_pod(cluster);
    let newcomer = cluster.pod(2);
    let before = cluster.state();
    for (verb, pod) in [("ADD", &newcomer), ("CHECK", &pod), ("DEL", &pod)] {
        let call = cluster.verb(verb, pod, &conf);
        for name in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_PATH"] {
            // DEL works without a network namespace, which may be deleted already.
            if verb == "DEL" && name == "CNI_NETNS" {
                continue;
            }
            for call in [call.clone().without_env(name), call.clone().env(name, "")] {
                let error = call.run().error();
                assert_eq!(
                    (error.code, error.msg.contains(name)),
                    (4, true),
                    "{verb} without {name}: {error:?}"
                );
            }
        }
        for (name, value) in [
            ("CNI_CONTAINERID", "../../etc"),
            ("CNI_CONTAINERID", "a b"),
            ("CNI_CONTAINERID", "-starts-with-a-dash"),
            ("CNI_IFNAME", "sixteen-letters!"),
            ("CNI_IFNAME", ".."),
            ("CNI_IFNAME", "eth/0"),
            ("CNI_IFNAME", "eth 0"),
        ] {
            let error = call.clone().env(name, value).run().error();
            assert_eq!(error.code, 4, "{verb} {name}={value}: {error:?}");
        }
    }
    let bare = cluster
        .plugins
        .call("calico")
        .env("CNI_COMMAND", "ADD")
        .without_env("CNI_PATH")
        .stdin(conf.to_string());
    let error = bare.run().error();
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"] {
        assert!(error.msg.contains(name), "{error:?}");
    }
    for verb in ["NONSENSE", "add", "ADD "] {
        let error = cluster.verb(verb, &newcomer, &conf).run().error();
        assert_eq!(error.code, 4, "CNI_COMMAND={verb}: {error:?}");
    }
    for args in [
        "IP=not-an-ip",
        "IP=10.65.0.1=2",
        "novalue",
        "IgnoreUnknown=maybe",
        ";;",
    ] {
        let error = cluster
            .verb("ADD", &newcomer, &conf)
            .env("CNI_ARGS", args)
            .run()
            .error();
        assert_eq!(error.code, 4, "CNI_ARGS={args}: {error:?}");
    }
    for netns in [
        "/var/run/netns/absent",
        "relative",
        "/etc/passwd",
        "/proc/self/ns/mnt",
    ] {
        let call = cluster
            .verb("ADD", &newcomer, &conf)
            .env("CNI_NETNS", netns);
        let error = call.run().error();
        assert_eq!(
            (error.code, error.msg.contains(netns)),
            (4, true),
            "CNI_NETNS={netns}: {error:?}"
        );
    }
    // The plugin's own network namespace is rejected before anything changes (code 8).
    let own = cluster
        .verb("ADD", &newcomer, &conf)
        .env("CNI_NETNS", Path::new("/proc/self/ns/net"))
        .run();
    assert_eq!(own.error().code, 8);
    // As upstream does, a failed ADD may keep the affinity of the block and a higher sequence
    // number.
    let without_blocks = |mut state: Value| {
        let is_block =
            |key: &str| key.contains("/ipam/v2/assignment/") || key.contains("/ipam/v2/host/");
        state["store"]
            .as_object_mut()
            .unwrap()
            .retain(|key, _| !is_block(key));
        state
    };
    assert_same(&without_blocks(before), &without_blocks(cluster.state()));
    assert_eq!(cluster.accounts().held.len(), 1);
}

/// A new key of the plugin must be added to [`keys::KEYS`].
#[test]
fn every_key_of_the_published_schema_is_tested() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/netconf.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let published = published(&schema["definitions"]["NetConf"], "");
    assert!(published.len() > 70, "{published:?}");
    let untried: Vec<_> = published
        .iter()
        .filter(|key| !KEYS.iter().any(|(tried, _)| tried == key))
        .collect();
    assert!(untried.is_empty(), "{untried:?}");
}

fn published(schema: &Value, path: &str) -> Vec<String> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let below = |(key, schema): (&String, &Value)| {
        let path = format!("{path}/{}", key.replace('/', "~1"));
        let deeper = published(schema, &path);
        std::iter::once(path).chain(deeper)
    };
    properties.flat_map(below).collect()
}

#[on(local)]
fn call_without_a_command_prints_help(cluster: &Cluster<'_>) {
    let outcome = cluster.plugins.call("calico").run();
    assert!(outcome.stdout.is_empty(), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("CNI_COMMAND"), "{}", outcome.stderr);
}
