//! [`PackedAttribute`]: an attribute without maps.

use super::Texts;
use crate::ipam::Attribute;

/// The keys that the active owner has for a pod.
const KEYS: [&str; 4] = ["namespace", "node", "pod", "timestamp"];
const HANDLE: usize = KEYS.len();
const OTHERS: usize = HANDLE + 1;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct PackedAttribute {
    /// The values of `KEYS`, the handle, and the attribute without both as JSON, unless it is empty
    /// then.
    texts: Texts<6>,
    pub(super) is_cooling: bool,
}

impl PackedAttribute {
    pub(super) fn of(mut attribute: Attribute) -> Self {
        let is_cooling = attribute.released_at.is_some();
        let handle = attribute.handle_id.take();
        let [namespace, node, pod, timestamp] = KEYS.map(|key| attribute.active_owner.remove(key));
        let is_empty = attribute == Attribute::default();
        // An object that was decoded from JSON can be encoded.
        let others = if is_empty {
            None
        } else {
            serde_json::to_string(&attribute).ok()
        };
        let texts = [namespace, node, pod, timestamp, handle, others];
        PackedAttribute {
            texts: Texts::of(texts.each_ref().map(Option::as_deref)),
            is_cooling,
        }
    }

    pub(super) fn handle(&self) -> Option<&str> {
        self.texts.get(HANDLE)
    }

    pub(super) fn unpack(&self) -> Attribute {
        let others = self
            .texts
            .get(OTHERS)
            .and_then(|text| serde_json::from_str(text).ok());
        let mut attribute: Attribute = others.unwrap_or_default();
        attribute.handle_id = self.handle().map(str::to_owned);
        let owner = KEYS
            .iter()
            .enumerate()
            .filter_map(|(index, key)| Some((*key, self.texts.get(index)?)));
        attribute
            .active_owner
            .extend(owner.map(|(key, value)| (key.to_owned(), value.to_owned())));
        attribute
    }

    /// Returns the number of bytes, including those on the heap.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self) + self.texts.joined.len()
    }
}
