//! Tests of the ownership of an entry, by the record, the file and today's rendering.

use super::*;

#[test]
fn over_with_a_note_of_before_upstreams_installer_takes_what_its_template_makes_for_ours() {
    let recorded = Some(json!([calico(1), portmap()]));
    let there = json!([calico(7), portmap(), bandwidth(), istio()]);
    let merged = over(json!([calico(1), portmap()]), there, recorded);
    assert_eq!(merged, json!([calico(1), portmap(), istio()]));
}

#[test]
fn over_names_what_it_takes_for_ours_without_a_note_and_does_not_write_again() {
    let today = rendered(&list(json!([calico(1), portmap()])));
    let recorded = today.alone().rendering;
    let there = json!([calico(7), portmap(), bandwidth(), istio()]);
    assert_eq!(today.over(&list(there), std::slice::from_ref(&recorded)).taken, ["bandwidth"]);
    for there in [json!([calico(7), portmap(), istio()]), json!([calico(1), portmap(), bandwidth()])] {
        assert_eq!(today.over(&list(there), std::slice::from_ref(&recorded)).taken, Vec::<String>::new());
    }
}

#[test]
fn over_of_a_noted_list_without_ours_keeps_the_others_behind_calicos_plugin() {
    let recorded = || Some(json!([calico(1), portmap()]));
    let today = || json!([calico(1), portmap()]);
    for (there, expected) in [
        (json!([istio(), tuning("2")]), json!([calico(1), portmap(), istio(), tuning("2")])),
        (json!([istio(), portmap()]), json!([calico(1), istio(), portmap()])),
        (json!([portmap(), tuning("2")]), json!([calico(1), portmap(), tuning("2")])),
    ] {
        assert_eq!(over(today(), there.clone(), recorded()), expected, "{there}");
    }
}

#[test]
fn over_where_another_entry_equals_a_later_rendering_adds_no_second() {
    let recorded = Some(json!([calico(1), portmap()]));
    let there = json!([calico(1), tuning("9"), portmap()]);
    let merged = over(json!([calico(2), portmap(), tuning("9")]), there, recorded);
    assert_eq!(merged, json!([calico(2), tuning("9"), portmap()]));
}

/// Merges as `over` does, with the record that the previous write left.
#[track_caller]
fn over_after(today: Value, there: Value, before: (Value, Value)) -> Value {
    let recorded = rendered(&list(before.0)).over(&list(before.1), &[]).rendering;
    rendered(&list(today)).over(&list(there), &[recorded]).chain.to_list()["plugins"].clone()
}

#[test]
fn over_where_ours_was_edited_keeps_what_is_noted_as_anothers() {
    let ours = json!([calico(1), portmap()]);
    let recorded = || {
        let mut recorded = rendered(&list(ours.clone())).over(&list(ours.clone()), &[]).rendering;
        recorded.leave(&list(json!([bandwidth()])).entries[0]);
        recorded
    };
    for there in [json!([calico(9), portmap(), bandwidth()]), json!([calico(1), portmap(), bandwidth()])] {
        let merged = rendered(&list(ours.clone())).over(&list(there), &[recorded()]);
        assert_eq!(merged.chain.to_list()["plugins"], json!([calico(1), portmap(), bandwidth()]));
        assert_eq!(merged.rendering, recorded());
    }
}

#[test]
fn over_of_a_list_whose_first_entry_is_noted_as_anothers_keeps_it() {
    let ours = || json!([calico(1), portmap()]);
    let chained = json!({ "type": "cilium-cni" });
    let before = (ours(), json!([calico(1), portmap(), chained]));
    let merged = over_after(ours(), json!([chained, istio()]), before);
    assert_eq!(merged, json!([calico(1), portmap(), chained, istio()]));
}

#[test]
fn over_where_an_entry_of_ours_was_edited_takes_none_that_is_noted_as_anothers() {
    let ours = || json!([calico(1), tuning("1")]);
    let before = (ours(), json!([calico(1), tuning("2"), tuning("1")]));
    let merged = over_after(ours(), json!([calico(1), tuning("2"), tuning("3")]), before);
    assert_eq!(merged, json!([calico(1), tuning("2"), tuning("1")]));
}

#[test]
fn adopt_of_an_entry_that_ours_equals_leaves_it_to_its_owner() {
    let today = rendered(&list(json!([calico(1), tuning("9"), portmap()])));
    let adopted = list(json!([tuning("9"), istio()])).entries;
    let mut merged = today.alone();
    for _ in 0..2 {
        merged.adopt(adopted.clone());
        assert_eq!(kinds(&merged.chain), ["calico", "tuning", "portmap", "istio-cni"]);
        assert_eq!(merged.foreign, ["tuning", "istio-cni"]);
        assert!(adopted.iter().all(|entry| merged.rendering.owns(entry) == Some(false)));
    }
}
