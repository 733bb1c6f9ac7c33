use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn chain(conf: Value) -> Chain {
    Chain::new(conf.as_object().unwrap())
}

fn list(plugins: Value) -> Chain {
    chain(json!({ "name": "k8s-pod-network", "cniVersion": "1.0.0", "plugins": plugins }))
}

fn rendered(chain: &Chain) -> Rendered {
    Rendered {
        chain: chain.clone(),
        pattern: chain.clone(),
    }
}

fn kinds(chain: &Chain) -> Vec<&str> {
    chain.entries.iter().map(kind).collect()
}

fn calico(mtu: u32) -> Value {
    json!({ "type": "calico", "mtu": mtu })
}

fn portmap() -> Value {
    json!({ "type": "portmap", "snat": true, "capabilities": { "portMappings": true } })
}

fn bandwidth() -> Value {
    json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } })
}

fn tuning(value: &str) -> Value {
    json!({ "type": "tuning", "sysctl": { "net.core.somaxconn": value } })
}

fn istio() -> Value {
    json!({ "type": "istio-cni", "name": "istio-cni", "ipam": {}, "dns": {} })
}

/// Merges `today` over `present`. `recorded` is the previous rendering.
#[track_caller]
fn merged_over(today: Value, present: Value, recorded: Option<Value>) -> Value {
    let recorded: Vec<Rendering> = recorded
        .map(|recorded| Rendering::new(&list(recorded)))
        .into_iter()
        .collect();
    let merged = rendered(&list(today)).merge_over(&list(present), &recorded);
    merged.chain.to_list()["plugins"].clone()
}

#[test]
fn foreign_entries_retain_their_position_when_own_entries_change() {
    let recorded = || Some(json!([calico(1), portmap()]));
    for (present, today, expected) in [
        (
            json!([calico(1), portmap(), istio()]),
            json!([calico(2), portmap()]),
            json!([calico(2), portmap(), istio()]),
        ),
        (
            json!([tuning("1"), calico(1), istio(), portmap()]),
            json!([calico(2), portmap()]),
            json!([tuning("1"), calico(2), istio(), portmap()]),
        ),
        (
            json!([calico(1), portmap(), istio()]),
            json!([calico(2)]),
            json!([calico(2), istio()]),
        ),
        (
            json!([calico(1), portmap(), istio()]),
            json!([calico(2), portmap(), tuning("9")]),
            json!([calico(2), portmap(), tuning("9"), istio()]),
        ),
        // istio-cni removed its own entry.
        (
            json!([calico(1), portmap()]),
            json!([calico(2), portmap()]),
            json!([calico(2), portmap()]),
        ),
    ] {
        assert_eq!(
            merged_over(today, present.clone(), recorded()),
            expected,
            "{present}"
        );
    }
}

#[test]
fn modified_or_removed_own_entry_is_restored() {
    let ours = json!([calico(1), portmap(), tuning("1")]);
    let edited = json!({ "type": "portmap", "snat": false });
    for present in [
        json!([calico(9), portmap(), istio(), tuning("1")]),
        json!([calico(1), edited, istio(), tuning("1")]),
        json!([calico(1), portmap(), istio(), tuning("2")]),
        json!([{ "TYPE": "calico" }, portmap(), istio(), tuning("1")]),
        json!([calico(9), edited, istio(), tuning("2")]),
    ] {
        let merged = merged_over(ours.clone(), present.clone(), Some(ours.clone()));
        assert_eq!(
            merged,
            json!([calico(1), portmap(), istio(), tuning("1")]),
            "{present}"
        );
    }
    let without = json!([calico(1), istio()]);
    assert_eq!(
        merged_over(ours.clone(), without, Some(ours.clone())),
        json!([calico(1), portmap(), tuning("1"), istio()])
    );
}

#[test]
fn second_entry_of_an_own_type_is_foreign() {
    let ours = json!([calico(1), tuning("1")]);
    let present = json!([calico(1), tuning("1"), tuning("2"), bandwidth()]);
    assert_eq!(
        merged_over(ours.clone(), present.clone(), Some(ours)),
        present
    );
    // The record is still of the rendering before.
    let present = json!([calico(2), portmap(), tuning("2")]);
    let merged = merged_over(
        json!([calico(2), portmap()]),
        present.clone(),
        Some(json!([calico(1), tuning("1")])),
    );
    assert_eq!(merged, present);
}

#[test]
fn calico_entry_is_never_duplicated() {
    let present = json!([calico(7), istio(), calico(8)]);
    for recorded in [None, Some(json!([calico(1)])), Some(json!([calico(7)]))] {
        assert_eq!(
            merged_over(json!([calico(1)]), present.clone(), recorded),
            json!([calico(1), istio()])
        );
    }
}

#[test]
fn without_a_record_own_entries_are_calicos_and_template_entries() {
    let custom = json!({ "type": "portmap", "snat": true });
    let present = json!([
        calico(7),
        portmap(),
        bandwidth(),
        istio(),
        custom,
        tuning("3"),
        tuning("4")
    ]);
    let merged = merged_over(
        json!([calico(1), portmap(), tuning("3")]),
        present.clone(),
        None,
    );
    assert_eq!(
        merged,
        json!([
            calico(1),
            portmap(),
            tuning("3"),
            istio(),
            custom,
            tuning("4")
        ])
    );
    // Without a record of the bandwidth entry, this entry belongs to the operator.
    let merged = merged_over(
        json!([calico(1), portmap()]),
        json!([calico(1), portmap(), bandwidth()]),
        Some(json!([calico(1), portmap()])),
    );
    assert_eq!(merged, json!([calico(1), portmap(), bandwidth()]));
}

#[test]
fn configuration_without_an_own_entry_is_replaced_as_another_network() {
    for recorded in [None, Some(json!([calico(1), portmap()]))] {
        let merged = merged_over(
            json!([calico(1)]),
            json!([{ "type": "cilium-cni" }, istio()]),
            recorded,
        );
        assert_eq!(merged, json!([calico(1)]));
    }
}

#[test]
fn own_entry_with_a_former_token_is_recognized() {
    let flannel = |token: &str| json!([{ "type": "flannel", "token": token }, portmap()]);
    let rendered = Rendered {
        chain: list(flannel("new")),
        pattern: list(flannel("__SERVICEACCOUNT_TOKEN__")),
    };
    let mut present = flannel("old");
    present.as_array_mut().unwrap().push(istio());
    let merged = rendered.merge_over(&list(present), &[]);
    assert_eq!(kinds(&merged.chain), ["flannel", "portmap", "istio-cni"]);
    assert_eq!(merged.chain.entries[0]["token"], "new");
}

#[test]
fn foreign_keys_are_preserved_and_obsolete_own_keys_removed() {
    let of = |keys: Value| {
        let mut conf = keys;
        conf["plugins"] = json!([calico(1)]);
        chain(conf)
    };
    let today = of(json!({ "name": "n", "cniVersion": "1.1.0" }));
    let present =
        of(json!({ "name": "m", "cniVersion": "0.3.1", "disableCheck": true, "disableGC": true }));
    let before = Rendering::new(&of(json!({ "name": "n", "disableGC": true })));
    let merged = rendered(&today).merge_over(&present, &[before]);
    assert_eq!(merged.foreign_keys, ["disableCheck"]);
    let expected = of(json!({ "name": "n", "cniVersion": "1.1.0", "disableCheck": true }));
    assert!(merged.chain.is_equivalent_to(&expected), "{merged:?}");
    assert_eq!(
        rendered(&today).merge_over(&present, &[]).foreign_keys,
        ["disableCheck", "disableGC"]
    );
}

/// istio-cni and linkerd-cni convert a `.conf` file in this way.
#[test]
fn single_plugin_becomes_a_list_with_foreign_entries() {
    let single = json!({ "name": "canal", "cniVersion": "0.3.1", "type": "flannel", "mtu": 1 });
    let rendered = rendered(&chain(single.clone()));
    let entry = json!({ "name": "canal", "type": "flannel", "mtu": 1 });
    let present = list(json!([entry, istio()]));
    for recorded in [vec![], vec![Rendering::new(&rendered.chain)]] {
        let merged = rendered.merge_over(&present, &recorded);
        let expected =
            json!({ "name": "canal", "cniVersion": "0.3.1", "plugins": [entry, istio()] });
        assert!(
            merged.chain.is_equivalent_to(&chain(expected)),
            "{merged:?}"
        );
        let alone = rendered.merge_over(&list(json!([entry])), &recorded);
        assert!(alone.is_only_ours() && !alone.chain.is_list);
    }
    assert!(!rendered.chain.is_equivalent_to(&list(json!([entry]))));
}

#[test]
fn invalid_plugin_entries_are_dropped() {
    assert_eq!(
        kinds(&list(json!([calico(1), "istio-cni", null, [], portmap()]))),
        ["calico", "portmap"]
    );
    for odd in [
        json!({ "plugins": { "type": "calico" } }),
        json!({ "plugins": null }),
        json!({}),
    ] {
        assert!(chain(odd.clone()).entries.is_empty(), "{odd}");
    }
}

#[test]
fn list_with_an_invalid_entry_equals_no_list() {
    let (whole, damaged) = (list(json!([calico(1)])), list(json!([calico(1), null])));
    assert!(whole.is_equivalent_to(&whole));
    assert!(!whole.is_equivalent_to(&damaged) && !damaged.is_equivalent_to(&whole));
    let merged = rendered(&whole).merge_over(&damaged, &[Rendering::new(&whole)]);
    assert!(!merged.chain.is_equivalent_to(&damaged) && merged.chain.is_equivalent_to(&whole));
}

#[test]
fn adopted_entries_with_other_parameters_are_added_once() {
    let limit = json!({ "type": "bandwidth", "ingressRate": 1000 });
    let mut chain = list(json!([calico(1), tuning("1"), bandwidth(), istio()]));
    let other = json!({ "type": "istio-cni", "name": "other" });
    let more = list(json!([tuning("1"), tuning("2"), tuning("3"), limit, other]));
    chain.add_entries(more.entries.clone());
    assert_eq!(
        json!(chain.entries),
        json!([
            calico(1),
            tuning("1"),
            bandwidth(),
            istio(),
            tuning("2"),
            tuning("3"),
            limit
        ])
    );
    chain.add_entries(more.entries);
    assert_eq!(chain.entries.len(), 7);
}

/// Generates plugins with few types and parameters, so that equal entries occur.
fn an_entry() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![
        Just("calico"),
        Just("portmap"),
        Just("bandwidth"),
        Just("tuning"),
        Just("istio-cni")
    ];
    prop_oneof![
        3 => (kind, 0..3u8)
            .prop_map(|(kind, parameter)| json!({ "type": kind, "parameter": parameter })),
        1 => Just(portmap()),
        1 => Just(bandwidth()),
    ]
}

/// A plugin that is never ours.
fn a_neighbour() -> impl Strategy<Value = Value> {
    (0..3u8, 0..3u8).prop_map(
        |(kind, parameter)| json!({ "type": format!("mesh{kind}"), "parameter": parameter }),
    )
}

/// A template: Calico's plugin first, and no second one.
fn a_rendering() -> impl Strategy<Value = Vec<Value>> {
    let others = proptest::collection::vec(
        an_entry().prop_filter("calico's", |entry| entry["type"] != "calico"),
        0..4,
    );
    (0..3u32, others).prop_map(|(mtu, others)| std::iter::once(calico(mtu)).chain(others).collect())
}

fn with_neighbours(
    entries: Vec<Value>,
    neighbours: Vec<(prop::sample::Index, Value)>,
) -> Vec<Value> {
    neighbours
        .into_iter()
        .fold(entries, |mut entries, (at, neighbour)| {
            entries.insert(at.index(entries.len() + 1), neighbour);
            entries
        })
}

fn count<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    entries
        .into_iter()
        .for_each(|entry| *counts.entry(json!(entry).to_string()).or_default() += 1);
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_existing_list_is_merged_with_all_own_entries(
        today in a_rendering(),
        before in proptest::option::of(a_rendering()),
        present in proptest::collection::vec(prop_oneof![an_entry(), a_neighbour()], 0..7),
    ) {
        let (today, present) = (list(json!(today)), list(json!(present)));
        let recorded: Vec<Rendering> = before
            .map(|before| Rendering::new(&list(json!(before))))
            .into_iter()
            .collect();
        let merged = rendered(&today).merge_over(&present, &recorded);
        prop_assert_eq!(merged.chain.calico_count(), 1);
        // An equal foreign entry may change the order.
        let foreign: Vec<&Entry> = merged
            .chain
            .entries
            .iter()
            .filter(|entry| !today.entries.contains(entry))
            .collect();
        prop_assert!(
            today
                .entries
                .iter()
                .all(|entry| merged.chain.entries.contains(entry))
        );
        let mut ours = merged
            .chain
            .entries
            .iter()
            .filter(|entry| merged.rendering.contains_entry(entry));
        let is_ours = |entry: &&Entry| merged.rendering.contains_entry(entry);
        prop_assert!(
            today
                .entries
                .iter()
                .filter(is_ours)
                .all(|entry| ours.any(|found| found == entry))
        );
        let mut found = present.entries.iter();
        prop_assert!(
            foreign
                .iter()
                .all(|entry| found.any(|found| found == *entry))
        );
        // With the record before the write, and with the record after it.
        for recorded in [
            [recorded, vec![merged.rendering.clone()]].concat(),
            vec![merged.rendering.clone()],
        ] {
            prop_assert_eq!(
                &rendered(&today).merge_over(&merged.chain, &recorded).chain,
                &merged.chain,
            );
        }
    }

    #[test]
    fn foreign_entries_survive_any_change_of_own_entries(
        renderings in proptest::collection::vec(a_rendering(), 1..5),
        is_recorded in any::<bool>(),
        neighbours in proptest::collection::vec(
            (any::<prop::sample::Index>(), a_neighbour()), 0..4,
        ),
    ) {
        let mut present = list(json!(with_neighbours(renderings[0].clone(), neighbours)));
        let is_neighbours = |entry: &&Entry| kind(entry).starts_with("mesh");
        let expected: Vec<Entry> = present
            .entries
            .iter()
            .filter(is_neighbours)
            .cloned()
            .collect();
        for pair in renderings.windows(2) {
            let [before, today] = [&pair[0], &pair[1]].map(|plugins| list(json!(plugins)));
            let recorded = if is_recorded {
                vec![Rendering::new(&before)]
            } else {
                Vec::new()
            };
            present = rendered(&today).merge_over(&present, &recorded).chain;
            let kept: Vec<Entry> = present
                .entries
                .iter()
                .filter(is_neighbours)
                .cloned()
                .collect();
            prop_assert_eq!(&kept, &expected);
            if is_recorded {
                let rest = present.entries.iter().filter(|entry| !is_neighbours(entry));
                prop_assert_eq!(count(rest), count(&today.entries));
            }
        }
    }
}

mod ownership;
