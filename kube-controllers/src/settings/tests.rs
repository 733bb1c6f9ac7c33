mod environment_variables;

use libcalico::api::{
    AutoHostEndpointConfig, HostEndpointTemplate, KubeControllersConfigurationSpec,
    ReconcilerConfig,
};
use libcalico::kubernetes::ApiGroup;
use libcalico::variables::Variables;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::settings::Mode;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

const ETCD: Mode = Mode::Etcd;
const KUBERNETES: Mode = Mode::Kubernetes(ApiGroup::CrdV1);

fn environment(variables: &[(&str, &str)]) -> Environment {
    try_environment(variables).unwrap()
}

fn try_environment(variables: &[(&str, &str)]) -> Result<Environment, SettingsError> {
    let found = |name: &str| {
        variables
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, text)| (*text).to_owned())
    };
    Environment::read(Variables::new(&found))
}

fn spec(value: Value) -> KubeControllersConfigurationSpec {
    serde_json::from_value(value).unwrap()
}

fn recorded() -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/controllers/kubernetes-to-calico.json"
    );
    let recording: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    recording["store"]["/calico/resources/v3/projectcalico.org/kubecontrollersconfigurations/default"].clone()
}

#[test]
fn recorded_upstream_configuration_yields_the_recorded_status() {
    let default = default_configuration();
    assert_eq!(serde_json::to_value(&default).unwrap(), recorded()["spec"]);

    let overrides = environment(&[
        (
            "ENABLED_CONTROLLERS",
            "workloadendpoint,policy,namespace,serviceaccount,node",
        ),
        ("LOG_LEVEL", "info"),
        ("DATASTORE_TYPE", "etcdv3"),
    ]);
    let merged = merge(&overrides, &default, ETCD);
    assert_eq!(
        serde_json::to_value(&merged.status).unwrap(),
        recorded()["status"]
    );
    assert_eq!(merged.notes, [""; 0]);
}

#[test]
fn default_configuration_enables_all_controllers() {
    let Merged {
        settings, status, ..
    } = merge(&environment(&[]), &default_configuration(), ETCD);
    assert_eq!(settings.enabled, BTreeSet::from(ControllerName::ALL));
    assert_eq!(settings.reconcile_period.len(), 4);
    assert!(
        settings
            .reconcile_period
            .values()
            .all(|period| *period == Duration::from_secs(300))
    );
    assert!(settings.workers.values().all(|count| *count == 1));
    assert_eq!(settings.leak_grace_period, Some(Duration::from_secs(900)));
    assert_eq!(
        settings.orphan_endpoint_grace_period,
        Duration::from_secs(900)
    );
    assert_eq!(settings.compaction_period, Duration::from_secs(600));
    assert_eq!(
        (settings.metrics_port, settings.debug_profile_port),
        (Some(9094), None)
    );
    assert!(settings.sync_node_labels && settings.delete_nodes && settings.health_checks);
    assert!(settings.policy_name_migrator && !settings.host_endpoints.enabled);
    assert_eq!(
        (settings.gc_mode, settings.assign_ips),
        (GcMode::Reclaim, Some(AssignIps::AllServices))
    );
    assert_eq!(status.environment_vars, BTreeMap::new());
}

/// An API server prunes unknown fields, but etcd stores them.
#[test]
fn unknown_configuration_keys_have_no_effect() {
    let mut configured = serde_json::to_value(default_configuration()).unwrap();
    configured["leakGracePeriod"] = json!("0s");
    configured["controllers"]["node"]["leakGracePeriods"] = json!("0s");
    configured["controllers"]["collector"] = json!({});
    let merged = merge(&environment(&[]), &spec(configured), ETCD);
    assert_eq!(
        merged.settings,
        merge(&environment(&[]), &default_configuration(), ETCD).settings
    );
}

#[test]
fn environment_overrides_the_configuration() {
    let configured = spec(json!({
        "logSeverityScreen": "Warning", "healthChecks": "Disabled", "etcdV3CompactionPeriod": "1h",
        "prometheusMetricsPort": 0, "debugProfilePort": 9095,
        "controllers": {
            "node": {
                "syncLabels": "Disabled", "leakGracePeriod": "30m",
                "hostEndpoint": {
                    "autoCreate": "Disabled", "createDefaultHostEndpoint": "Disabled",
                    "templates": [{"generateName": "a", "interfaceCIDRs": ["10.0.0.0/8"]}],
                },
            },
            "policy": {"reconcilerPeriod": "7m"},
            "namespace": {},
            "loadBalancer": {"assignIPs": "RequestedServicesOnly"},
            "migration": {"policyNameMigrator": "Disabled"},
        },
    }));
    let alone = merge(&environment(&[]), &configured, ETCD).settings;
    assert_eq!(alone.log_severity, LogSeverity::Warning);
    let expected = [
        ControllerName::Node,
        ControllerName::Policy,
        ControllerName::Namespace,
        ControllerName::LoadBalancer,
    ];
    assert_eq!(alone.enabled, BTreeSet::from(expected));
    assert_eq!(
        alone.reconcile_period[&ControllerName::Policy],
        Duration::from_secs(420)
    );
    assert_eq!(
        alone.reconcile_period[&ControllerName::Namespace],
        Duration::from_secs(300)
    );
    assert_eq!(
        (alone.metrics_port, alone.debug_profile_port),
        (None, Some(9095))
    );
    assert!(!alone.sync_node_labels && !alone.health_checks && !alone.policy_name_migrator);
    assert_eq!(alone.host_endpoints.templates.len(), 1);
    assert!(!alone.host_endpoints.enabled && !alone.host_endpoints.default_endpoint);
    assert_eq!(alone.assign_ips, Some(AssignIps::RequestedServicesOnly));
    assert_eq!(alone.compaction_period, Duration::from_secs(3600));

    let variables = [
        ("LOG_LEVEL", "warn"),
        ("ENABLED_CONTROLLERS", "node,policy"),
        ("RECONCILER_PERIOD", "105s"),
        ("COMPACTION_PERIOD", "33m"),
        ("HEALTH_ENABLED", "TRUE"),
        ("SYNC_NODE_LABELS", "1"),
        ("AUTO_HOST_ENDPOINTS", "Enabled"),
        ("LEAK_GRACE_PERIOD", "45m"),
        ("PROMETHEUS_METRICS_PORT", "9095"),
        ("POLICY_WORKERS", "5"),
        ("GC_MODE", "report"),
    ];
    let Merged {
        settings, status, ..
    } = merge(&environment(&variables), &configured, ETCD);
    let shown: BTreeMap<String, String> = variables[..9]
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    assert_eq!(status.environment_vars, shown);
    assert_eq!(
        serde_json::to_value(status.running_config).unwrap(),
        json!({
            "logSeverityScreen": "Warning", "healthChecks": "Enabled",
            "etcdV3CompactionPeriod": "33m0s",
            "controllers": {
                "node": {
                    "syncLabels": "Enabled", "leakGracePeriod": "45m0s",
                    "hostEndpoint": {
                        "autoCreate": "Enabled", "createDefaultHostEndpoint": "Enabled",
                    },
                },
                "policy": {"reconcilerPeriod": "1m45s"},
                "migration": {"policyNameMigrator": "Disabled"},
            },
        })
    );
    assert_eq!(
        (
            settings.workers[&ControllerName::Policy],
            settings.metrics_port
        ),
        (5, Some(9095))
    );
    let off = merge(
        &environment(&[("PROMETHEUS_METRICS_PORT", "0")]),
        &default_configuration(),
        ETCD,
    )
    .settings;
    assert_eq!(off.metrics_port, None);
    assert_eq!(settings.gc_mode, GcMode::Report);
}

#[test]
fn port_of_metrics_that_the_configuration_alone_moves_is_noted() {
    let merged = |port: Value, variables: &[(&str, &str)]| {
        let merged = merge(
            &environment(variables),
            &spec(json!({"prometheusMetricsPort": port, "controllers": {}})),
            KUBERNETES,
        );
        let notes = merged
            .notes
            .into_iter()
            .filter(|note| note.starts_with("prometheusMetricsPort"));
        (merged.settings.metrics_port, notes.collect::<Vec<_>>())
    };
    let (port, notes) = merged(json!(9095), &[]);
    let [note] = &notes[..] else {
        panic!("{notes:?}")
    };
    assert!(
        port == Some(9095)
            && note.contains("calico-kube-controllers-metrics of our manifests leads to 9094")
    );
    for given in [Value::Null, json!(9094)] {
        assert_eq!(merged(given, &[]), (Some(9094), Vec::new()));
    }
    assert_eq!(merged(json!(0), &[]), (None, Vec::new()));
    assert_eq!(
        merged(json!(9095), &[("PROMETHEUS_METRICS_PORT", "9096")]),
        (Some(9096), Vec::new())
    );
}

/// A missing field never turns anything off.
#[test]
fn missing_configuration_fields_get_their_defaults() {
    let bare = spec(json!({"controllers": {"node": {}, "policy": {}}}));
    let settings = merge(&environment(&[]), &bare, ETCD).settings;
    assert_eq!(
        (settings.metrics_port, settings.leak_grace_period),
        (Some(9094), Some(Duration::from_secs(900)))
    );
    assert_eq!(
        settings.reconcile_period[&ControllerName::Policy],
        Duration::from_secs(300)
    );

    let by_environment = environment(&[("ENABLED_CONTROLLERS", "node,policy,loadbalancer")]);
    let settings = merge(
        &by_environment,
        &KubeControllersConfigurationSpec::default(),
        ETCD,
    )
    .settings;
    assert_eq!(
        settings.reconcile_period[&ControllerName::Policy],
        Duration::from_secs(300)
    );
    assert_eq!(settings.leak_grace_period, Some(Duration::from_secs(900)));
    assert_eq!(settings.assign_ips, Some(AssignIps::AllServices));

    let off = spec(json!({
        "controllers": {"node": {"leakGracePeriod": "0s"}, "policy": {"reconcilerPeriod": "0s"}}
    }));
    let settings = merge(&environment(&[]), &off, ETCD).settings;
    assert_eq!(
        settings.leak_grace_period,
        Some(Duration::ZERO),
        "zero is said, not left out"
    );
    assert_eq!(
        settings.reconcile_period[&ControllerName::Policy],
        Duration::ZERO
    );
    assert_eq!(
        settings.orphan_endpoint_grace_period,
        Duration::from_secs(300)
    );
}

#[test]
fn kubernetes_datastore_disables_the_etcd_controllers() {
    let Merged {
        settings,
        status,
        notes,
        ..
    } = merge(&environment(&[]), &default_configuration(), KUBERNETES);
    assert_eq!(
        settings.enabled,
        BTreeSet::from([ControllerName::Node, ControllerName::LoadBalancer])
    );
    assert!(!settings.sync_node_labels && !settings.delete_nodes);
    assert_eq!(settings.compaction_period, Duration::ZERO);
    let [note] = &notes[..] else {
        panic!("{notes:?}")
    };
    assert!(
        note.ends_with(": policy, namespace, serviceaccount, workloadendpoint"),
        "{note}"
    );
    assert_eq!(
        status.environment_vars,
        BTreeMap::from([("DATASTORE_TYPE".into(), "kubernetes".into())])
    );
    let shown = serde_json::to_value(status.running_config).unwrap();
    let sections: Vec<_> = shown["controllers"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(sections, ["loadBalancer", "migration", "node"]);
    assert_eq!(shown["controllers"]["node"]["syncLabels"], "Disabled");

    let named = environment(&[
        ("ENABLED_CONTROLLERS", "node,loadbalancer"),
        ("SYNC_NODE_LABELS", "true"),
    ]);
    let Merged { status, notes, .. } = merge(&named, &default_configuration(), KUBERNETES);
    assert_eq!(notes, [""; 0]);
    assert!(
        !status.environment_vars.contains_key("SYNC_NODE_LABELS"),
        "it decides nothing there"
    );
}

#[test]
fn node_settings_are_reported_only_if_the_node_controller_runs() {
    let overrides = environment(&[
        ("ENABLED_CONTROLLERS", "policy"),
        ("SYNC_NODE_LABELS", "false"),
        ("AUTO_HOST_ENDPOINTS", "enabled"),
    ]);
    let Merged {
        settings, status, ..
    } = merge(&overrides, &default_configuration(), ETCD);
    assert_eq!(
        status.environment_vars.keys().collect::<Vec<_>>(),
        ["ENABLED_CONTROLLERS"]
    );
    assert_eq!(status.running_config.unwrap().controllers.node, None);
    assert!(!settings.host_endpoints.enabled && !settings.delete_nodes);
}

#[test]
fn invalid_configuration_fields_are_reported_and_valid_fields_applied() {
    let mut wrong = default_configuration();
    wrong.log_severity_screen = Some("None".into());
    wrong.prometheus_metrics_port = Some(70_000);
    let usable = HostEndpointTemplate {
        generate_name: "a".into(),
        interface_pattern: "eth0".into(),
        ..HostEndpointTemplate::default()
    };
    wrong.controllers.node.as_mut().unwrap().host_endpoint = Some(AutoHostEndpointConfig {
        auto_create: Some("Enabled".into()),
        templates: vec![HostEndpointTemplate::default(), usable.clone()],
        ..AutoHostEndpointConfig::default()
    });
    let Merged {
        settings,
        notes,
        problems,
        ..
    } = merge(&environment(&[]), &wrong, ETCD);
    assert_eq!(settings.log_severity, LogSeverity::Info);
    assert_eq!(settings.metrics_port, None);
    assert_eq!(settings.host_endpoints.templates, [usable]);
    assert!(settings.host_endpoints.enabled && settings.host_endpoints.default_endpoint);
    assert_eq!(
        (notes.len(), problems.len()),
        (2, 1),
        "{notes:?} {problems:?}"
    );
}

#[test]
fn templates_with_a_duplicate_name_are_ignored_and_preserve_endpoints() {
    let template = |name: &str, cidr: &str| json!({"generateName": name, "interfaceCIDRs": [cidr]});
    let templates = [
        template("a", "10.0.0.0/8"),
        template("b", "10.0.0.0/8"),
        template("a", "192.0.2.0/24"),
    ];
    let host_endpoint = json!({"autoCreate": "Enabled", "templates": templates});
    let sections = json!({"node": {"hostEndpoint": host_endpoint}});
    let Merged {
        settings, problems, ..
    } = merge(
        &environment(&[]),
        &spec(json!({ "controllers": sections })),
        ETCD,
    );
    let followed: Vec<_> = settings
        .host_endpoints
        .templates
        .iter()
        .map(|it| it.generate_name.as_str())
        .collect();
    assert_eq!(
        (followed, settings.host_endpoints.keep, problems.len()),
        (vec!["b"], true, 2),
        "{problems:?}"
    );
}

#[test]
fn unknown_configuration_values_are_reported_with_the_valid_values() {
    let merged = |auto_create: &str, default: &str, assign: &str| {
        let host_endpoint =
            json!({"autoCreate": auto_create, "createDefaultHostEndpoint": default});
        let load_balancer = json!({ "assignIPs": assign });
        let sections =
            json!({"node": {"hostEndpoint": host_endpoint}, "loadBalancer": load_balancer});
        merge(
            &environment(&[]),
            &spec(json!({ "controllers": sections })),
            ETCD,
        )
    };
    for (auto_create, default, assign, expected) in [
        (
            "on",
            "Enabled",
            "AllServices",
            "hostEndpoint.autoCreate: `on` is not one of Enabled, Disabled; no ",
        ),
        (
            "Enabled",
            "enabled",
            "AllServices",
            "hostEndpoint.createDefaultHostEndpoint: `enabled` is not one of ",
        ),
        (
            "Enabled",
            "Enabled",
            "All",
            "loadBalancer.assignIPs: `All` is not one of AllServices, RequestedServicesOnly; no ",
        ),
    ] {
        let Merged {
            settings,
            notes,
            problems,
            ..
        } = merged(auto_create, default, assign);
        assert!(
            matches!(&problems[..], [problem] if problem.starts_with(expected)),
            "{problems:?}"
        );
        assert_eq!(
            (settings.host_endpoints.keep, settings.assign_ips),
            (
                assign != "All",
                (assign != "All").then_some(AssignIps::AllServices)
            )
        );
        let [note] = &notes[..] else {
            panic!("{notes:?}")
        };
        assert!(
            note.contains("policy, namespace, serviceAccount, workloadEndpoint; add the section"),
            "{note}"
        );
    }
    let off = merged("Disabled", "none", "");
    assert!(
        !off.settings.host_endpoints.keep
            && off.settings.assign_ips == Some(AssignIps::AllServices)
    );
    assert_eq!(off.problems, [""; 0], "all automatic host endpoints go");
    let nothing = merged("", "", "");
    assert!(
        !nothing.settings.host_endpoints.keep && nothing.settings.host_endpoints.default_endpoint
    );
    assert_eq!(nothing.problems, [""; 0]);
}

#[test]
fn unknown_switch_value_is_reported_and_changes_no_other_setting() {
    let merged = |sync_labels: &str, migrator: &str, health: &str| {
        let sections = json!({
            "node": {"syncLabels": sync_labels}, "migration": {"policyNameMigrator": migrator},
        });
        let Merged {
            settings, problems, ..
        } = merge(
            &environment(&[]),
            &spec(json!({"controllers": sections, "healthChecks": health})),
            ETCD,
        );
        (
            (
                settings.sync_node_labels,
                settings.policy_name_migrator,
                settings.health_checks,
            ),
            problems,
        )
    };
    assert_eq!(merged("", "", ""), ((true, true, true), Vec::new()));
    assert_eq!(
        merged("Disabled", "Disabled", "Disabled"),
        ((false, false, false), Vec::new())
    );
    let (settings, problems) = merged("off", "disabled", "on");
    assert_eq!(settings, (false, false, true));
    let expected = [
        "healthChecks: `on` is not one of Enabled, Disabled; the health checks continue",
        "node.syncLabels: `off` is not one of Enabled, Disabled; no label of a Node is copied",
        "migration.policyNameMigrator: `disabled` is not one of Enabled, Disabled; no policy is \
         renamed",
    ];
    assert_eq!(problems, expected);
}

#[test]
fn only_settings_that_controllers_are_built_from_restart_them() {
    let base = default_configuration();
    let settings = |change: fn(&mut KubeControllersConfigurationSpec)| {
        let mut changed = base.clone();
        change(&mut changed);
        merge(&environment(&[]), &changed, ETCD).settings
    };
    let before = settings(|_| {});
    let in_place: [fn(&mut KubeControllersConfigurationSpec); 5] = [
        |spec| spec.log_severity_screen = Some("Debug".into()),
        |spec| spec.prometheus_metrics_port = Some(9999),
        |spec| spec.debug_profile_port = Some(9095),
        |spec| {
            spec.controllers.node.as_mut().unwrap().leak_grace_period = Some("1m".parse().unwrap())
        },
        |spec| spec.etcd_v3_compaction_period = Some("1m".parse().unwrap()),
    ];
    for change in in_place {
        let after = settings(change);
        assert!(after != before && !before.restarts_for(&after), "{after:?}");
    }
    let anew: [fn(&mut KubeControllersConfigurationSpec); 3] = [
        |spec| spec.controllers.namespace = None,
        |spec| {
            spec.controllers.policy = Some(ReconcilerConfig {
                reconciler_period: Some("1m".parse().unwrap()),
                ..Default::default()
            })
        },
        |spec| spec.controllers.node.as_mut().unwrap().sync_labels = Some("Disabled".into()),
    ];
    for change in anew {
        assert!(before.restarts_for(&settings(change)));
    }
}

proptest! {
    /// The published status is complete: used as a configuration, it gives the same settings.
    #[test]
    fn published_status_used_as_configuration_yields_the_same_settings(
        node: bool, policy: bool, namespace: bool, balancer: bool, health: bool, labels: bool,
        hosts: bool,
        minutes in 0u32..100,
    ) {
        let section = |on: bool, value: Value| if on { value } else { Value::Null };
        let switch = |on: bool| if on { "Enabled" } else { "Disabled" };
        let configured = spec(json!({
            "healthChecks": switch(health), "etcdV3CompactionPeriod": format!("{minutes}m"),
            "controllers": {
                "node": section(node, json!({
                    "syncLabels": switch(labels), "leakGracePeriod": format!("{minutes}m"),
                    "hostEndpoint": {"autoCreate": switch(hosts)},
                })),
                "policy": section(policy, json!({"reconcilerPeriod": format!("{minutes}m")})),
                "namespace": section(namespace, json!({})),
                "loadBalancer": section(balancer, json!({"assignIPs": "RequestedServicesOnly"})),
            },
        }));
        let merged = merge(&environment(&[]), &configured, ETCD);
        let again = merge(
            &environment(&[]),
            &merged.status.running_config.clone().unwrap(),
            ETCD,
        );
        prop_assert_eq!(&again.status, &merged.status);
        prop_assert_eq!(again.settings, merged.settings);
    }
}

#[test]
fn missing_sections_are_named_unless_the_environment_chooses_the_controllers() {
    let some = spec(json!({ "controllers": { "node": {}, "loadBalancer": {} } }));
    let notes =
        |variables: &[(&str, &str)], mode| merge(&environment(variables), &some, mode).notes;
    let expected = "not running the controllers without a section in spec.controllers: policy, \
                    namespace, serviceAccount, workloadEndpoint; add the section (`policy: {}`) to \
                    run a controller";
    assert_eq!(notes(&[], ETCD), [expected]);
    assert_eq!(notes(&[("ENABLED_CONTROLLERS", "node")], ETCD), [""; 0]);
    assert_eq!(notes(&[], KUBERNETES), [""; 0]);
    let example = include_str!("../../../deploy/examples/kubecontrollersconfiguration.yaml");
    for name in ControllerName::ALL {
        assert!(
            example.contains(&format!("\n    {}:", name.section())),
            "{name}"
        );
    }
}

#[test]
fn short_periods_are_lengthened_and_zero_stays() {
    let periods = |text: &str| {
        let mut given = default_configuration();
        given.etcd_v3_compaction_period = Some(text.parse().unwrap());
        given.controllers.policy.as_mut().unwrap().reconciler_period = Some(text.parse().unwrap());
        let Merged {
            settings, notes, ..
        } = merge(&environment(&[]), &given, ETCD);
        (
            settings.compaction_period,
            settings.reconcile_period[&ControllerName::Policy],
            notes.len(),
        )
    };
    let second = Duration::from_secs(1);
    assert_eq!(periods("1ns"), (second, second, 2));
    assert_eq!(periods("1s"), (second, second, 0));
    assert_eq!(periods("0s"), (Duration::ZERO, Duration::ZERO, 0));
}
