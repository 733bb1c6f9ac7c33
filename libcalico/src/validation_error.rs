//! [`ValidationError`]: the invalid fields of an object, with upstream's text (DS-118).

use std::fmt;

/// An invalid field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The field, in upstream's spelling.
    pub name: String,
    /// The value of the field; `None` if the value is missing.
    pub value: Option<String>,
    /// The reason.
    pub reason: String,
}

impl FieldError {
    /// Creates the error of an invalid value.
    pub fn new(
        name: impl Into<String>,
        value: impl fmt::Display,
        reason: impl Into<String>,
    ) -> Self {
        FieldError {
            name: name.into(),
            value: Some(value.to_string()),
            reason: reason.into(),
        }
    }

    /// Creates the error of a missing value.
    pub fn missing(name: impl Into<String>, reason: impl Into<String>) -> Self {
        FieldError {
            name: name.into(),
            value: None,
            reason: reason.into(),
        }
    }

    /// Creates the error of a field that violates upstream's rule `tag` (DS-93).
    pub(crate) fn tag(name: &str, value: impl fmt::Display, tag: &str) -> Self {
        FieldError::new(
            name,
            value,
            format!("Reason: failed to validate Field: {name} because of Tag: {tag} "),
        )
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(value) = &self.value {
            write!(f, " = '{value}'")?;
        }
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        Ok(())
    }
}

/// The reasons why an object may not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationError(Vec<FieldError>);

impl ValidationError {
    /// Returns all invalid fields, in the order of their detection.
    pub fn fields(&self) -> impl Iterator<Item = &FieldError> {
        self.0.iter()
    }

    /// Returns `Ok` if there are no findings, else the error that contains them all.
    pub(crate) fn from_findings(findings: Vec<FieldError>) -> Result<(), Self> {
        if findings.is_empty() {
            Ok(())
        } else {
            Err(ValidationError(findings))
        }
    }
}

impl From<FieldError> for ValidationError {
    fn from(field: FieldError) -> Self {
        ValidationError(vec![field])
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [field] = &*self.0 {
            return write!(f, "error with field {field}");
        }
        f.write_str("error with the following fields:\n")?;
        for field in self.fields() {
            writeln!(f, "-  {field}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ValidationError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_error_with_a_single_field_prints_on_a_single_line() {
        let error: ValidationError = FieldError::tag("LabelsToApply", "map[a b:]", "labels").into();
        assert_eq!(
            error.to_string(),
            "error with field LabelsToApply = 'map[a b:]' (Reason: failed to validate Field: \
             LabelsToApply because of Tag: labels )"
        );
        let error: ValidationError = FieldError::missing("node", "field should be assigned").into();
        assert_eq!(
            error.to_string(),
            "error with field node (field should be assigned)"
        );
    }

    #[test]
    fn validation_error_with_several_fields_prints_as_a_list() {
        let findings = vec![
            FieldError::new("A", 1, "small"),
            FieldError::missing("B", ""),
        ];
        let error = ValidationError::from_findings(findings).unwrap_err();
        assert_eq!(
            error.to_string(),
            "error with the following fields:\n-  A = '1' (small)\n-  B\n"
        );
        assert_eq!(error.fields().count(), 2);
        assert_eq!(ValidationError::from_findings(vec![]), Ok(()));
    }
}
