//! Determines the MTU of an interface: the configured MTU, or else the MTU that Felix wrote for
//! this host, if any (CNI-73).

use std::io;
use std::path::Path;
use std::time::Duration;

use libcalico::failure::Failure;
use netconf::conf::{InterfaceConf, MTU_MAX, MTU_MIN};
use os::atomic_file::regular_file;
use os::clock::Clock;
use os::node_files::NodeFiles;

const MTU_FILE: &str = "/var/lib/calico/mtu";

/// The number of times an empty file is read again: Felix truncates the file before it writes it.
const REREADS: u32 = 5;
const REREAD_PAUSE: Duration = Duration::from_millis(10);

/// Returns the MTU of the interface in this configuration.
pub async fn of_interface(
    conf: &InterfaceConf,
    files: &NodeFiles,
    clock: &impl Clock,
) -> Result<u32, Failure> {
    effective(
        conf.mtu,
        conf.require_mtu_file,
        &files.path(MTU_FILE),
        clock,
    )
    .await
}

/// Returns the MTU of both ends of the interface, 0 for the kernel's default. A configured MTU
/// takes precedence, and an unreadable or invalid file is then only logged. A missing file that is
/// `required` is always an error.
async fn effective(
    configured: u32,
    required: bool,
    file: &Path,
    clock: &impl Clock,
) -> Result<u32, Failure> {
    match read(file, clock).await {
        Ok(None) if required => Err(unreadable(file, "the file does not exist")
            .way_out("start calico-node, or set \"require_mtu_file\": false")),
        Ok(_) if configured != 0 => Ok(configured),
        Ok(Some(mtu)) => Ok(mtu),
        Ok(None) => Ok(configured),
        Err(error) if configured != 0 => {
            tracing::warn!(
                %error,
                "the MTU file is unreadable or invalid; using the configured MTU"
            );
            Ok(configured)
        }
        Err(error) => Err(error),
    }
}

/// Returns the number in the file; `None` if the file does not exist.
async fn read(file: &Path, clock: &impl Clock) -> Result<Option<u32>, Failure> {
    read_by(file, clock, || regular_file::utf8(file)).await
}

/// Does the same as [`read`], with the contents that `read_once` returns.
async fn read_by(
    file: &Path,
    clock: &impl Clock,
    mut read_once: impl FnMut() -> io::Result<String>,
) -> Result<Option<u32>, Failure> {
    let mut content = String::new();
    for attempt in 0..=REREADS {
        if attempt > 0 {
            clock.sleep(REREAD_PAUSE).await;
        }
        content = match read_once() {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(file, error)),
        };
        match content.trim().parse() {
            Ok(mtu) if mtu == 0 || (MTU_MIN..=MTU_MAX).contains(&mtu) => return Ok(Some(mtu)),
            Ok(mtu) => {
                return Err(Failure::new(format_args!(
                    "MTU file {}: {mtu} is neither 0 nor an integer from {MTU_MIN} to {MTU_MAX}",
                    file.display()
                ))
                .way_out(
                    "correct the setting that calico-node writes there, or set \"mtu\" in the \
                     network configuration",
                ));
            }
            Err(_) => {}
        }
        if !content.trim().is_empty() {
            break;
        }
    }
    let reason = format!("{:?} is not a whole number of bytes", content.trim());
    Err(unreadable(file, reason))
}

fn unreadable(file: &Path, cause: impl std::fmt::Display) -> Failure {
    Failure::new(format_args!("failed to read MTU file {}", file.display())).because(cause)
}

#[cfg(test)]
mod tests {
    use os::clock::SystemClock;

    use super::*;

    async fn of_file(configured: u32, required: bool, file: &Path) -> Result<u32, Failure> {
        effective(configured, required, file, &SystemClock::start()).await
    }

    fn file(content: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    #[tokio::test]
    async fn configured_mtu_overrides_even_a_damaged_file() {
        assert_eq!(
            of_file(1400, false, file("1450").path()).await.unwrap(),
            1400
        );
        assert_eq!(
            of_file(1400, false, file("garbage").path()).await.unwrap(),
            1400
        );
        assert_eq!(
            of_file(1400, false, Path::new("/no/such/file"))
                .await
                .unwrap(),
            1400
        );
    }

    #[tokio::test]
    async fn mtu_file_is_used_if_no_mtu_is_configured() {
        assert_eq!(
            of_file(0, false, file(" 1450\n").path()).await.unwrap(),
            1450
        );
        assert_eq!(
            of_file(0, false, Path::new("/no/such/file")).await.unwrap(),
            0
        );
    }

    #[tokio::test]
    async fn special_mtu_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("mtu");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        for path in [&fifo, Path::new("/dev/zero")] {
            let error = of_file(0, false, path).await.unwrap_err();
            let (error, path) = (error.to_string(), path.display());
            let begin = format!("failed to read MTU file {path}: ");
            assert!(error.starts_with(&begin), "{error}");
        }
    }

    #[tokio::test]
    async fn missing_required_mtu_file_is_an_error() {
        let error = of_file(1400, true, Path::new("/no/such/file"))
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("failed to read MTU file /no/such/file: the file does not exist; "),
            "{error}"
        );
    }

    #[tokio::test]
    async fn malformed_mtu_file_is_reported_with_its_contents() {
        let error = of_file(0, false, file("15oo").path()).await.unwrap_err();
        assert!(error.to_string().contains("\"15oo\""), "{error}");
        let error = of_file(0, false, file("").path()).await.unwrap_err();
        assert!(error.to_string().contains(": \"\" is not a"), "{error}");
    }

    #[tokio::test]
    async fn mtu_file_out_of_range_is_an_error_that_names_the_file() {
        for content in ["65536", "67"] {
            let (out, file) = (of_file(0, false, file(content).path()).await, content);
            let error = out.unwrap_err().to_string();
            assert!(
                error.starts_with("MTU file /") && error.contains(&format!(": {file} is neither")),
                "{error}"
            );
            assert!(error.contains("from 68 to 65535"), "{error}");
        }
        assert_eq!(of_file(0, false, file("0").path()).await.unwrap(), 0);
        assert_eq!(
            of_file(1400, false, file("65536").path()).await.unwrap(),
            1400
        );
    }

    #[tokio::test]
    async fn mtu_file_being_rewritten_is_read_again() {
        let mut contents = ["", "\n", "1430"].into_iter();
        let clock = SystemClock::start();
        let once = || Ok(contents.next().unwrap().to_owned());
        let read = read_by(Path::new("mtu"), &clock, once).await;
        assert_eq!((read.unwrap(), contents.next()), (Some(1430), None));
    }
}
