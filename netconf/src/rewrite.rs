//! Edits a configuration for a delegated plugin. Upstream converts all numbers to floating point
//! and sorts the keys (CNI-55). This module keeps numbers, order and unknown keys, so that the
//! delegated plugin gets them as written.

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::{Call, CniError};

/// A JSON object whose values are kept as written.
#[derive(Clone, Debug, Default)]
pub struct RawObject {
    entries: Vec<(String, Box<RawValue>)>,
}

impl RawObject {
    /// Returns the value of `key` as written, or `None` if the key is absent. The key matches in
    /// any letter case.
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        self.position(key).map(|at| self.entries[at].1.as_ref())
    }

    /// Sets `key`, which matches in any letter case. An existing key keeps its position and
    /// spelling.
    ///
    /// # Errors
    /// If `value` cannot be written as JSON, such as a map with keys that are not strings.
    pub fn set<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> serde_json::Result<()> {
        let value = serde_json::value::to_raw_value(value)?;
        match self.position(key) {
            Some(at) => self.entries[at].1 = value,
            None => self.entries.push((key.to_owned(), value)),
        }
        Ok(())
    }

    /// Removes `key`, which matches in any letter case, if it exists.
    pub fn remove(&mut self, key: &str) {
        if let Some(at) = self.position(key) {
            self.entries.remove(at);
        }
    }

    /// Changes the object at `key` with `change`. An absent or `null` value counts as an empty
    /// object.
    ///
    /// # Errors
    /// If the value of `key` is not an object, and any error of `change`.
    pub fn change(
        &mut self,
        key: &str,
        change: impl FnOnce(&mut RawObject) -> serde_json::Result<()>,
    ) -> serde_json::Result<()> {
        let mut inner: RawObject = match self.get(key) {
            None => RawObject::default(),
            Some(raw) => serde_json::from_str::<Option<RawObject>>(raw.get())?.unwrap_or_default(),
        };
        change(&mut inner)?;
        self.set(key, &inner)
    }

    fn position(&self, key: &str) -> Option<usize> {
        self.entries
            .iter()
            .position(|(name, _)| name.eq_ignore_ascii_case(key))
    }
}

impl Call {
    /// Returns the stdin for a delegated plugin: the configuration of this call after `edit`.
    ///
    /// # Errors
    /// Code 999 if `edit` fails.
    pub fn rewritten(
        &self,
        edit: impl FnOnce(&mut RawObject) -> serde_json::Result<()>,
    ) -> Result<Vec<u8>, CniError> {
        let failed = |e| {
            CniError::internal(format!(
                "cannot change the configuration of the IPAM plugin: {e}"
            ))
        };
        rewrite(&self.raw, edit).map_err(failed)
    }
}

fn rewrite(
    raw: &[u8],
    edit: impl FnOnce(&mut RawObject) -> serde_json::Result<()>,
) -> serde_json::Result<Vec<u8>> {
    let mut object = serde_json::from_slice::<Option<RawObject>>(raw)?.unwrap_or_default();
    edit(&mut object)?;
    serde_json::to_vec(&object)
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len()))?;
        for (key, value) in &self.entries {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawObject, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = RawObject;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawObject, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(RawObject { entries })
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(raw: &str, change: impl FnOnce(&mut RawObject) -> serde_json::Result<()>) -> String {
        String::from_utf8(rewrite(raw.as_bytes(), change).unwrap()).unwrap()
    }

    #[test]
    fn rewriting_preserves_order_numbers_and_unknown_keys() {
        let raw = r#"{"z":1.50,"big":9007199254740993,"e":1E3,"ipam":{"subnet":"usePodCidr","x":[1.0, 2]},"a":"<>"}"#;
        let text = changed(raw, |object| {
            object.change("ipam", |ipam| ipam.set("subnet", "10.1.0.0/24"))
        });
        let want = r#"{"z":1.50,"big":9007199254740993,"e":1E3,"ipam":{"subnet":"10.1.0.0/24","x":[1.0, 2]},"a":"<>"}"#;
        assert_eq!(text, want);
    }

    #[test]
    fn rewriting_finds_keys_in_any_letter_case() {
        let text = changed(r#"{"IPAM":{"Type":"a"}}"#, |object| {
            object.change("ipam", |ipam| ipam.set("type", "b"))
        });
        assert_eq!(text, r#"{"IPAM":{"Type":"b"}}"#);
    }

    #[test]
    fn rewriting_creates_absent_and_null_objects() {
        for raw in ["{}", r#"{"ipam":null}"#, "null"] {
            let text = changed(raw, |object| {
                object.change("ipam", |ipam| ipam.set("assign_ipv4", "false"))
            });
            assert_eq!(text, r#"{"ipam":{"assign_ipv4":"false"}}"#);
        }
    }

    #[test]
    fn rewriting_can_remove_keys() {
        let text = changed(r#"{"a":1,"b":2}"#, |object| {
            object.remove("A");
            object.remove("c");
            Ok(())
        });
        assert_eq!(text, r#"{"b":2}"#);
    }

    #[test]
    fn rewriting_other_json_than_an_object_is_an_error() {
        assert!(
            rewrite(br#"{"ipam":[]}"#, |object| object
                .change("ipam", |_| Ok(())))
            .is_err()
        );
        assert!(rewrite(b"[]", |_| Ok(())).is_err());
    }
}
