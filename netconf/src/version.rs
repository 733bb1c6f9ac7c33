//! Versions of the CNI specification.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::json;

/// A released version of the CNI specification, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are the versions")]
pub enum Version {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    /// Every supported version, oldest first. Upstream stops at 1.0.0, but runtimes and Multus
    /// request 1.1.0 (CNI-213).
    pub const ALL: [Version; 7] = [
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// The newest supported version. Results in memory have the form of this version.
    pub const LATEST: Version = Version::V1_1_0;

    /// The version of a configuration without `cniVersion` (CNI-24).
    pub const WHEN_MISSING: Version = Version::V0_1_0;

    /// Returns the text of the `cniVersion` key.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Returns the version written exactly as `text`, or `None`.
    pub fn parse(text: &str) -> Option<Version> {
        Version::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Returns the output of `VERSION`. `requested` is the `cniVersion` from stdin, which the
/// specification requires in the output. Upstream always prints 1.1.0 (CNI-34).
pub(crate) fn format_answer(requested: Option<&str>) -> String {
    let requested = requested.unwrap_or(Version::LATEST.as_str());
    format!(
        "{}\n",
        json!({ "cniVersion": requested, "supportedVersions": Version::ALL })
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_texts_round_trip() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()), Some(version));
        }
        for text in ["", "1.0", "v1.0.0", "1.0.0 ", "0.5.0", "9.9.9"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn versions_are_ordered_by_age() {
        assert!(Version::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn version_output_echoes_the_requested_version() {
        let supported = r#"["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]"#;
        for (asked, said) in [
            (Some("1.0.0"), "1.0.0"),
            (Some("9.9.9"), "9.9.9"),
            (None, "1.1.0"),
        ] {
            assert_eq!(
                format_answer(asked),
                format!("{{\"cniVersion\":\"{said}\",\"supportedVersions\":{supported}}}\n")
            );
        }
    }
}
