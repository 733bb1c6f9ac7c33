//! [`Failure`]: an error that is only printed (ADR 0013).

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// An error that no caller examines: the failed operation with its object, the cause, and the way
/// out. Its text is `OPERATION: CAUSE; WAY OUT`.
///
/// It is no [`Error`] itself, so that `?` converts every error to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    operation: String,
    cause: Option<String>,
    way_out: Option<Cow<'static, str>>,
}

impl Failure {
    /// Creates an error without cause and way out.
    pub fn new(operation: impl fmt::Display) -> Self {
        Failure {
            operation: operation.to_string(),
            cause: None,
            way_out: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// Adds the way out: what the reader can do.
    #[must_use]
    pub fn way_out(mut self, way_out: impl Into<Cow<'static, str>>) -> Self {
        self.way_out = Some(way_out.into());
        self
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        if let Some(way_out) = &self.way_out {
            write!(f, "; {way_out}")?;
        }
        Ok(())
    }
}

/// Results whose error becomes the cause of a [`Failure`].
pub trait OrFail<T> {
    /// Adds the failed operation with its object, which is formatted only after an error.
    ///
    /// # Errors
    /// Returns the error as the cause of the failed operation.
    fn or_fail(self, operation: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, operation: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|cause| Failure::new(operation).because(cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_failure_has_operation_cause_and_way_out() {
        let read: Result<(), &str> = Err("no such file");
        let failure = read.or_fail(format_args!("cannot read {}", "a.yaml"));
        let failure = failure.unwrap_err().way_out("create it");
        assert_eq!(
            failure.to_string(),
            "cannot read a.yaml: no such file; create it"
        );
        let bare = Failure::new("no pool is called `a`").way_out("name another");
        assert_eq!(bare.to_string(), "no pool is called `a`; name another");
    }
}
