//! [`Conflist`]: the network configuration that the settings yield, and [`ChainProgram`]: a program
//! that it names.

use std::fmt;
use std::path::Path;

use libcalico::failure::{Failure, OrFail};
use netconf::NetConf;
use serde_json::{Map, Value};

use super::files::{FormerConfig, Target};
use super::is_installed_in;
use crate::digest;
use crate::layout::{DirectoryRole, Layout};
use crate::node_conf;
use crate::plugin_chain::{Chain, Entry, Rendered, Rendering, read_chain};
use crate::settings::{Settings, Template};
use crate::state::{InstalledFile, State};
use crate::template::{self, TOKEN_PLACEHOLDER, Values};
use os::atomic_file::{AtomicFileError, regular_file};

/// A network configuration. It must not be logged, because the text may contain a token (INST-35).
#[derive(Clone)]
pub struct Conflist {
    /// The text of the file.
    pub text: String,
    /// The parsed text.
    pub conf: Map<String, Value>,
    /// The configuration of Calico's plugin in it, with paths translated to paths of this
    /// container.
    pub plugin_conf: Option<NetConf>,
    /// SHA-256 of the text without the pod's token; `None` if the text does not contain the token.
    pub origin: Option<String>,
    /// The plugins of the text, and a pattern that matches them with any token.
    pub(super) rendered: Rendered,
}

/// A program that a runtime runs for a configuration, or that a plugin of the configuration runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainProgram {
    /// The file name.
    pub name: String,
    /// True if an entry of ours names the program, false if only entries of other programs do.
    pub is_ours: bool,
}

impl Conflist {
    /// Fills in the placeholders of the template.
    ///
    /// # Errors
    /// Returns an error if the template cannot be read, if it yields no JSON object or two entries
    /// of Calico's plugin, or if Calico's plugin would reject the result.
    pub fn render(
        settings: &Settings,
        values: &Values,
        layout: &Layout,
    ) -> Result<Conflist, Failure> {
        let template = match &settings.template {
            Template::BuiltIn => template::BUILT_IN.to_owned(),
            Template::Text(text) => text.clone(),
            // The path is one in the container, not on the node.
            Template::File(file) => {
                let path = layout.path(file);
                let read = regular_file::utf8(&path).map_err(|source| AtomicFileError {
                    action: "read",
                    path,
                    source,
                });
                read.or_fail("CNI_NETWORK_CONFIG_FILE")?
            }
        };
        let text = values.fill(&template);
        let conf = template::parse(&text).map_err(|failure| {
            match values.unparsable_variable(&template) {
                Some(variable) => failure.way_out(format!(
                    "{variable} must be a number, true or false, or a text in quotes: correct its \
                     value"
                )),
                None => failure,
            }
        })?;
        let path_of = |path: &Path| layout.translate(path, Path::new(&settings.net_dir));
        // A template may contain other plugins only.
        let plugin = node_conf::plugin(Value::Object(conf.clone()), path_of).ok();
        let without_token = values.clone().with_token(String::new()).fill(&template);
        let origin = (without_token != text).then(|| digest::of_bytes(without_token.as_bytes()));
        let chain = Chain::new(&conf);
        if chain.calico_count() > 1 {
            return Err(refused(settings, "the plugin calico occurs twice"));
        }
        let pattern = if origin.is_some() {
            let text = values
                .clone()
                .with_token(TOKEN_PLACEHOLDER.to_owned())
                .fill(&template);
            Chain::new(&template::parse(&text)?)
        } else {
            chain.clone()
        };
        let plugin_conf = plugin
            .map(node_conf::read)
            .transpose()
            .map_err(|error| refused(settings, error))?;
        Ok(Conflist {
            text,
            conf,
            plugin_conf,
            origin,
            rendered: Rendered { chain, pattern },
        })
    }

    /// Returns the name of the network; empty if the configuration has no name.
    #[must_use]
    pub fn network(&self) -> &str {
        self.conf
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Records in the state that the configuration will be written, and the file that it replaces.
    pub fn record(&self, target: &Target, state: &mut State) {
        let name = &target.name;
        let present = regular_file::contents(&target.path()).ok();
        let rendering = self.merged(present.as_deref(), target, &[]).rendering;
        let recorded = state
            .get(DirectoryRole::Net, name)
            .cloned()
            .unwrap_or_default();
        // Our own configuration with foreign entries does not count as replaced, because those
        // entries stay.
        let is_replaced = |text: &&Vec<u8>| {
            recorded.has_digest(&digest::of_bytes(text)) || !is_installed_in(text, &recorded)
        };
        let replaced = present
            .as_ref()
            .filter(is_replaced)
            .map(|present| digest::of_bytes(present));
        let present = present
            .and_then(|present| read_chain(&present))
            .unwrap_or_default();
        let in_place = Rendering::in_place(&recorded.renderings, &present)
            .filter(|old| **old != rendering)
            .cloned();
        state.record_replacement(DirectoryRole::Net, name, self.digest(), replaced.as_deref());
        if let Some(recorded) = state.get_mut(DirectoryRole::Net, name) {
            recorded.origin = self.origin.clone();
            recorded.renderings = in_place.into_iter().chain([rendering]).collect();
        }
    }

    /// Returns true if the record is that of this configuration, with any token of the pod.
    #[must_use]
    pub fn is_recorded(&self, recorded: &InstalledFile) -> bool {
        recorded.has_digest(&self.digest())
            || self.origin.is_some() && self.origin == recorded.origin
    }

    /// Returns the programs of the configuration to write: those of our entries, and those of the
    /// foreign entries in the present file, also if Cilium renamed it, and in the `former` ones.
    #[must_use]
    pub fn programs(&self, target: &Target, former: &[FormerConfig]) -> Vec<ChainProgram> {
        let renamed = || target.renamed_by_cilium().map(|renamed| renamed.contents);
        let present = regular_file::contents(&target.path()).ok().or_else(renamed);
        let merged = self.merged(present.as_deref(), target, former);
        let list = merged.chain.to_list();
        let mut programs: Vec<ChainProgram> = Vec::new();
        for plugin in template::plugins(&list) {
            let is_ours = merged
                .rendering
                .contains_entry(&Entry::from(plugin.clone()));
            for name in template::program_names(plugin)
                .into_iter()
                .filter(|name| template::is_program_name(name))
            {
                match programs.iter_mut().find(|program| program.name == name) {
                    Some(program) => program.is_ours |= is_ours,
                    None => programs.push(ChainProgram {
                        name: name.to_owned(),
                        is_ours,
                    }),
                }
            }
        }
        programs
    }

    pub(super) fn digest(&self) -> String {
        digest::of_bytes(self.text.as_bytes())
    }
}

fn refused(settings: &Settings, reason: impl fmt::Display) -> Failure {
    Failure::new(format_args!(
        "{} is not written, as Calico's plugin would reject it",
        settings.conf_name
    ))
    .because(reason)
    .way_out("correct the template, or the variable of the placeholder")
}
