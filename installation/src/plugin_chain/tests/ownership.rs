//! Tests of the ownership of an entry, by the record, the file and today's rendering.

use super::*;

#[test]
fn entry_of_upstreams_template_is_recognized_as_own_under_an_older_record() {
    let recorded = Some(json!([calico(1), portmap()]));
    let present = json!([calico(7), portmap(), bandwidth(), istio()]);
    let merged = merged_over(json!([calico(1), portmap()]), present, recorded);
    assert_eq!(merged, json!([calico(1), portmap(), istio()]));
}

#[test]
fn own_entries_recognized_without_a_record_are_reported_on_change_only() {
    let today = rendered(&list(json!([calico(1), portmap()])));
    let recorded = today.without_foreign().rendering;
    let present = json!([calico(7), portmap(), bandwidth(), istio()]);
    assert_eq!(
        today
            .merge_over(&list(present), std::slice::from_ref(&recorded))
            .dropped,
        ["bandwidth"]
    );
    for present in [
        json!([calico(7), portmap(), istio()]),
        json!([calico(1), portmap(), bandwidth()]),
    ] {
        assert_eq!(
            today
                .merge_over(&list(present), std::slice::from_ref(&recorded))
                .dropped,
            Vec::<String>::new()
        );
    }
}

#[test]
fn foreign_entries_stay_behind_a_restored_calico_entry() {
    let recorded = || Some(json!([calico(1), portmap()]));
    let today = || json!([calico(1), portmap()]);
    for (present, expected) in [
        (
            json!([istio(), tuning("2")]),
            json!([calico(1), portmap(), istio(), tuning("2")]),
        ),
        (
            json!([istio(), portmap()]),
            json!([calico(1), istio(), portmap()]),
        ),
        (
            json!([portmap(), tuning("2")]),
            json!([calico(1), portmap(), tuning("2")]),
        ),
    ] {
        assert_eq!(
            merged_over(today(), present.clone(), recorded()),
            expected,
            "{present}"
        );
    }
}

#[test]
fn foreign_entry_equal_to_a_new_own_entry_is_not_duplicated() {
    let recorded = Some(json!([calico(1), portmap()]));
    let present = json!([calico(1), tuning("9"), portmap()]);
    let merged = merged_over(
        json!([calico(2), portmap(), tuning("9")]),
        present,
        recorded,
    );
    assert_eq!(merged, json!([calico(2), tuning("9"), portmap()]));
}

/// Merges as `merged_over` does, with the record that the previous write left.
#[track_caller]
fn merged_over_after(today: Value, present: Value, before: (Value, Value)) -> Value {
    let recorded = rendered(&list(before.0))
        .merge_over(&list(before.1), &[])
        .rendering;
    rendered(&list(today))
        .merge_over(&list(present), &[recorded])
        .chain
        .to_list()["plugins"]
        .clone()
}

#[test]
fn entry_recorded_as_foreign_stays_when_own_entries_were_modified() {
    let ours = json!([calico(1), portmap()]);
    let recorded = || {
        let mut recorded = rendered(&list(ours.clone()))
            .merge_over(&list(ours.clone()), &[])
            .rendering;
        recorded.record_foreign(&list(json!([bandwidth()])).entries[0]);
        recorded
    };
    for present in [
        json!([calico(9), portmap(), bandwidth()]),
        json!([calico(1), portmap(), bandwidth()]),
    ] {
        let merged = rendered(&list(ours.clone())).merge_over(&list(present), &[recorded()]);
        assert_eq!(
            merged.chain.to_list()["plugins"],
            json!([calico(1), portmap(), bandwidth()])
        );
        assert_eq!(merged.rendering, recorded());
    }
}

/// The former rendering has an entry of the foreign entry's type, and only one of the two equal
/// entries.
#[test]
fn foreign_entry_stays_when_two_equal_own_entries_replace_a_single_one() {
    let (before, today) = (
        json!([calico(1), portmap(), bandwidth()]),
        json!([calico(1), bandwidth(), bandwidth()]),
    );
    let today = list(today);
    let recorded = [Rendering::new(&list(before)), Rendering::new(&today)];
    let foreign = json!({ "type": "portmap", "snat": false });
    let present = list(json!([calico(1), bandwidth(), bandwidth(), foreign]));
    assert_eq!(
        rendered(&today).merge_over(&present, &recorded).chain,
        present
    );
}

#[test]
fn first_entry_recorded_as_foreign_is_preserved() {
    let ours = || json!([calico(1), portmap()]);
    let chained = json!({ "type": "cilium-cni" });
    let before = (ours(), json!([calico(1), portmap(), chained]));
    let merged = merged_over_after(ours(), json!([chained, istio()]), before);
    assert_eq!(merged, json!([calico(1), portmap(), chained, istio()]));
}

#[test]
fn modified_own_entry_is_replaced_instead_of_an_entry_recorded_as_foreign() {
    let ours = || json!([calico(1), tuning("1")]);
    let before = (ours(), json!([calico(1), tuning("2"), tuning("1")]));
    let merged = merged_over_after(ours(), json!([calico(1), tuning("2"), tuning("3")]), before);
    assert_eq!(merged, json!([calico(1), tuning("2"), tuning("1")]));
}

#[test]
fn adopted_entry_equal_to_an_own_entry_stays_foreign() {
    let today = rendered(&list(json!([calico(1), tuning("9"), portmap()])));
    let adopted = list(json!([tuning("9"), istio()])).entries;
    let mut merged = today.without_foreign();
    for _ in 0..2 {
        merged.add_entries(adopted.clone());
        assert_eq!(
            kinds(&merged.chain),
            ["calico", "tuning", "portmap", "istio-cni"]
        );
        assert_eq!(merged.foreign, ["tuning", "istio-cni"]);
        assert!(
            adopted
                .iter()
                .all(|entry| merged.rendering.ownership(entry) == Some(false))
        );
    }
}
