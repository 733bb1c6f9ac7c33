//! [`judge`]: compares an object that exists in v3 with the object that a migration would store.
//! [`marked_copy`]: the object with the marks by which a later run recognizes it.

use serde_json::Value;

use super::{COPIED_GENERATION, MIGRATED_BY, SOURCE_REVISION};
use crate::kubernetes::Moved;

/// An object in v3, compared with the object to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The same object.
    Same,
    /// A copy of an earlier state of the source, which no other program has changed; to be
    /// replaced.
    Stale,
    /// A copy that another program has changed, and that differs from the source.
    Edited,
    /// An object that no migration created, with another `spec`.
    Foreign,
}

/// The generation of a new object. The API server increases it with each change of anything but the
/// metadata.
const FIRST_GENERATION: u64 = 1;

/// Compares an object with the object to store. Two objects are the same if their `spec` is:
/// upstream compares no more (MIG-67).
pub fn judge(existing: &Value, moved: &Moved) -> Found {
    let is_equal = has_spec_of(existing, moved);
    let Some(revision) = copied_revision(existing) else {
        return if is_equal {
            Found::Same
        } else {
            Found::Foreign
        };
    };
    // Labels may differ too, and policies select by labels. So an equal spec does not make the copy
    // current.
    let is_current = revision == moved.source.revision;
    match (is_current, is_as_written(existing)) {
        (true, _) if is_equal => Found::Same,
        // The API server adds defaults to the spec that it gets.
        (true, Some(true)) => Found::Same,
        (true, _) => Found::Edited,
        (false, Some(false)) if !is_equal => Found::Edited,
        (false, _) => Found::Stale,
    }
}

/// Returns true for an object that a migration created, whichever migration that was (MIG-72).
pub fn is_copy(object: &Value) -> bool {
    copied_revision(object).is_some()
}

/// Returns the resourceVersion of the source that a copy shows; empty for a copy by upstream's
/// controller, which does not store it. Returns `None` for an object that is not a copy.
pub fn copied_revision(object: &Value) -> Option<&str> {
    let annotations = &object["metadata"]["annotations"];
    annotations[MIGRATED_BY].as_str()?;
    Some(annotations[SOURCE_REVISION].as_str().unwrap_or_default())
}

/// Returns the object to create. `migration` is the uid of the controlling object.
pub fn marked_copy(moved: &Moved, migration: &str) -> Value {
    let mut copy = moved.body.clone();
    let annotations = &mut copy["metadata"]["annotations"];
    annotations[MIGRATED_BY] = migration.into();
    annotations[SOURCE_REVISION] = moved.source.revision.as_str().into();
    // The source may have the marks of another object, from which somebody made it.
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(COPIED_GENERATION);
    }
    copy
}

/// Returns the object that replaces a stale copy, unless another program changes the copy
/// meanwhile.
pub fn replacement(existing: &Value, moved: &Moved, migration: &str) -> Value {
    let mut copy = marked_copy(moved, migration);
    for key in ["resourceVersion", "uid"] {
        copy["metadata"][key] = existing["metadata"][key].clone();
    }
    if let Some(generation) = existing["metadata"]["generation"].as_u64() {
        let written = generation.saturating_add(u64::from(!has_spec_of(existing, moved)));
        if written > FIRST_GENERATION {
            copy["metadata"]["annotations"][COPIED_GENERATION] = written.to_string().into();
        }
    }
    copy
}

/// Returns true if no other program has changed anything but the metadata of a copy since a
/// migration wrote the copy. Returns `None` for an object without a generation.
fn is_as_written(copy: &Value) -> Option<bool> {
    let generation = copy["metadata"]["generation"].as_u64()?;
    let written = copy["metadata"]["annotations"][COPIED_GENERATION]
        .as_str()
        .and_then(|text| text.parse().ok());
    Some(generation <= written.unwrap_or(FIRST_GENERATION))
}

fn has_spec_of(existing: &Value, moved: &Moved) -> bool {
    equal(existing.get("spec"), moved.body.get("spec"))
}

/// Compares two JSON values. A missing field equals null, because the API server drops nulls.
fn equal(left: Option<&Value>, right: Option<&Value>) -> bool {
    match (left.unwrap_or(&Value::Null), right.unwrap_or(&Value::Null)) {
        (Value::Object(left), Value::Object(right)) => {
            left.iter()
                .all(|(key, value)| equal(Some(value), right.get(key)))
                && right
                    .iter()
                    .all(|(key, value)| left.contains_key(key) || value.is_null())
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| equal(Some(left), Some(right)))
        }
        // The API server may write a whole number with or without a fraction.
        (Value::Number(left), Value::Number(right)) if left.is_f64() != right.is_f64() => {
            left.as_f64() == right.as_f64()
        }
        (left, right) => left == right,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubernetes::{Location, Source};
    use crate::migration::moved_kinds;

    fn moved(spec: Value) -> Moved {
        let resource = moved_kinds()[0].v3;
        Moved {
            location: Location::global(resource, "t"),
            body: json!({
                "apiVersion": "projectcalico.org/v3", "kind": "Tier",
                "metadata": {"name": "t", "labels": {"a": "b"}},
                "spec": spec,
            }),
            source: Source {
                uid: "source".into(),
                revision: "7".into(),
            },
            owners: Vec::new(),
        }
    }

    /// Returns the object that the API server has, after changes of its `spec` up to `generation`.
    fn stored(moved: &Moved, spec: Value, generation: u32) -> Value {
        let mut stored = marked_copy(moved, "migration");
        stored["metadata"]["generation"] = generation.into();
        stored["metadata"]["resourceVersion"] = "9".into();
        stored["metadata"]["uid"] = "copy".into();
        stored["spec"] = spec;
        stored
    }

    #[test]
    fn copy_is_judged_by_its_revision_and_its_spec() {
        let moved = moved(json!({"order": 10}));
        let same = stored(&moved, json!({"order": 10}), 1);
        assert_eq!(judge(&same, &moved), Found::Same);
        let edited = stored(&moved, json!({"order": 11}), 2);
        assert_eq!(judge(&edited, &moved), Found::Edited);
        for mut stale in [same, stored(&moved, json!({"order": 11}), 1)] {
            stale["metadata"]["annotations"][SOURCE_REVISION] = "6".into();
            assert_eq!(judge(&stale, &moved), Found::Stale);
        }
    }

    #[test]
    fn edited_copy_is_not_stale_although_its_source_has_changed() {
        let moved = moved(json!({"order": 10}));
        for (spec, found) in [
            (json!({"order": 11}), Found::Edited),
            (json!({"order": 10}), Found::Stale),
        ] {
            let mut edited = stored(&moved, spec, 2);
            edited["metadata"]["annotations"][SOURCE_REVISION] = "6".into();
            assert_eq!(judge(&edited, &moved), found);
        }
    }

    #[test]
    fn copy_without_a_generation_is_judged_by_its_revision_and_its_spec() {
        let moved = moved(json!({"order": 10}));
        for (revision, order, found) in [
            ("7", 10, Found::Same),
            ("7", 11, Found::Edited),
            ("6", 10, Found::Stale),
            ("6", 11, Found::Stale),
        ] {
            let mut object = stored(&moved, json!({"order": order}), 1);
            object["metadata"]["generation"] = Value::Null;
            object["metadata"]["annotations"][SOURCE_REVISION] = revision.into();
            assert_eq!(judge(&object, &moved), found, "{revision} {order}");
        }
    }

    #[test]
    fn copy_with_added_defaults_is_the_same() {
        let moved = moved(json!({"order": 10}));
        let with_default = json!({"order": 10, "defaultAction": "Deny"});
        assert_eq!(
            judge(&stored(&moved, with_default.clone(), 1), &moved),
            Found::Same
        );
        assert_eq!(
            judge(&stored(&moved, with_default, 2), &moved),
            Found::Edited
        );
    }

    /// Each replacement with another spec increases the generation, as an edit does.
    #[test]
    fn replaced_copy_with_added_defaults_is_the_same() {
        let moved = moved(json!({"order": 10}));
        let mut stale = stored(&moved, json!({"order": 9, "defaultAction": "Deny"}), 4);
        stale["metadata"]["annotations"][COPIED_GENERATION] = "4".into();
        stale["metadata"]["annotations"][SOURCE_REVISION] = "6".into();
        assert_eq!(judge(&stale, &moved), Found::Stale);
        let mut replaced = replacement(&stale, &moved, "second");
        replaced["metadata"]["generation"] = 5.into();
        replaced["spec"]["defaultAction"] = "Deny".into();
        assert_eq!(judge(&replaced, &moved), Found::Same);
        replaced["metadata"]["generation"] = 6.into();
        assert_eq!(judge(&replaced, &moved), Found::Edited);
    }

    #[test]
    fn generation_is_marked_only_if_a_replacement_increases_it() {
        let moved = moved(json!({"order": 10}));
        for (order, generation, mark) in [
            (10, json!(1), Value::Null),
            (9, json!(1), json!("2")),
            (10, json!(3), json!("3")),
            (9, Value::Null, Value::Null),
            (10, Value::Null, Value::Null),
        ] {
            let mut existing = stored(&moved, json!({"order": order}), 1);
            existing["metadata"]["generation"] = generation.clone();
            let copy = replacement(&existing, &moved, "second");
            assert_eq!(
                copy["metadata"]["annotations"][COPIED_GENERATION], mark,
                "{order} {generation}"
            );
        }
    }

    #[test]
    fn mark_of_another_object_in_the_source_is_not_copied() {
        let mut moved = moved(json!({"order": 10}));
        moved.body["metadata"]["annotations"] = json!({COPIED_GENERATION: "9", "a": "b"});
        let annotations = marked_copy(&moved, "migration")["metadata"]["annotations"].take();
        assert_eq!(
            annotations,
            json!({MIGRATED_BY: "migration", SOURCE_REVISION: "7", "a": "b"})
        );
    }

    #[test]
    fn unmarked_object_is_the_same_or_foreign() {
        let moved = moved(json!({"order": 10}));
        for (spec, found) in [
            (json!({"order": 10}), Found::Same),
            (json!({"order": 11}), Found::Foreign),
        ] {
            let mut object = stored(&moved, spec, 1);
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("annotations");
            assert_eq!(judge(&object, &moved), found);
            assert!(!is_copy(&object));
        }
    }

    /// Upstream's controller marks its copies, but does not store the revision of the source.
    #[test]
    fn copy_by_upstream_is_stale() {
        let moved = moved(json!({"order": 10}));
        let mut object = stored(&moved, json!({"order": 10}), 1);
        object["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(SOURCE_REVISION);
        assert_eq!(
            (judge(&object, &moved), copied_revision(&object)),
            (Found::Stale, Some(""))
        );
    }

    #[test]
    fn specs_are_equal_without_nulls_and_fractions() {
        for (left, right, is_equal) in [
            (
                json!({"a": null, "b": 1}),
                json!({"b": 1.0, "c": null}),
                true,
            ),
            (
                json!({"a": {"b": [1, null]}}),
                json!({"a": {"b": [1, null], "c": null}}),
                true,
            ),
            (json!({"a": [1, 2]}), json!({"a": [2, 1]}), false),
            (json!({"a": [1]}), json!({"a": [1, null]}), false),
            (json!({"a": {}}), json!({}), false),
            (json!({"a": 0}), json!({}), false),
            (json!({"a": false}), json!({"a": "false"}), false),
            (
                json!({"n": 1_787_380_400_123_456_789_u64}),
                json!({"n": 1_787_380_400_123_456_788_u64}),
                false,
            ),
        ] {
            assert_eq!(equal(Some(&left), Some(&right)), is_equal, "{left} {right}");
            assert_eq!(equal(Some(&right), Some(&left)), is_equal, "{right} {left}");
        }
        assert!(equal(None, Some(&Value::Null)) && !equal(None, Some(&json!({}))));
    }

    #[test]
    fn replacement_names_the_state_that_it_replaces() {
        let moved = moved(json!({"order": 10}));
        let mut stale = stored(&moved, json!({"order": 9}), 4);
        stale["metadata"]["annotations"][SOURCE_REVISION] = "6".into();
        stale["metadata"]["annotations"][COPIED_GENERATION] = "4".into();
        let replaced = replacement(&stale, &moved, "second");
        assert_eq!(
            replaced["metadata"],
            json!({
                "name": "t", "labels": {"a": "b"}, "resourceVersion": "9", "uid": "copy",
                "annotations": {
                    MIGRATED_BY: "second", SOURCE_REVISION: "7", COPIED_GENERATION: "5",
                },
            })
        );
        assert_eq!(judge(&replaced, &moved), Found::Same);
    }

    #[test]
    fn copy_of_0_1_0_is_recognized_and_written_unchanged() {
        let stored_copy = include_str!("../../../tests/formats/0.1.0/migration/copy.json");
        let stored_copy: Value = serde_json::from_str(stored_copy).unwrap();
        let moved = moved(json!({"order": 10}));
        let mut copy = stored_copy.clone();
        copy["metadata"]["generation"] = 5.into();
        assert_eq!(
            (copied_revision(&copy), judge(&copy, &moved)),
            (Some("7"), Found::Same)
        );
        assert_eq!(is_as_written(&copy), Some(true));
        let stale = stored(&moved, json!({"order": 9}), 4);
        let written = replacement(&stale, &moved, "0a1b2c3d-0000-4000-8000-000000000001");
        assert_eq!(written, stored_copy);
    }
}
