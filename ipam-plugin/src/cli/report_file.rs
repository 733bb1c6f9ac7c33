//! Files of [`IpamReport`]s.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use libcalico::api::ClusterInformationSpec;
use libcalico::failure::Failure;
use libcalico::ipam::report::{IpamReport, NamedReport};
use os::atomic_file;

use super::error::{CliError, file_failure};
use super::input_file::{self, MAX_REPORT};

/// The permissions of a new report.
const MODE: u32 = 0o600;

/// Replaces the file by the report. An existing file keeps the permissions that it has.
pub(super) fn write(path: &Path, report: &IpamReport) -> Result<(), CliError> {
    let text = report.to_text().map_err(CliError::encode)?;
    let found = fs::metadata(path).ok();
    // A pipe or a terminal cannot be replaced.
    if found.as_ref().is_some_and(|found| !found.is_file()) {
        return Ok(fs::write(path, text).map_err(file_failure("write", path))?);
    }
    let mode = found.map_or(MODE, |found| found.permissions().mode() & 0o777 | MODE);
    let target = target(path).map_err(file_failure("write", path))?;
    atomic_file::replace(&target, text.as_bytes(), mode)
        .map_err(|error| file_failure("write", path)(io::Error::other(error)))?;
    Ok(())
}

/// Returns the absolute path, with links resolved if the file exists.
fn target(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path).or_else(|_| std::path::absolute(path))
}

pub(super) fn read(path: &Path) -> Result<NamedReport, Failure> {
    let file = path.display().to_string();
    let text = input_file::bytes(path, MAX_REPORT).map_err(file_failure("read", path))?;
    match IpamReport::parse(&text) {
        Ok(report) => Ok(NamedReport { file, report }),
        Err(error) => Err(Failure::new(format_args!("report {file}"))
            .because(error)
            .way_out(format!("write it with `calico-ipam check --report {file}`"))),
    }
}

/// Returns the version for reports: the one given, or that of ClusterInformation, which calico-node
/// writes. A script may give an empty one.
pub(super) fn version<'a>(
    given: Option<&'a str>,
    information: &'a ClusterInformationSpec,
) -> Result<&'a str, Failure> {
    let mut versions = given
        .into_iter()
        .chain([information.calico_version.as_str()]);
    let version = versions.find(|version| !version.is_empty());
    version.ok_or_else(|| {
        Failure::new("ClusterInformation has no calicoVersion, which calico-node writes")
            .way_out("name the version of calicoctl with --report-version")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> IpamReport {
        IpamReport::parse(br#"{"version":"v1","clusterGUID":"g","allocations":{}}"#).unwrap()
    }

    #[test]
    fn report_is_written_with_permissions_of_the_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        write(&path, &report()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(read(&path).unwrap().report, report());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&path, "old").unwrap();
        write(&path, &report()).unwrap();
        assert_eq!(mode(&path), 0o644);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn version_is_the_first_that_is_not_empty() {
        let information = |version: &str| ClusterInformationSpec {
            calico_version: version.into(),
            ..ClusterInformationSpec::default()
        };
        assert_eq!(version(Some("v1"), &information("v2")).unwrap(), "v1");
        assert_eq!(version(Some(""), &information("v2")).unwrap(), "v2");
        for given in [None, Some("")] {
            let error = version(given, &information("")).unwrap_err().to_string();
            assert!(
                error.starts_with("ClusterInformation has no calicoVersion"),
                "{error}"
            );
        }
    }

    #[test]
    fn report_that_cannot_be_written_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = write(&dir.path().join("missing/report.json"), &report())
            .unwrap_err()
            .to_string();
        assert!(error.contains("missing/report.json"), "{error}");
    }
}
