use libcalico::api::HostEndpointTemplate;
use libcalico::api::{HostEndpointPort, HostEndpointSpec, NodeBgp, NodeSpec};
use libcalico::host_endpoints::{AutoHostEndpoints, CREATED_BY};
use libcalico::store::{Kind, Write, WriteOp};
use serde_json::json;

use super::*;
use crate::controllers::testing::{configured, embedded, settings};
use crate::watches::Event;

struct Fixture {
    store: Arc<Datastore>,
    settings: watch::Sender<Arc<Settings>>,
    reconciler: HostEndpointReconciler,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new(wanted: AutoHostEndpoints) -> Self {
        let (dir, store) = embedded();
        let (sender, receiver) = watch::channel(Arc::new(Settings {
            host_endpoints: wanted,
            ..settings()
        }));
        let reconciler = HostEndpointReconciler {
            store: store.clone(),
            settings: receiver,
            cache: SharedCache::default(),
            patterns: PatternCache::default(),
        };
        Fixture {
            store,
            settings: sender,
            reconciler,
            _dir: dir,
        }
    }

    fn set(&self, wanted: AutoHostEndpoints) {
        self.settings
            .send_modify(|settings| Arc::make_mut(settings).host_endpoints = wanted);
    }

    async fn node(&self, name: &str) {
        let bgp = NodeBgp {
            ipv4_address: "10.0.0.1/24".into(),
            ..NodeBgp::default()
        };
        let node = CalicoNode::new(
            name,
            NodeSpec {
                bgp: Some(bgp),
                ..NodeSpec::default()
            },
        );
        self.store.create(&node.key(), &node).await.unwrap();
    }

    /// Delivers all objects as a restarted watch does.
    async fn on_event(&self) -> Vec<String> {
        let (nodes, endpoints) = (
            self.all::<CalicoNode>().await,
            self.all::<HostEndpoint>().await,
        );
        let mut cache = self.reconciler.cache.lock();
        let mut touched = Vec::new();
        cache.apply_node(&Event::ListStart);
        nodes
            .iter()
            .for_each(|entry| touched.extend(cache.apply_node(&Event::Upsert(entry))));
        touched.extend(cache.apply_node(&Event::ListEnd));
        cache.apply_endpoint(&Event::ListStart);
        endpoints
            .iter()
            .for_each(|entry| touched.extend(cache.apply_endpoint(&Event::Upsert(entry))));
        touched.extend(cache.apply_endpoint(&Event::ListEnd));
        touched.sort();
        touched.dedup();
        touched
    }

    async fn all<K: Kind<Select = libcalico::api::ObjectSelect>>(&self) -> Vec<Entry<K>> {
        self.store.list::<K>(&Default::default()).await.unwrap()
    }

    /// Delivers events and reconciles until nothing changes. Returns the number of rounds that
    /// wrote.
    async fn settle(&self) -> usize {
        for round in 0..5 {
            let before = self.all::<HostEndpoint>().await;
            // A node is reconciled once, because a second write with the same cached revision is a
            // conflict.
            let mut nodes = self.on_event().await;
            nodes.extend(self.reconciler.cache.lock().names());
            nodes.sort();
            nodes.dedup();
            for node in nodes {
                self.reconciler.reconcile(&node).await.unwrap();
            }
            if self.all::<HostEndpoint>().await == before {
                return round;
            }
        }
        panic!("it never settles");
    }

    async fn names(&self) -> Vec<String> {
        self.all::<HostEndpoint>()
            .await
            .into_iter()
            .map(|entry| entry.key.name)
            .collect()
    }

    async fn endpoint(&self, name: &str) -> Entry<HostEndpoint> {
        self.store
            .get::<HostEndpoint>(&ObjectKey::global(name))
            .await
            .unwrap()
    }

    async fn put(&self, name: &str, node: &str, ours: bool) {
        let spec = HostEndpointSpec {
            node: node.into(),
            interface_name: "*".into(),
            ..HostEndpointSpec::default()
        };
        let mut endpoint = HostEndpoint::new(name, spec);
        if ours {
            endpoint
                .metadata
                .labels
                .insert(CREATED_BY.0.into(), CREATED_BY.1.into());
        }
        self.store.create(&endpoint.key(), &endpoint).await.unwrap();
    }
}

fn default_endpoint() -> AutoHostEndpoints {
    AutoHostEndpoints {
        enabled: true,
        default_endpoint: true,
        ..AutoHostEndpoints::default()
    }
}

fn template(name: &str) -> AutoHostEndpoints {
    let template = HostEndpointTemplate {
        generate_name: name.into(),
        interface_cidrs: vec!["10.0.0.0/8".into()],
        ..HostEndpointTemplate::default()
    };
    AutoHostEndpoints {
        templates: vec![template],
        ..default_endpoint()
    }
}

#[tokio::test]
async fn host_endpoints_follow_nodes_and_settings() {
    let fixture = Fixture::new(default_endpoint());
    fixture.node("node-1").await;
    fixture.put("dangling", "node-9", true).await;
    fixture.put("own", "node-9", false).await;
    assert_eq!(fixture.settle().await, 1);
    assert_eq!(fixture.names().await, ["node-1-auto-hep", "own"]);
    let made = fixture.endpoint("node-1-auto-hep").await.value;
    assert!(!made.metadata.uid.is_empty() && made.metadata.creation_timestamp.is_some());

    fixture.set(template("t"));
    fixture.settle().await;
    assert_eq!(
        fixture.names().await,
        ["node-1-auto-hep", "node-1-t-auto-hep", "own"]
    );
    fixture.set(AutoHostEndpoints {
        default_endpoint: false,
        ..template("renamed")
    });
    fixture.settle().await;
    assert_eq!(fixture.names().await, ["node-1-renamed-auto-hep", "own"]);
    fixture.set(AutoHostEndpoints::default());
    fixture.settle().await;
    assert_eq!(fixture.names().await, ["own"]);
}

#[tokio::test]
async fn foreign_changes_to_automatic_host_endpoints_are_reverted() {
    let fixture = Fixture::new(default_endpoint());
    fixture.node("node-1").await;
    fixture.settle().await;
    let before = fixture.endpoint("node-1-auto-hep").await;
    let mut changed = before.value.clone();
    changed.spec.expected_ips = vec!["1.2.3.4".into()];
    changed.metadata.labels.insert("more".into(), "x".into());
    fixture
        .store
        .update(&before.key, &changed, &before.revision)
        .await
        .unwrap();
    assert_eq!(fixture.on_event().await, ["node-1"]);
    fixture.settle().await;
    let after = fixture.endpoint("node-1-auto-hep").await.value;
    assert_eq!(
        (&after.spec, &after.metadata.labels),
        (&before.value.spec, &before.value.metadata.labels)
    );
    assert_eq!(after.metadata.uid, before.value.metadata.uid);

    fixture
        .store
        .delete::<HostEndpoint>(&before.key, None)
        .await
        .unwrap();
    assert_eq!(fixture.on_event().await, ["node-1"]);
    fixture.settle().await;
    assert_eq!(fixture.names().await, ["node-1-auto-hep"]);
}

#[tokio::test]
async fn update_of_an_automatic_host_endpoint_keeps_changed_profiles_and_ports() {
    let fixture = Fixture::new(default_endpoint());
    fixture.node("node-1").await;
    fixture.settle().await;
    let before = fixture.endpoint("node-1-auto-hep").await;
    let mut changed = before.value.clone();
    changed.spec.profiles = vec!["own".into()];
    let port = HostEndpointPort {
        name: "ssh".into(),
        protocol: json!("TCP"),
        port: 22,
        ..HostEndpointPort::default()
    };
    changed.spec.ports = vec![port];
    let kept = changed.spec.clone();
    changed.spec.expected_ips = vec!["1.2.3.4".into()];
    fixture
        .store
        .update(&before.key, &changed, &before.revision)
        .await
        .unwrap();
    fixture.settle().await;
    assert_eq!(fixture.endpoint("node-1-auto-hep").await.value.spec, kept);
}

#[tokio::test]
async fn host_endpoint_missing_from_the_cache_is_read_before_the_write() {
    let fixture = Fixture::new(default_endpoint());
    fixture.node("node-1").await;
    fixture.on_event().await;
    // The endpoint was created by this controller, and is not in the cache yet.
    fixture.put("node-1-auto-hep", "node-1", true).await;
    fixture
        .reconciler
        .reconcile(&"node-1".into())
        .await
        .unwrap();
    assert_eq!(
        fixture
            .endpoint("node-1-auto-hep")
            .await
            .value
            .spec
            .expected_ips,
        ["10.0.0.1"]
    );
    // The cache has missed the deletion; a second deletion succeeds.
    fixture.set(AutoHostEndpoints::default());
    fixture.on_event().await;
    fixture
        .store
        .delete::<HostEndpoint>(&ObjectKey::global("node-1-auto-hep"), None)
        .await
        .unwrap();
    fixture
        .reconciler
        .reconcile(&"node-1".into())
        .await
        .unwrap();
}

#[tokio::test]
async fn name_taken_by_a_foreign_host_endpoint_fails_only_that_endpoint() {
    let fixture = Fixture::new(template("t"));
    fixture.node("node-1").await;
    fixture.put("node-1-auto-hep", "node-7", false).await;
    fixture.on_event().await;
    let error = fixture
        .reconciler
        .reconcile(&"node-1".into())
        .await
        .unwrap_err();
    assert!(
        matches!(
            &error,
            ReconcileError::Permanent(text) if text.contains("was not created by kube-controllers"),
        ),
        "{error}"
    );
    assert_eq!(
        fixture.names().await,
        ["node-1-auto-hep", "node-1-t-auto-hep"]
    );
    assert_eq!(
        fixture.endpoint("node-1-auto-hep").await.value.spec.node,
        "node-7"
    );
}

#[tokio::test]
async fn invalid_template_deletes_no_host_endpoints() {
    let fixture = Fixture::new(template("t"));
    fixture.node("node-1").await;
    fixture.settle().await;
    let mut broken = template("t");
    broken.templates[0].node_selector = "has(".into();
    fixture.set(broken);
    let error = fixture
        .reconciler
        .reconcile(&"node-1".into())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("nodeSelector"), "{error}");
    assert_eq!(
        fixture.names().await,
        ["node-1-auto-hep", "node-1-t-auto-hep"]
    );
}

#[tokio::test]
async fn invalid_settings_delete_no_host_endpoints_and_disabling_deletes_all() {
    let both = |auto_create: &str, default: &str, pattern: &str| {
        let templates = json!([{
            "generateName": "t", "interfaceCIDRs": ["10.0.0.0/8"], "nodeSelector": pattern,
        }]);
        let host_endpoint = json!({
            "autoCreate": auto_create, "createDefaultHostEndpoint": default, "templates": templates,
        });
        configured(json!({"controllers": {"node": {"hostEndpoint": host_endpoint}}})).host_endpoints
    };
    for wrong in [
        both("enabled", "Enabled", ""),
        both("Enabled", "Disable", ""),
        both("Enabled", "Enabled", "has("),
    ] {
        let fixture = Fixture::new(both("Enabled", "Enabled", ""));
        fixture.node("node-1").await;
        fixture.settle().await;
        fixture.set(wrong);
        fixture.settle().await;
        assert_eq!(
            fixture.names().await,
            ["node-1-auto-hep", "node-1-t-auto-hep"]
        );
        fixture
            .store
            .delete::<CalicoNode>(&ObjectKey::global("node-1"), None)
            .await
            .unwrap();
        fixture.settle().await;
        assert!(fixture.names().await.is_empty());
    }
    let fixture = Fixture::new(both("Enabled", "Enabled", ""));
    fixture.node("node-1").await;
    fixture.settle().await;
    fixture.set(both("Disabled", "Disable", "has("));
    fixture.settle().await;
    assert!(fixture.names().await.is_empty());
}

#[tokio::test]
async fn host_endpoints_of_an_existing_node_survive_a_stale_deletion_event() {
    let fixture = Fixture::new(default_endpoint());
    fixture.node("node-1").await;
    fixture.settle().await;
    let (key, node) = (ObjectKey::global("node-1"), "node-1".to_owned());
    let touched = fixture
        .reconciler
        .cache
        .lock()
        .apply_node(&Event::Delete(&key));
    assert_eq!(touched, ["node-1"]);
    assert_eq!(
        fixture.reconciler.reconcile(&node).await.unwrap(),
        NextReconcile::After(CACHE_LAG),
        "it is there"
    );

    let (kind, path) = (CalicoNode::KIND, CalicoNode::path(&key));
    let found = fixture.store.get::<CalicoNode>(&key).await.unwrap();
    let op = WriteOp::Update(b"\"no node\"".to_vec(), found.revision);
    fixture
        .store
        .write_one(Write {
            kind,
            path,
            key: key.to_string(),
            op,
        })
        .await
        .unwrap();
    let error = fixture.reconciler.reconcile(&node).await.unwrap_err();
    assert!(
        matches!(&error, ReconcileError::Permanent(text) if text.contains("node-1")),
        "{error}"
    );
    assert_eq!(
        fixture.names().await,
        ["node-1-auto-hep"],
        "what cannot be read is not gone"
    );

    fixture
        .store
        .delete::<CalicoNode>(&key, None)
        .await
        .unwrap();
    assert_eq!(
        fixture.reconciler.reconcile(&node).await.unwrap(),
        NextReconcile::AwaitChange
    );
    assert!(fixture.names().await.is_empty());
}

#[tokio::test]
async fn invalid_interface_pattern_is_quoted_with_the_reason() {
    let mut wanted = template("t");
    wanted.templates[0].interface_pattern = "eth(".into();
    let fixture = Fixture::new(wanted);
    let interfaces = vec![json!({ "name": "eth0", "addresses": ["10.0.0.1/24"] })];
    let node = CalicoNode::new(
        "node-1",
        NodeSpec {
            interfaces,
            ..NodeSpec::default()
        },
    );
    fixture.store.create(&node.key(), &node).await.unwrap();
    fixture.on_event().await;
    let error = fixture
        .reconciler
        .reconcile(&"node-1".into())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("interfacePattern: `eth(`: ") && !error.contains('\n'),
        "{error}"
    );
    assert_eq!(fixture.names().await, ["node-1-auto-hep"]);
}

/// Go gives the same results.
#[test]
fn interface_patterns_match_anywhere_in_the_name() {
    let patterns = PatternCache::default();
    for (pattern, interface, found) in [
        ("", "eth0", true),
        ("eth", "veth0", true),
        ("^eth0$|eth1", "eth1", true),
        ("^(eth|ens)", "veth0", false),
        (r"^eth\d+$", "eth12", true),
        (r"^eth\d+$", "eth", false),
        (r"^eth\d+$", "eth\u{661}", false),
        (r"^\w+$", "größe", false),
        (r"[[:alpha:]]\w.", "ens3", true),
        (r"^veth[[:xdigit:]]{4,}$", "veth0af3", true),
        (r"^veth[[:^digit:]]", "veth0af3", false),
        (r"^bond\d\.\d{1,4}$", "bond0.100", true),
        (r"^bond\d\.\d{1,4}$", "bond01100", false),
        ("^en(?:p[0-9]+)?s[0-9]{1,3}(f[0-9])?$", "enp3s0f1", true),
        ("^(?P<kind>en|wl)[^.]*$", "ens3.5", false),
        ("^[a-z-]+$", "br-lan", true),
        (r"^[\w.-]+?$", "eth0.5", true),
        ("^[]x]$", "]", true),
        ("(?i)^ETH", "eth0", true),
        ("(?i:ETH)[0-9]", "eth0", true),
        (r"\Aeth0\z", "eth0", true),
        (r"\beth0\b", "br eth0", true),
        (r"^\x65\x{74}h\-0\_1", "eth-0_1", true),
        ("^(a||b)$", "", true),
        // A character outside ASCII is one character.
        ("^.$", "é", true),
        ("^[^a]$", "é", true),
        ("é", "aéb", true),
    ] {
        assert_eq!(
            patterns.is_match(pattern, interface),
            Ok(found),
            "{pattern} {interface}"
        );
    }
}

#[test]
fn invalid_interface_patterns_are_refused() {
    let patterns = PatternCache::default();
    let invalid = [
        "(",
        "eth)",
        "[z-a]",
        "[",
        "*",
        "eth{2,1}",
        "(?=eth)",
        "(?<!v)eth",
        r"(e)\1",
        r"\",
        "(?y)",
    ];
    let accepted_by_go = [
        r"\pL",
        r"\p{Greek}",
        r"\Qeth\E",
        "[a&&b]",
        "[[a]",
        "eth{",
        r"\145",
    ];
    for pattern in invalid
        .into_iter()
        .chain(accepted_by_go)
        .chain(["(a{1000}){1000}"])
    {
        assert!(patterns.is_match(pattern, "eth0").is_err(), "{pattern}");
    }
}
