//! [`ApiGroup`]: the API group that contains Calico's custom resources, one of two.

/// A group and version of Calico's custom resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApiGroup {
    /// `crd.projectcalico.org/v1`: an annotation contains the v3 metadata (DS-56).
    CrdV1,
    /// `projectcalico.org/v3`: objects are stored in their v3 form.
    V3,
}

impl ApiGroup {
    /// Returns the group and version, as objects and URLs contain it.
    pub fn api_version(self) -> &'static str {
        match self {
            ApiGroup::CrdV1 => "crd.projectcalico.org/v1",
            ApiGroup::V3 => "projectcalico.org/v3",
        }
    }

    /// Returns the group that `calico_api_group` configures; `None` for an empty value, which leaves the choice to
    /// discovery. Any value except v3 means v1 (DS-22).
    pub fn from_config(text: &str) -> Option<Self> {
        match text {
            "" => None,
            text if text.eq_ignore_ascii_case(ApiGroup::V3.api_version()) => Some(ApiGroup::V3),
            _ => Some(ApiGroup::CrdV1),
        }
    }

    /// Returns the group in use, given the names of all API groups of the server. If both groups exist, Calico's
    /// aggregated API server provides v3 from the objects stored in v1, so v1 is used (DS-22).
    pub fn among<'g>(names: impl IntoIterator<Item = &'g str>) -> Self {
        let (mut crd, mut v3) = (false, false);
        for name in names {
            crd |= name == "crd.projectcalico.org";
            v3 |= name == "projectcalico.org";
        }
        if v3 && !crd { ApiGroup::V3 } else { ApiGroup::CrdV1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_decides_before_the_cluster() {
        assert_eq!(ApiGroup::from_config(""), None);
        assert_eq!(ApiGroup::from_config("ProjectCalico.org/V3"), Some(ApiGroup::V3));
        for v1 in ["crd.projectcalico.org/v1", "projectcalico.org", "nonsense"] {
            assert_eq!(ApiGroup::from_config(v1), Some(ApiGroup::CrdV1), "{v1}");
        }
    }

    #[test]
    fn v3_only_where_v1_is_not() {
        assert_eq!(ApiGroup::among(["apps", "projectcalico.org"]), ApiGroup::V3);
        assert_eq!(ApiGroup::among(["projectcalico.org", "crd.projectcalico.org"]), ApiGroup::CrdV1);
        assert_eq!(ApiGroup::among(["crd.projectcalico.org"]), ApiGroup::CrdV1);
        assert_eq!(ApiGroup::among([]), ApiGroup::CrdV1);
    }
}
