//! `calico version` prints the same three lines as upstream. The date and the commit are unknown unless the build sets
//! them, so that builds are reproducible.

use std::process::ExitCode;

use ipam_plugin::process::build_version;

use super::arguments::print;

/// Prints the lines.
pub fn version() -> ExitCode {
    let (date, commit) = (option_env!("CALICO_BUILD_DATE"), option_env!("CALICO_GIT_COMMIT"));
    let unknown = "unknown";
    print(&format!(
        "Version:            {}\nBuild date:         {}\nGit commit:         {}\n",
        build_version(),
        date.unwrap_or(unknown),
        commit.unwrap_or(unknown)
    ));
    ExitCode::SUCCESS
}
