//! [`Target`]: the file to write.

use std::path::{Path, PathBuf};

use super::ownership::is_calicos;
use crate::layout::Place;
use crate::plugin_chain::{Chain, chain_of};
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
    pub recorded: Installed,
}

impl Target {
    /// Returns the file that the settings name. An exception is a single plugin in a `.conf` file that istio-cni or
    /// linkerd-cni converted to a list: the list stays in a `.conflist` file, because runtimes read no list from
    /// `.conf`.
    pub fn new(directory: &Path, settings: &Settings, state: &State) -> Target {
        let target = |name: String| Target {
            directory: directory.to_owned(),
            mode: settings.conf_mode,
            recorded: state.get(Place::Net, &name).cloned().unwrap_or_default(),
            name,
        };
        let named = target(settings.conf_name.clone());
        if !named.name.ends_with(".conf") {
            return named;
        }
        let mut list = target(format!("{}list", named.name));
        if list.recorded == Installed::default() {
            list.recorded = named.recorded.clone();
        }
        match regular_file::contents(&list.path()) {
            Ok(text) if is_extended(&text, &list.recorded) => list,
            _ => named,
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Returns true if the text is a configuration, or if it is missing as expected. Otherwise another program may be
    /// writing the file at this moment.
    pub(super) fn is_whole(&self, there: Option<&[u8]>) -> bool {
        match there {
            Some(text) => chain_of(text).is_some(),
            None => self.recorded.digest.is_none(),
        }
    }
}

/// Returns true if the text is a list with Calico's plugin and foreign entries.
fn is_extended(text: &[u8], recorded: &Installed) -> bool {
    let Some(there) = chain_of(text) else { return false };
    is_calicos(text) && there.is_list() && !there.foreign(&Chain::default(), &recorded.renderings).is_empty()
}
