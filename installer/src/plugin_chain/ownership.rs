//! Finds out which entries of a configuration are ours: by the record, the file and today's rendering.

use super::chain::Chain;
use super::entry::{Entry, is_calico, is_of_a_template, kind as entry_kind};
use super::likeness::fits_entry;
use super::rendering::Rendering;

impl Chain {
    /// Returns the foreign entries. `recorded` are the recorded renderings, of which one may be in place. A
    /// configuration without any entry of ours belongs to another network; the result is then empty.
    pub fn foreign(&self, pattern: &Chain, recorded: &[Rendering]) -> Vec<Entry> {
        let ours = self.ours(pattern, Rendering::in_place(recorded, self));
        if !ours.contains(&true) {
            return Vec::new();
        }
        let foreign = self.entries.iter().zip(&ours).filter(|(_, is_ours)| !**is_ours);
        foreign.map(|(entry, _)| entry.clone()).collect()
    }

    /// Returns for each entry whether it is ours.
    ///
    /// - Calico's plugin and entries recorded as ours are ours. Entries recorded as foreign are not.
    /// - If the record describes the configuration, every other entry is foreign.
    /// - Otherwise an entry is ours if it equals an entry of today's rendering or one that known templates generate.
    pub(super) fn ours(&self, pattern: &Chain, recorded: Option<&Rendering>) -> Vec<bool> {
        let described = recorded.filter(|recorded| recorded.describes(self));
        let is_todays = |entry: &Entry| pattern.entries.iter().any(|ours| fits_entry(ours, entry));
        let is_ours = |entry: &Entry| {
            let is_recorded = recorded.and_then(|recorded| recorded.owns(entry));
            let is_made = || described.is_none() && (is_todays(entry) || is_of_a_template(entry));
            is_calico(entry) || is_recorded.unwrap_or_else(is_made)
        };
        let mut ours: Vec<bool> = self.entries.iter().map(is_ours).collect();
        // The file may be from today's rendering, which is not recorded yet.
        let is_newer_than_note = || self.entries.iter().filter(|entry| is_calico(entry)).all(is_todays);
        if let Some(recorded) = recorded.filter(|_| described.is_some() || !is_newer_than_note()) {
            self.mark_edited(recorded, &mut ours);
        }
        ours
    }

    /// Marks edited entries of ours. An edited entry is recognized by its type, if a recorded entry of that type is
    /// missing.
    fn mark_edited(&self, recorded: &Rendering, ours: &mut [bool]) {
        for (kind, count) in recorded.counts() {
            let of_kind: Vec<usize> =
                (0..ours.len()).filter(|index| entry_kind(&self.entries[*index]) == kind).collect();
            let found = of_kind.iter().filter(|index| ours[**index]).count();
            let edited =
                of_kind.into_iter().filter(|index| recorded.owns(&self.entries[*index]).is_none() && !ours[*index]);
            let edited: Vec<usize> = edited.take(count.saturating_sub(found)).collect();
            edited.into_iter().for_each(|index| ours[index] = true);
        }
    }
}
