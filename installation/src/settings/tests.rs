use super::*;

fn read(variables: &[(&str, &str)]) -> Result<Settings, InvalidVariable> {
    let lookup = |name: &str| {
        variables
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_owned())
    };
    Settings::from_environment(Variables::new(&lookup), "Host-1")
}

#[track_caller]
fn error(name: &'static str, value: &str) -> String {
    read(&[(name, value)]).unwrap_err().to_string()
}

#[test]
fn empty_environment_yields_upstreams_defaults() {
    let settings = read(&[]).unwrap();
    assert_eq!(settings.template, Template::BuiltIn);
    assert_eq!(
        (settings.conf_name.as_str(), settings.old_conf_name.as_str()),
        (DEFAULT_CONF_NAME, DEFAULT_CONF_NAME)
    );
    assert_eq!(
        (settings.conf_mode, settings.net_dir.as_str()),
        (0o600, "/etc/cni/net.d")
    );
    assert_eq!(settings.extra_plugins, ExtraPlugins::AllBut(Vec::new()));
    assert_eq!(
        (settings.update, settings.link_ipam, settings.stays_as_agent),
        (Update::Ours, true, true)
    );
    assert_eq!(settings.trial_time, Duration::from_secs(30));
    assert_eq!(
        (settings.service_account.as_str(), &settings.node_name),
        ("calico-cni-plugin", &None)
    );
    assert_eq!((settings.token_node, settings.pools), (None, vec![]));
}

#[test]
fn token_bound_to_the_node_needs_the_name_of_the_node() {
    let (bound, name) = (
        ("CNI_TOKEN_BOUND_TO_NODE", "true"),
        ("KUBERNETES_NODE_NAME", "n1"),
    );
    assert_eq!(
        read(&[bound, name])
            .unwrap()
            .token_request()
            .node
            .as_deref(),
        Some("n1")
    );
    assert_eq!(
        read(&[("CNI_TOKEN_BOUND_TO_NODE", "false"), name])
            .unwrap()
            .token_node,
        None
    );
    let missing = error("CNI_TOKEN_BOUND_TO_NODE", "true");
    assert!(
        missing.starts_with("KUBERNETES_NODE_NAME: `` is not the name of the Node"),
        "{missing}"
    );
}

#[test]
fn template_file_wins_over_text_and_empty_values_select_the_builtin() {
    let both = [
        ("CNI_NETWORK_CONFIG", "{}"),
        ("CNI_NETWORK_CONFIG_FILE", "/t.json"),
    ];
    assert_eq!(
        read(&both).unwrap().template,
        Template::File("/t.json".into())
    );
    assert_eq!(
        read(&both[..1]).unwrap().template,
        Template::Text("{}".into())
    );
    let empty = [("CNI_NETWORK_CONFIG", ""), ("CNI_NETWORK_CONFIG_FILE", "")];
    assert_eq!(read(&empty).unwrap().template, Template::BuiltIn);
}

#[test]
fn boolean_variables_follow_go_and_empty_values_are_rejected() {
    for (value, update, stay) in [("T", Update::Always, true), ("0", Update::Never, false)] {
        let settings = read(&[("UPDATE_CNI_BINARIES", value), ("SLEEP", value)]).unwrap();
        assert_eq!((settings.update, settings.stays_as_agent), (update, stay));
    }
    for name in [
        "UPDATE_CNI_BINARIES",
        "SLEEP",
        "CNI_LINK_IPAM",
        "CNI_TOKEN_BOUND_TO_NODE",
    ] {
        for value in ["", "yes"] {
            assert_eq!(
                error(name, value),
                format!(
                    "{name}: `{value}` is neither true nor false; unset the variable to use its \
                     default"
                )
            );
        }
    }
}

#[test]
fn empty_numeric_variables_count_as_unset() {
    let names = [
        "CNI_MTU",
        "LOG_FILE_MAX_SIZE",
        "LOG_FILE_MAX_AGE",
        "LOG_FILE_MAX_COUNT",
        "REQUIRE_MTU_FILE",
    ];
    let empty = names.map(|name| (name, ""));
    assert_eq!(read(&empty).unwrap().values, read(&[]).unwrap().values);
    assert_eq!(
        read(&[("CNI_TRY_SECONDS", ""), ("TEST_FILE_PERMISSION", "")]).unwrap(),
        read(&[]).unwrap()
    );
}

#[test]
fn empty_text_variables_count_as_empty() {
    let settings = read(&[
        ("CNI_NET_DIR", ""),
        ("CNI_OLD_CONF_NAME", ""),
        ("KUBERNETES_NODE_NAME", ""),
    ])
    .unwrap();
    assert_eq!(
        (
            settings.net_dir.as_str(),
            settings.old_conf_name.as_str(),
            settings.node_name
        ),
        ("", "", None)
    );
}

#[test]
fn configuration_names_with_a_path_are_rejected() {
    for value in ["", "..", "../x.conflist", "/etc/passwd"] {
        assert!(
            error("CNI_CONF_NAME", value).contains("is not the name of a file"),
            "{value}"
        );
    }
    assert!(error("CNI_OLD_CONF_NAME", "a/b").contains("is not the name of a file"));
}

#[test]
fn file_mode_is_parsed_as_octal() {
    for (value, mode) in [("0644", 0o644), ("600", 0o600), ("0o640", 0o640)] {
        assert_eq!(
            read(&[("TEST_FILE_PERMISSION", value)]).unwrap().conf_mode,
            mode
        );
    }
    for value in ["rw", "0888", "7777777"] {
        assert!(
            error("TEST_FILE_PERMISSION", value).contains("like 0600"),
            "{value}"
        );
    }
}

#[test]
fn plugin_names_are_trimmed() {
    let skip = |value| read(&[("SKIP_CNI_BINARIES", value)]).unwrap().extra_plugins;
    assert_eq!(
        skip("portmap, bandwidth ,"),
        ExtraPlugins::AllBut(vec!["portmap".into(), "bandwidth".into()])
    );
    assert_eq!(
        read(&[("CNI_INSTALL_PLUGINS", "CalicoOnly")])
            .unwrap()
            .extra_plugins,
        ExtraPlugins::None
    );
    assert!(error("CNI_INSTALL_PLUGINS", "some").contains("`all` or `calico-only`"));
}

#[test]
fn pools_are_configured_only_if_requested() {
    let requested = [
        ("CALICO_IPV4POOL_CIDR", "10.65.0.0/16"),
        ("CALICO_IPV4POOL_IPIP", "cross-subnet"),
        ("CALICO_IPV4POOL_BLOCK_SIZE", "27"),
        ("CALICO_IPV6POOL_CIDR", "fd65::/64"),
        ("CALICO_IPV6POOL_NODE_SELECTOR", "has(v6)"),
    ];
    let pools = read(&requested).unwrap().pools;
    let of = |at: usize| (pools[at].name, &pools[at].spec);
    let (name, spec) = of(0);
    assert_eq!(
        (name, spec.cidr.as_str(), spec.block_size),
        ("default-ipv4-ippool", "10.65.0.0/16", Some(27))
    );
    assert_eq!(
        (
            spec.ipip_mode.as_str(),
            spec.vxlan_mode.as_str(),
            spec.nat_outgoing
        ),
        ("CrossSubnet", "Never", true)
    );
    let (name, spec) = of(1);
    assert_eq!(
        (name, spec.cidr.as_str(), spec.nat_outgoing),
        ("default-ipv6-ippool", "fd65::/64", false)
    );
    assert_eq!(
        (spec.node_selector.as_str(), spec.ipip_mode.as_str()),
        ("has(v6)", "")
    );

    let mut refused = requested.to_vec();
    refused.push(("NO_DEFAULT_POOLS", "true"));
    assert_eq!(read(&refused).unwrap().pools, []);
    assert_eq!(
        read(&[
            ("CALICO_IPV4POOL_CIDR", "none"),
            ("CALICO_IPV6POOL_CIDR", "")
        ])
        .unwrap()
        .pools,
        []
    );
    assert!(error("CALICO_IPV4POOL_CIDR", "fd65::/64").contains("an IPv4 range like"));
    let encapsulation = [requested[0], ("CALICO_IPV4POOL_VXLAN", "perhaps")];
    assert!(
        read(&encapsulation)
            .unwrap_err()
            .to_string()
            .contains("Never, Always or CrossSubnet")
    );
}

#[test]
fn every_install_variable_is_documented_once() {
    let names: Vec<_> = variables::GROUPS
        .iter()
        .flat_map(|(_, group)| group.iter().map(|known| known.name))
        .collect();
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
    let read = std::cell::RefCell::new(std::collections::BTreeSet::new());
    let lookup = |name: &str| {
        read.borrow_mut().insert(name.to_owned());
        // Without a range, the other variables of the pool would not be read.
        name.ends_with("4POOL_CIDR")
            .then(|| "10.0.0.0/16".to_owned())
    };
    Settings::from_environment(Variables::new(&lookup), "").unwrap();
    for name in read.into_inner() {
        let is_told = names.contains(&name.as_str()) || name.starts_with("CALICO_IPV4POOL_");
        assert!(is_told, "{name} is not in the help");
    }
}
