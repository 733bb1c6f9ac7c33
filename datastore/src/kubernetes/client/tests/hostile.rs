//! Kubeconfigs with generated texts: each opens a client or is an error, without a panic or an
//! endless read. `FUZZ_SECONDS` sets the duration of each test.

use std::fs;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use repository::effort::fuzz_time;
use serde_json::{Map, Value, json};

use super::super::connect;
use crate::config::{ClientPlace, KubernetesConfig, ProxyVariables};

/// A port on which no process of this machine listens.
const SERVER: &str = "127.0.0.1:1";
/// Minimum number of files, so that some are usable on a busy machine.
const MIN_FILES: u64 = 200;

fn text() -> impl Strategy<Value = String> {
    let special = [
        "", " ", "~", "a\nb", "a\u{0}b", "größe", "<<", "=", "none", "fifo", "/", "..", SERVER,
    ];
    prop_oneof![
        3 => select(special.to_vec()).prop_map(str::to_owned), 2 => "[ -~]{0,12}",
        1 => any::<String>(),
    ]
}

fn server() -> impl Strategy<Value = String> {
    let prefix = [
        "",
        "http://",
        "https://",
        "HTTP://",
        "ftp://",
        "//",
        "unix:///",
        "http:",
        "https://me:secret@",
        "@",
    ];
    let host = [
        SERVER,
        "127.0.0.1",
        "[::1]:1",
        "[::1",
        "[fe80::1%25eth0]:1",
        "localhost",
        "",
        ":1",
        "k:65536",
        "k:-1",
    ];
    let path = [
        "",
        "/",
        "/api-of/x",
        "/a b",
        "?q",
        "/%zz",
        "#f",
        "//",
        "/\u{e9}",
        "?a=b&watch=true",
    ];
    let built = (
        select(prefix.to_vec()),
        select(host.to_vec()),
        select(path.to_vec()),
    );
    let built = built.prop_map(|(prefix, host, path)| format!("{prefix}{host}{path}"));
    let usual = [format!("http://{SERVER}"), format!("https://{SERVER}")];
    prop_oneof![4 => select(usual.to_vec()), 4 => built, 1 => text()]
}

/// Returns a value of any type, most often a text.
fn any_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        6 => text().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 12, 4, |inner| {
        let map = prop::collection::vec((text(), inner.clone()), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            map.prop_map(Map::from_iter).prop_map(Value::Object)
        ]
    })
}

/// Returns a certificate or a key, a damaged one, or another text, in base64 or not.
fn pem() -> impl Strategy<Value = String> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["k".to_owned()]).unwrap();
    let valid = [
        cert.pem(),
        signing_key.serialize_pem(),
        "-----BEGIN CERTIFICATE-----\n".into(),
        String::new(),
    ];
    let damaged = (select(valid.to_vec()), any::<Index>()).prop_map(|(text, at)| {
        let at = at.index(text.len() + 1);
        text[..at].to_owned()
    });
    let any = prop_oneof![3 => select(valid.to_vec()), 1 => damaged, 1 => text()];
    prop_oneof![4 => any.prop_map(|text| BASE64.encode(text.as_bytes())), 1 => text()]
}

/// Returns a mapping with some of the keys.
fn mapping(keys: Vec<(&'static str, BoxedStrategy<Value>)>) -> impl Strategy<Value = Value> {
    let entries: Vec<_> = keys
        .into_iter()
        .map(|(key, value)| (Just(key), prop::option::weighted(0.1, value)))
        .collect();
    entries.prop_map(|entries| {
        let given = entries
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Value::Object(given.collect())
    })
}

fn cluster() -> impl Strategy<Value = Value> {
    let texts = |strategy: BoxedStrategy<String>| strategy.prop_map(Value::from).boxed();
    let others = mapping(vec![
        ("certificate-authority", texts(text().boxed())),
        ("certificate-authority-data", texts(pem().boxed())),
        (
            "insecure-skip-tls-verify",
            any::<bool>().prop_map(Value::from).boxed(),
        ),
        ("tls-server-name", texts(text().boxed())),
        ("proxy-url", texts(server().boxed())),
        ("disable-compression", any_value().boxed()),
        ("extensions", any_value().boxed()),
    ]);
    (server(), others).prop_map(|(server, mut others)| {
        others["server"] = json!(server);
        others
    })
}

fn user() -> impl Strategy<Value = Value> {
    let texts = || prop_oneof![8 => text().prop_map(Value::from), 1 => any_value()].boxed();
    let data = || pem().prop_map(Value::from).boxed();
    // No program of this machine.
    let exec = mapping(vec![
        ("apiVersion", texts()),
        (
            "command",
            select(&["", "none-of-this-machine", "/none/x"][..])
                .prop_map(Value::from)
                .boxed(),
        ),
        ("args", any_value().boxed()),
        ("env", any_value().boxed()),
        (
            "provideClusterInfo",
            any::<bool>().prop_map(Value::from).boxed(),
        ),
        ("interactiveMode", texts()),
    ]);
    mapping(vec![
        ("token", texts()),
        ("tokenFile", texts()),
        ("username", texts()),
        ("password", texts()),
        ("client-certificate", texts()),
        ("client-certificate-data", data()),
        ("client-key", texts()),
        ("client-key-data", data()),
        ("as", texts()),
        ("as-uid", texts()),
        ("as-groups", any_value().boxed()),
        ("as-user-extra", any_value().boxed()),
        ("auth-provider", any_value().boxed()),
        ("exec", exec.boxed()),
    ])
}

fn kubeconfig() -> impl Strategy<Value = Value> {
    let other = prop::option::weighted(0.05, any_value());
    let name = |usual: &'static str| prop_oneof![12 => Just(usual.to_owned()), 1 => text()];
    let names = [
        name("k"),
        name("k"),
        name("u"),
        name("u"),
        name("c"),
        name("c"),
    ];
    (
        names,
        cluster(),
        user(),
        prop::option::weighted(0.2, text()),
        other,
    )
        .prop_map(
            |(
                [
                    cluster_name,
                    of_cluster,
                    user_name,
                    of_user,
                    context_name,
                    current,
                ],
                cluster,
                user,
                namespace,
                other,
            )| {
                let mut context = json!({ "cluster": of_cluster, "user": of_user });
                if let Some(namespace) = namespace {
                    context["namespace"] = json!(namespace);
                }
                let mut content = json!({
                    "apiVersion": "v1", "kind": "Config", "current-context": current,
                    "clusters": [{ "name": cluster_name, "cluster": cluster }],
                    "users": [{ "name": user_name, "user": user }],
                    "contexts": [{ "name": context_name, "context": context }],
                });
                if let Some(other) = other {
                    content["preferences"] = other;
                }
                content
            },
        )
}

/// Returns a text in which some bytes differ from that of a kubeconfig, as a mapping in lines or in
/// braces.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<Index>(), 0..5u8, any::<u8>()), 1..8);
    (kubeconfig(), any::<bool>(), edits).prop_map(|(content, in_lines, edits)| {
        let text = if in_lines {
            serde_norway::to_string(&content).unwrap()
        } else {
            content.to_string()
        };
        let mut bytes = text.into_bytes();
        for (index, edit, byte) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = index.index(bytes.len());
            match edit {
                0 => bytes[at] = byte,
                1 => bytes[at] = b"{}[],:\"-?&*!|>#%~\n "[usize::from(byte) % 19],
                2 => drop(bytes.remove(at)),
                3 => bytes.truncate(at + 1),
                _ => _ = bytes.splice(at..at, b"- ? [{&a *a !t ".repeat(usize::from(byte) * 4)),
            }
        }
        bytes
    })
}

/// Opens a client with each generated file, and sends a request if the client has the address of
/// [`SERVER`]. Returns the number of files, and of clients.
fn open_for<T>(
    strategy: impl Strategy<Value = T>,
    place: &ClientPlace,
    bytes: impl Fn(T) -> Vec<u8>,
) -> (u64, u64) {
    let end = Instant::now() + fuzz_time();
    let dir = tempfile::tempdir().unwrap();
    mkfifo(&dir.path().join("fifo"), Mode::S_IRWXU).unwrap();
    let file = dir.path().join("kubeconfig");
    let deadline = Duration::from_secs(5);
    let config = KubernetesConfig {
        kubeconfig: vec![file.clone()],
        place: place.clone(),
        deadline,
        ..Default::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut runner = TestRunner::default();
    let (mut files, mut clients) = (0, 0);
    while Instant::now() < end || files < MIN_FILES {
        files += 1;
        fs::write(
            &file,
            bytes(strategy.new_tree(&mut runner).unwrap().current()),
        )
        .unwrap();
        let Ok(opened) = runtime.block_on(connect::open(&config, 2)) else {
            continue;
        };
        clients += 1;
        if opened.client.server.contains(&format!("//{SERVER}/")) {
            let request = hyper::Request::get("/version").body(Vec::new()).unwrap();
            assert!(
                runtime
                    .block_on(opened.client.client.request_text(request))
                    .is_err(),
                "no server listens"
            );
        }
    }
    (files, clients)
}

#[test]
fn client_of_a_generated_kubeconfig_never_panics() {
    let outside = ClientPlace::OutsideCluster(ProxyVariables::default());
    for place in [ClientPlace::Node, outside] {
        let (files, clients) = open_for(kubeconfig(), &place, |content| {
            content.to_string().into_bytes()
        });
        assert!(
            clients * 50 > files,
            "only {clients} of {files} kubeconfigs were usable"
        );
    }
}

#[test]
fn client_of_a_damaged_kubeconfig_never_panics() {
    let (files, _) = open_for(damaged(), &ClientPlace::Node, |bytes| bytes);
    assert!(files > 0);
}
