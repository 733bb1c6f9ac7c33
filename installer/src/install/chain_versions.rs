//! Asks the programs of a new configuration for the versions of the CNI specification that they
//! support, before the configuration is written. A runtime reports the node's network as ready as
//! soon as the file exists, and if a plugin lacks the configuration's version, each ADD then fails
//! at that plugin.

use std::time::Duration;

use libcalico::failure::Failure;
use serde_json::Value;

use installation::conflist::{ChainProgram, Conflist, FormerConfig, Target};
use installation::layout::Layout;
use installation::supported_versions;

/// Time limit for the answer of one program. The answer needs no server.
const LIMIT: Duration = Duration::from_secs(2);

/// Checks that the programs of `conflist` support its `cniVersion`. Asks none if the configuration
/// has no `cniVersion`. A program that lacks the version and that only foreign entries name is
/// logged as a warning. A program without a valid answer is logged as well. Missing programs are
/// skipped; `template::find_problems` reports those of our entries.
///
/// # Errors
/// Returns an error that names the programs of our entries that lack the version.
pub(super) fn check(
    conflist: &Conflist,
    target: &Target,
    former: &[FormerConfig],
    layout: &Layout,
) -> Result<(), Failure> {
    let version = conflist
        .conf
        .get("cniVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if version.is_empty() {
        return Ok(());
    }
    let mut refused = Vec::new();
    for ChainProgram { name, is_ours } in conflist.programs(target, former) {
        let mut paths = layout.bin_paths().map(|directory| directory.join(&name));
        let Some(path) = paths.find(|path| path.is_file()) else {
            continue;
        };
        let program = path.display();
        match supported_versions::query(&path, version, LIMIT) {
            Ok(versions) if versions.iter().any(|supported| supported == version) => {}
            Ok(versions) => {
                let answer = format!("{program} supports {}", versions.join(", "));
                if is_ours {
                    refused.push(answer);
                } else {
                    tracing::warn!(
                        plugin = name,
                        hint = "install a newer plugin, or remove its entry",
                        "no pod starts with cniVersion {version}: {answer}"
                    );
                }
            }
            Err(error) => tracing::warn!(
                %program, %error,
                hint = "run `calico doctor` on the node",
                "cannot learn if the plugin supports cniVersion {version}"
            ),
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "{} is not written, as programs lack its cniVersion {version}",
        target.name
    ))
    .because(refused.join("; "))
    .way_out(
        "install newer programs, for which UPDATE_CNI_BINARIES=true suffices if the image has \
         them, or set an older cniVersion in the template",
    ))
}
