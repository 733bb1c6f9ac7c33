//! Writes a configuration and keeps the entries that other programs added.

use std::path::{Path, PathBuf};

use super::chain::Merged;
use super::copies::KeptCopy;
use super::{Chain, Conflist, Former, Rendering, chain_of, is_calicos, is_wholly_ours};
use crate::atomic_file::{self, AtomicFileError, Change};
use crate::layout::Place;
use crate::regular_file;
use crate::settings::Settings;
use crate::state::{Installed, State};

/// The file to write, and the state's record of the present one.
#[derive(Debug, Clone)]
pub struct Target {
    /// The directory.
    pub directory: PathBuf,
    /// The file name.
    pub name: String,
    /// The mode that the file has at least.
    pub mode: u32,
    /// The state's record of the file. It is empty on the first run, and if no state is kept.
    pub noted: Installed,
}

impl Target {
    /// Returns the file that the settings name. An exception is a single plugin in a `.conf` file that istio-cni or
    /// linkerd-cni converted to a list: the list stays in a `.conflist` file, because runtimes read no list from
    /// `.conf`.
    pub fn of(directory: &Path, settings: &Settings, state: &State) -> Target {
        let target = |name: String| Target {
            directory: directory.to_owned(),
            mode: settings.conf_mode,
            noted: state.get(Place::Net, &name).cloned().unwrap_or_default(),
            name,
        };
        let asked = target(settings.conf_name.clone());
        if !asked.name.ends_with(".conf") {
            return asked;
        }
        let mut list = target(format!("{}list", asked.name));
        if list.noted == Installed::default() {
            list.noted = asked.noted.clone();
        }
        match regular_file::contents(&list.path()) {
            Ok(text) if is_extended(&text, &list.noted) => list,
            _ => asked,
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Returns true if the text is a configuration, or if it is missing as expected. Otherwise another program may be
    /// writing the file at this moment.
    fn is_whole(&self, there: Option<&[u8]>) -> bool {
        match there {
            Some(text) => chain_of(text).is_some(),
            None => self.noted.digest.is_none(),
        }
    }
}

/// The result of writing a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The change of the file, if any.
    pub change: Change,
    /// The owners of the entries in the file, to be recorded.
    pub rendering: Rendering,
}

/// Returns true if the text is a list with Calico's plugin and foreign entries.
fn is_extended(text: &[u8], noted: &Installed) -> bool {
    let Some(there) = chain_of(text) else { return false };
    is_calicos(text) && there.is_list() && !there.foreign(&Chain::default(), &noted.renderings).is_empty()
}

impl Conflist {
    /// Returns true if the file exists and is up to date.
    #[must_use]
    pub fn is_written(&self, target: &Target) -> bool {
        let there = atomic_file::settled(&target.path(), |there| target.is_whole(there)).ok().flatten();
        there.is_some_and(|there| there.grants(target.mode) && self.over(Some(&there.contents), target, &[]).is_none())
    }

    /// Writes the configuration. Foreign entries stay in place, and foreign entries of the `former` configurations are
    /// added. A file that is not a JSON object is copied first.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written, or if another program rewrites the file again and again.
    pub fn write(&self, target: &Target, former: &[Former]) -> Result<Written, AtomicFileError> {
        let mut last = self.rendered.alone();
        let mut target = target.clone();
        let mut proposed = None;
        let mut copied = Ok(None);
        let path = target.path();
        let whole = target.clone();
        let is_whole = |there: Option<&[u8]>| whole.is_whole(there);
        let change = |there: Option<&[u8]>| {
            if there.is_some() && there == proposed.as_deref() {
                return None;
            }
            copied = Ok(None);
            last = self.merged(there, &target, former);
            let text = self.text_of(&last, there)?;
            if let Some((there, Err(reason))) = there.map(|there| (there, Chain::read(there))) {
                copied = KeptCopy::keep(&path, there, reason);
                copied.as_ref().ok()?;
            }
            // The next text to read is this one, or this one with another program's change.
            target.noted.renderings.push(last.rendering.clone());
            proposed = Some(text.clone());
            Some(text)
        };
        let change = atomic_file::amend(&path, whole.mode, is_whole, change)?;
        if let Some(copy) = copied? {
            copy.tell(&path);
        }
        if !last.taken.is_empty() {
            tracing::warn!(
                "{}: the plugins {} were taken for Calico's own, as templates make them and the note does not know the file; add \
                 them again if they were yours",
                path.display(),
                last.taken.join(", ")
            );
        }
        if !last.foreign.is_empty() {
            tracing::info!("{}: plugins of others stay in it: {}", path.display(), last.foreign.join(", "));
        }
        Ok(Written { change, rendering: last.rendering })
    }

    /// Returns the text to write over `there`, or `None` if `there` is equivalent.
    fn over(&self, there: Option<&[u8]>, target: &Target, former: &[Former]) -> Option<Vec<u8>> {
        self.text_of(&self.merged(there, target, former), there)
    }

    fn text_of(&self, merged: &Merged, there: Option<&[u8]>) -> Option<Vec<u8>> {
        // The template may contain elements that are not plugins, so equal bytes are checked first.
        if merged.is_only_ours() && there == Some(self.text.as_bytes()) {
            return None;
        }
        if there.and_then(chain_of).is_some_and(|there| merged.chain.says_the_same_as(&there)) {
            return None;
        }
        if merged.is_only_ours() {
            return Some(self.text.as_bytes().to_vec());
        }
        Some(merged.chain.to_text())
    }

    pub(super) fn merged(&self, there: Option<&[u8]>, target: &Target, former: &[Former]) -> Merged {
        let Some(there) = there.and_then(|text| self.known(text, &target.noted)) else {
            // Without a usable file, the foreign entries keep their places in the first readable former configuration.
            let mut former = former.iter();
            let first = former.by_ref().find_map(|former| Some((self.known(&former.text()?, &former.noted)?, former)));
            let merged = first.map_or_else(
                || self.rendered.alone(),
                |(there, former)| self.rendered.over(&there, &former.noted.renderings),
            );
            return self.with_former(merged, former.as_slice());
        };
        self.with_former(self.rendered.over(&there, &target.noted.renderings), former)
    }

    fn with_former(&self, mut merged: Merged, former: &[Former]) -> Merged {
        for former in former {
            let there = former.text().and_then(|text| self.known(&text, &former.noted));
            let foreign = there.map(|there| there.foreign(&self.rendered.pattern, &former.noted.renderings));
            merged.adopt(foreign.unwrap_or_default());
        }
        merged
    }

    /// Returns the plugins of a text that may contain foreign entries. Returns `None` if the text is wholly ours or is
    /// no configuration.
    fn known(&self, text: &[u8], noted: &Installed) -> Option<Chain> {
        chain_of(text).filter(|_| !is_wholly_ours(text, noted))
    }
}
