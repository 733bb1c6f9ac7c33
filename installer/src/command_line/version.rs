//! `calico version`: upstream's three lines (INST-3). What the build was not told is unknown: it is the same build then.

use std::process::ExitCode;

use ipam_plugin::process::build_version;

use super::arguments::print;

/// Prints them.
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
